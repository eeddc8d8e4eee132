//! The command line: reads what was typed, calls the library, and is the only place that prints.
//!
//! Data goes to stdout, talk to stderr. Every failure names the thing and the reason, and `help:` says
//! what to do next. Exit codes: 0 all that was asked for was made, 1 finished with losses, 2 usage or
//! unreadable input, 3 stopped early, 130 and 143 ended by SIGINT and SIGTERM.

mod call;
mod chat;
mod collect;
mod command;
mod config;
mod credit;
mod dataset;
mod distill;
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
mod run;
mod score;
mod serve;
mod server;
mod sources;
mod stdout;
mod talk;
mod taught;
mod voice;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ArgMatches;

use self::call::Call;
use self::command::COMMANDS;
use self::failure::Failure;

/// Runs the program with these arguments, the program's name first.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = match command::program().try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    arguments.first().into_iter().for_each(|word| program::started_as(word));
    let (name, matches) = called(&matches);
    let as_json = matches.try_get_one::<bool>("json").ok().flatten() == Some(&true);
    match interrupt::listen(as_json).and_then(|()| dispatch(&name, matches)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(as_json),
    }
}

/// The command that was typed, below others too, and what stands behind it.
fn called(matches: &ArgMatches) -> (String, &ArgMatches) {
    match matches.subcommand() {
        None => (String::new(), matches),
        Some((name, below)) => {
            let (rest, matches) = called(below);
            (format!("{name} {rest}").trim_end().to_owned(), matches)
        }
    }
}

fn dispatch(name: &str, matches: &ArgMatches) -> Result<(), Failure> {
    let listed = COMMANDS.iter().find(|listed| listed.name == name);
    let listed = listed.ok_or_else(|| Failure::input("no command was named", "see --help"))?;
    let call = Call::resolve(listed.name, listed.next, matches)?;
    (listed.run)(&call)?;
    if let Some(next) = call.next().filter(|_| !call.is_json() && !call.config.is("quiet")) {
        output::talk(&format!("next: {next}"));
    }
    Ok(())
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
