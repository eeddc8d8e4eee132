#!/bin/sh
# Stands in for the engine's client: `run` says ready and waits for the end of its input, `exec` runs the program in
# the directory that would be the container's workspace, with a /tmp of its own for the notes of process ids. Every call
# is written down.
here=$(dirname "$0")
echo "$@" >> "$here/docker.log"
case "$1" in
run)
  while [ $# -gt 0 ]; do
    case "$1" in
    --name) name=$2 ;;
    type=bind,source=*) source=${1#*source=} ;;
    esac
    shift
  done
  echo "${source%%,*}" > "$here/$name.workspace"
  echo ready
  cat > /dev/null ;;
exec)
  shift
  while [ "$1" != "${1#--}" ]; do
    case "$1" in
    --interactive) shift ;;
    --env) export "$2"; shift 2 ;;
    *) shift 2 ;;
    esac
  done
  name=$1
  note=$(printf %s "$4" | sed "s,/tmp/,$here/$name,")
  shift 4
  cd "$(cat "$here/$name.workspace")" && exec sh -c "$note" "$@" ;;
esac
