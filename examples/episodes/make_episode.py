#!/usr/bin/env python3
"""make_episode.py > fix_failing_test.jsonl: a recorded episode of an agent that mends a failing test.

The agent's words and calls are written by hand, mistakes and recoveries included. The tool results are real:
every command runs in a scratch directory that starts with the two files below.
"""
import json
import pathlib
import re
import subprocess
import tempfile

SOURCE = '''"""Durations such as "1h30m" in seconds."""
import re

UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text):
    total = 0
    for number, unit in re.findall(r"(\\d+)([smh])", text):
        total += int(number) * UNITS[unit]
    return total


def format_duration(seconds):
    parts = []
    for unit in ("h", "m", "s"):
        count, seconds = divmod(seconds, UNITS[unit])
        parts.append(f"{count}{unit}")
    return "".join(parts)
'''

TESTS = '''import unittest

from duration import format_duration, parse_duration


class DurationTest(unittest.TestCase):
    def test_parse(self):
        self.assertEqual(parse_duration("1h30m"), 5400)
        self.assertEqual(parse_duration("45s"), 45)

    def test_days(self):
        self.assertEqual(parse_duration("2d1h"), 176400)

    def test_garbage_is_refused(self):
        for text in ("", "12", "1h banana", "h1"):
            with self.assertRaises(ValueError):
                parse_duration(text)

    def test_format_leaves_out_zeros(self):
        self.assertEqual(format_duration(5400), "1h30m")
        self.assertEqual(format_duration(0), "0s")

    def test_round_trip(self):
        for seconds in (1, 59, 60, 86400, 90061):
            self.assertEqual(parse_duration(format_duration(seconds)), seconds)


if __name__ == "__main__":
    unittest.main()
'''

RUN = "python3 -m unittest -q 2>&1 | tail -n 12"


def terminal(command):
    return ("terminal", {"command": command})


def write(path, content):
    return ("write_file", {"path": path, "content": content})


def patch(path, old, new):
    return ("patch", {"path": path, "old_string": old, "new_string": new})


REGEX_ALL = '''    if not re.fullmatch(r"(\\d+[smhd])+", text):
        raise ValueError(f"not a duration: {text!r}")
'''

# Each step: what the agent says, and the call it makes (none: it stops).
STEPS = [
    ("I'll start by looking at what is in the directory.", terminal("ls -la | tail -n +2 | awk '{print $1, $9}'")),
    ("Let me read the module.", ("read_file", {"path": "duration.py"})),
    ("Now the tests.", ("read_file", {"path": "test_duration.py"})),
    ("Run them to see what fails.", terminal(RUN)),
    ("Several things fail. Days first: I add the unit to the table.",
     patch("duration.py", '"h": 3600}', '"h": 3600, "d": 86400}')),
    ("", terminal("python3 -m unittest -q test_duration.DurationTest.test_days 2>&1 | tail -n 5")),
    ("Still failing: the expression only knows s, m and h. I extend it too.",
     patch("duration.py", "([smh])", "([smhd])")),
    ("", terminal("python3 -m unittest -q test_duration.DurationTest.test_days 2>&1 | tail -n 3")),
    ("Days work. Next: garbage must be refused. I'll raise when nothing was found.",
     patch("duration.py", "    return total\n", '    if total == 0:\n        raise ValueError("not a duration")\n    return total\n')),
    ("", terminal("python3 -m unittest -q test_duration.DurationTest.test_garbage_is_refused 2>&1 | tail -n 5")),
    ("\"1h banana\" contains a valid part, so the total is not zero. And \"0s\" would now be refused, which is wrong. "
     "I undo that and check the whole text instead.",
     patch("duration.py", '    if total == 0:\n        raise ValueError("not a duration")\n    return total\n', "    return total\n")),
    ("", patch("duration.py", "    total = 0\n", REGEX_ALL.replace("fullmatch", "match") + "    total = 0\n")),
    ("", terminal("python3 -m unittest -q test_duration.DurationTest.test_garbage_is_refused 2>&1 | tail -n 5")),
    ("`match` only looks at the beginning, so \"1h banana\" passes. It has to be `fullmatch`.",
     patch("duration.py", "re.match", "re.fullmatch")),
    ("", terminal("python3 -m unittest -q test_duration.DurationTest.test_garbage_is_refused 2>&1 | tail -n 3")),
    ("Good. Now formatting: zeros should be left out.",
     patch("duration.py", '        parts.append(f"{count}{unit}")\n', '        if count:\n            parts.append(f"{count}{unit}")\n')),
    ("", terminal(RUN)),
    ("One left: zero gives an empty text. Let me look at a few values before I change anything.",
     terminal("python3 -c \"from duration import *; print([format_duration(s) for s in (0, 59, 86400, 90061)])\"")),
    ("86400 becomes 24h, which is right but not what days are for; zero must become \"0s\". I fix zero first.",
     patch("duration.py", '    return "".join(parts)\n', '    return "".join(parts) or "0s"\n')),
    ("", terminal(RUN)),
    ("All pass, but days are still never written. The tests don't ask for it; a reader of \"25h1m1s\" would rather see days, "
     "so I add the unit to the loop and run everything again.",
     patch("duration.py", 'for unit in ("h", "m", "s"):', 'for unit in ("d", "h", "m", "s"):')),
    ("", terminal(RUN)),
    ("One last look at the result.", terminal("sed -n '7,28p' duration.py")),
    ("All five tests pass. `parse_duration` now knows days and refuses text that is not a duration as a whole; "
     "`format_duration` leaves out zeros and writes days.", None),
]


