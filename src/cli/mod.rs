//! The command line: reads what was typed, calls the library, and is the only place that prints.
//!
//! Data goes to stdout, talk to stderr. Every failure names the thing and the reason, and `help:` says
//! what to do next. Exit codes: 0 all that was asked for was made, 1 finished with losses, 2 usage or
//! unreadable input, 3 stopped early, 130 and 143 ended by SIGINT and SIGTERM.

mod args;
mod chat;
mod collect;
mod command;
mod credit;
mod dataset;
mod episodes;
mod evaluate;
mod failure;
mod interrupt;
mod keys;
mod live;
mod model;
mod now;
mod output;
mod probe;
mod program;
mod pulse;
mod quickstart;
mod score;
mod serve;
mod server;
mod sources;
mod stdout;
mod talk;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use self::args::{ChatCommand, ModelCommand};
use self::command::{Args, Command};
use self::failure::Failure;

/// Runs the program with these arguments, the program's name first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let args = match Args::try_parse_from(&arguments) {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    arguments.first().into_iter().for_each(|word| program::started_as(word));
    let as_json = args.command.as_json();
    match interrupt::listen(as_json).and_then(|()| dispatch(args.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(as_json),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Chat(ChatCommand::Render(args)) => chat::render(&args),
        Command::Chat(ChatCommand::Parse(args)) => chat::parse(&args),
        Command::Collect(args) => collect::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Config(args) => keys::list(&args),
        Command::Quickstart(args) => quickstart::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Score(args) => score::run(&args),
        Command::Credit(args) => credit::run(&args),
        Command::Dataset(args) => dataset::run(&args),
        Command::Model(ModelCommand::Pull { name }) => model::pull(name.as_deref()),
        Command::Model(ModelCommand::List) => model::list(),
        Command::Model(ModelCommand::Serve(args)) => serve::run(&args),
        Command::Model(ModelCommand::Path { name }) => model::path(name.as_deref()),
    }
}

/// Runs asynchronous work to its end.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::stopped(error, "raise the limit on threads (ulimit -u)"))?;
    Ok(runtime.block_on(work))
}

/// Clap's own text: help on stdout with success, mistakes on stderr with exit code 2.
fn usage(error: &clap::Error) -> ExitCode {
    // A closed pipe while printing help leaves nothing to tell anybody.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}