def tool(cwd, name, args):
    path = pathlib.Path(cwd) / args.get("path", ".")
    if name == "terminal":
        run = subprocess.run(args["command"], shell=True, cwd=cwd, capture_output=True, text=True)
        # Durations and the scratch path differ from run to run and mean nothing here.
        output = re.sub(r"in \d+\.\d+s", "in 0.001s", run.stdout + run.stderr)
        return output.replace(cwd, "/workspace") or "(no output)"
    if name == "read_file":
        return "\n".join(f"{n}|{line}" for n, line in enumerate(path.read_text().splitlines(), 1))
    if name == "write_file":
        path.write_text(args["content"])
        return "written"
    text = path.read_text()
    assert text.count(args["old_string"]) == 1, args["old_string"]
    path.write_text(text.replace(args["old_string"], args["new_string"]))
    return f"patched {args['path']}"


def schema(name, description, **properties):
    parameters = {"type": "object", "properties": {k: {"type": "string", "description": v} for k, v in properties.items()},
                  "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    schema("terminal", "Run a shell command in the workspace.", command="The command."),
    schema("read_file", "Read a file with line numbers.", path="Path in the workspace."),
    schema("write_file", "Write a file.", path="Path in the workspace.", content="The whole new content."),
    schema("patch", "Replace text that occurs exactly once.", path="Path in the workspace.", old_string="Text to find.",
           new_string="Text to put there."),
]


def main():
    task = "The tests of this package fail. Mend duration.py so that they pass; do not change the tests."
    messages = [{"role": "system", "content": "You are a careful programmer with a terminal and file tools."},
                {"role": "user", "content": task}]
    with tempfile.TemporaryDirectory() as cwd:
        (pathlib.Path(cwd) / "duration.py").write_text(SOURCE)
        (pathlib.Path(cwd) / "test_duration.py").write_text(TESTS)
        for n, (words, call) in enumerate(STEPS, 1):
            message = {"role": "assistant", "content": words}
            messages.append(message)
            if call is None:
                continue
            name, args = call
            function = {"name": name, "arguments": json.dumps(args)}
            message["tool_calls"] = [{"id": f"call_{n}", "type": "function", "function": function}]
            messages.append({"role": "tool", "tool_call_id": f"call_{n}", "name": name, "content": tool(cwd, name, args)})
        passed = subprocess.run(["python3", "-m", "unittest", "-q"], cwd=cwd, capture_output=True).returncode == 0
    row = {"id": "fix_failing_test", "task": task, "messages": messages, "tools": TOOLS, "reward": 1.0 if passed else 0.0}
    print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
