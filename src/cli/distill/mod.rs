//! `distill`: hints from next states, and a teacher's candidates on the student's own tokens.

mod asked;
mod dry;
mod early;
pub(super) mod table;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;
use toml::Table;

pub(super) use self::asked::Asked;
pub(super) use self::early::Early;
use crate::cli::block_on;
use crate::cli::call::Call;
use crate::cli::credit::n_episodes;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Orderly;
use crate::cli::pulse::with_pulse;
use crate::cli::server::ServerArgs;
use crate::cli::sources::sources;
use crate::cli::stdout;
use crate::cli::voice::{self, Voice};
use crate::config::{Config, File, Typed, parts};
use crate::event::{Event, counted};
use crate::hf::HuggingFace;
use crate::model::budget::ModelRole;
use crate::model::probe::require_scores;
use crate::model::{Opened, PROBE_TEXT};
use crate::pipeline::distill::{self, Current, Done, Options, Roles, Shipping, ship};
use crate::pipeline::paid::Paid;
use crate::pipeline::reader::Texts;
use crate::ship::groups::GroupOptions;
use crate::store::NewWeights;
use crate::store::episodes::Source;
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
use crate::tasks::source::load_all;
use crate::tasks::{Check, sum_of};
use backsight_chat::tokenizer::Tokenizer;

/// Episodes at once: their pairs are judged together, and what bounds them is what servers take.
const EPISODES_AT_ONCE: usize = 256;
/// The stage, and the place of its draws.
const STAGE: &str = "distill";
/// What decides every number; another value is refused.
const MEASURED: [&str; 3] = ["model", "tokenizer_sha256", "template_sha256"];

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (sources, run_dir) = (sources(&call.inputs()?)?, call.run_dir()?);
    let asked = Asked::read(call)?;
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&call.config)? };
    if call.config.is("dry_run") {
        return dry::run(call, asked, &server, sources, &run_dir);
    }
    let (summary, done) = distilled(call, asked)?;
    match call.is_json() {
        true => stdout::json(&summary.to_json())?,
        false => stdout::data(table::table(&summary).as_bytes())?,
    }
    verdict(&summary, &done)
}

/// Distils what is asked for, makes the groups, and keeps the summary.
pub(super) fn distilled(call: &Call, asked: Asked) -> Result<(Summary, Done), Failure> {
    let sources = sources(&call.inputs()?)?;
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&call.config)? };
    server.check()?;
    let voice = Voice::new(RunDir::open(&call.run_dir()?, STAGE)?, call.talk("episode"));
    let (summary, done) = block_on(work(call, asked, &server, sources, &voice))??;
    voice.run.keep_summary(&summary)?;
    Ok((summary, done))
}

async fn work(
    call: &Call,
    mut asked: Asked,
    server: &ServerArgs,
    sources: Vec<Source>,
    voice: &Arc<Voice>,
) -> Result<(Summary, Done), Failure> {
    let mut summary = Summary { stage: STAGE, ..Summary::default() };
    let n = sources.iter().map(n_episodes).sum();
    let student = server.open(&voice.notices, voice.teller()).await?;
    require_scores(&student).await?;
    let Some((path, tokenizer)) = student.tokenizer.clone() else {
        let what = "no tokenizer was named, and the server's own is not on this machine";
        let help = "name the model's directory with --tokenizer, or the model as on the hub with --model";
        return Err(Failure::input(what, help));
    };
    let texts = asked.texts(call, &path, tokenizer)?;
    let teacher = role(call, ModelRole::Teacher, true, voice).await?;
    let judge = role(call, ModelRole::Judge, false, voice).await?;
    if let Some(teacher) = &teacher {
        require_scores(teacher).await?;
        same_tokenizer(&student, teacher)?;
    }
    let (teaching, judging) = (teacher.as_ref().unwrap_or(&student), judge.as_ref().unwrap_or(&student));
    let k = k(call, teaching, voice)?;
    hidden_tests(&mut asked, voice).await;
    let seed = call.get("seed")?;
    let terms = |role| server.terms(role, STAGE, seed);
    let paid = [
        Paid::open(&student, &voice.run, terms(ModelRole::Student)).await?,
        Paid::open(teaching, &voice.run, terms(ModelRole::Teacher)).await?,
        Paid::open(judging, &voice.run, terms(ModelRole::Judge)).await?,
    ];
    let outputs = voice.run.dir().join(distill::DISTILLED);
    paid[0].note(&voice.notices, &outputs, outputs.is_dir()).await?;
    keep(call, &student, teaching, judging, &texts, voice)?;
    let settings = asked.settings(call);
    let models = [&student, teaching, judging].map(|it| it.info.model.as_str());
    let tests = asked.judging.as_ref().map(|it| it.tests.len());
    let found = json!({"k": k, "roles": models, "tests_known": tests});
    let (settings_now, found_now) = (settings.clone(), found.clone());
    let is_here = server.is_here();
    let limit = |opened: &Opened| -> Result<Option<usize>, Failure> {
        let own = opened.model.limits().context_length.map(|length| length.saturating_sub(1));
        Ok([call.get("max_context")?, own].into_iter().flatten().min())
    };
    let episode_requests = Some(call.get("episode_requests")?).filter(|n| *n > 0).unwrap_or(usize::MAX);
    let has_lens = asked.lens.is_some();
    let options = Options {
        framing: asked.framing,
        pairs: call.choice("pairs")?,
        max_chars: asked.manner.max_chars,
        judging: asked.judging.filter(|_| has_lens),
        k,
        distils: has_lens,
        student_k: student_k(call, &student)?,
        audit: call.choice("audit")?,
        audit_max_mean_diff: call.get("audit_max_mean_diff")?,
        settings,
        found,
        limits: [limit(&student)?, limit(teaching)?],
        requests_at_once: if is_here { 1 } else { episode_requests },
        episodes_at_once: if is_here { 1 } else { EPISODES_AT_ONCE },
        overwrite: call.config.is("overwrite"),
        keeps_versions: server.part.new_weights == NewWeights::Continue,
        wanted_k: call.get("distill_topk")?,
        teacher_is_live: teacher.is_none(),
        seed,
    };
    let roles = Roles {
        student: Arc::clone(&paid[0].model),
        teacher: Arc::clone(&paid[1].model),
        judge: options.judging.is_some().then(|| (Arc::clone(&paid[2].model), asked.manner)),
        texts,
    };
    if options.teacher_is_live {
        let what = "the teacher is the student's own server: as the student is trained it moves along (--teacher-url \
                    names one that stays)";
        voice.notices.add(what);
    }
    let model = format!("{} ({})", student.info.model, student.info.kind.name);
    voice.say(&Event::Began { stage: STAGE, model, unit: "episode", asked: n, found: 0 });
    voice.news();
    let told = Arc::clone(voice);
    let tell = Arc::new(move |event: &Event| {
        told.say(event);
        told.news();
    });
    let mut orderly = Orderly::begin();
    let work = distill::run(sources.clone(), roles, options, Arc::clone(&voice.run), tell, orderly.signal());
    let done = with_pulse(work, || voice.pulse()).await;
    done.count(&mut summary, n);
    let shipping = shipping(call, asked.lens, k, voice)?;
    let current = Current { settings: &settings_now, found: &found_now };
    ship(sources, &voice.run, &shipping, current, &mut summary).map_err(|error| {
        Failure::stopped(error, "free some space or mend the directory; the same command continues")
    })?;
    voice.end(&mut summary, &paid.iter().collect::<Vec<_>>()).await?;
    Ok((summary, done))
}

/// The server of a role, where it is another than the student's.
async fn role(
    call: &Call,
    role: ModelRole,
    needs_text: bool,
    voice: &Arc<Voice>,
) -> Result<Option<Opened>, Failure> {
    let prefix = format!("{}_", role.name());
    let is_own =
        ["url", "kind", "model"].iter().any(|key| !call.config.shown(&format!("{prefix}{key}")).is_empty());
    if !is_own {
        return Ok(None);
    }
    let server = ServerArgs { needs_text, ..ServerArgs::of(&call.config, role)? };
    server.check()?;
    server.open(&voice.notices, voice.teller()).await.map(Some)
}

/// Refuses a teacher for whom the student's ids are other tokens.
fn same_tokenizer(student: &Opened, teacher: &Opened) -> Result<(), Failure> {
    let help = "a teacher must have the student's tokenizer; name the teacher's with --teacher-tokenizer";
    let (Some((_, own)), Some((path, theirs))) = (&student.tokenizer, &teacher.tokenizer) else {
        return Err(Failure::input("the teacher's tokenizer is not known", help));
    };
    own.differs_from(theirs, PROBE_TEXT).map_or(Ok(()), |why| {
        let what = format!("the teacher's tokenizer at {} is not the student's: {why}", path.display());
        Err(Failure::input(what, help))
    })
}

/// How many of its own candidates the student can tell, of those that are wanted.
fn student_k(call: &Call, student: &Opened) -> Result<usize, Failure> {
    let wanted: usize = call.get("student_topk")?;
    Ok(wanted.min(student.model.limits().max_top_k.unwrap_or(usize::MAX)))
}

/// How many candidates there will be at each token.
fn k(call: &Call, teacher: &Opened, voice: &Voice) -> Result<usize, Failure> {
    let wanted: usize = call.get("distill_topk")?;
    let most = teacher.model.limits().max_top_k.unwrap_or(usize::MAX);
    if most < wanted {
        voice.notices.add(format!("the teacher gives at most {most} candidates for a token, not {wanted}"));
    }
    if most == 0 {
        let what = "the teacher gives no candidates at all";
        return Err(Failure::stopped(what, "start its server with a larger --max-logprobs"));
    }
    Ok(wanted.min(most))
}

/// Loads the tasks of a run again, so that no hint repeats their hidden tests; says so where they cannot be had.
async fn hidden_tests(asked: &mut Asked, voice: &Voice) {
    let Some(judging) = &mut asked.judging else { return };
    let Some(stored) = voice.run.reader().config().ok().and_then(|it| it.get("collect").cloned()) else {
        voice
            .notices
            .add("hints are not compared with hidden tests: the tasks of these episodes are not known");
        return;
    };
    let stored = toml::to_string(&stored).unwrap_or_default();
    let name = voice.run.dir().join("config.toml");
    match tests_of(&name.display().to_string(), &stored).await {
        Ok((tests, n_shown)) => {
            judging.tests = tests;
            if n_shown > 0 {
                let tasks = counted(n_shown as u64, "task");
                voice
                    .notices
                    .add(format!("hints are not compared with the tests of {tasks}, which were shown"));
            }
        }
        Err(why) => voice.notices.add(format!("hints are not compared with hidden tests: {why}")),
    }
}

/// The hidden tests by task, of the tasks that a stored configuration names; and how many tasks show theirs.
async fn tests_of(name: &str, stored: &str) -> Result<(HashMap<String, String>, usize), String> {
    let file = File { name, text: stored };
    let config = Config::resolve("collect", Some(file), &Typed::new()).map_err(|error| error.to_string())?;
    let sources = parts::sources(&config).map_err(|error| error.to_string())?;
    let hub = HuggingFace::from_env(|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
    let options = parts::dataset(&config).map_err(|error| error.to_string())?;
    let loaded = load_all(&sources, &options, &hub).await.map_err(|error| error.to_string())?;
    let wanted: Option<String> = config.get("tasks_sha256").map_err(|error| error.to_string())?;
    if wanted.is_some_and(|wanted| wanted != sum_of(&loaded.tasks)) {
        return Err("the tasks are others by now".to_owned());
    }
    let (shown, hidden): (Vec<_>, Vec<_>) = loaded.tasks.into_iter().partition(|it| it.tests_shown);
    let tests = hidden.into_iter();
    let tests = tests.filter_map(|it| Some((it.task.id, it.check.as_ref().map(Check::texts)?.join("\n"))));
    Ok((tests.collect(), shown.len()))
}

/// Writes down what is asked for and of whom; another student than before is refused.
fn keep(
    call: &Call,
    student: &Opened,
    teacher: &Opened,
    judge: &Opened,
    texts: &Texts,
    voice: &Voice,
) -> Result<(), Failure> {
    let path = student.tokenizer.as_ref().map(|(path, _)| path.clone()).unwrap_or_default();
    let mut found = Table::new();
    let mut insert = |key: &str, value: String| found.insert(key.to_owned(), value.into());
    insert("model", student.info.model.clone());
    insert("server", student.info.kind.name.to_owned());
    insert("teacher", teacher.info.model.clone());
    insert("judge", judge.info.model.clone());
    insert("tokenizer_sha256", Tokenizer::sha256(&path)?);
    insert("template_sha256", texts.template_sha256());
    let decide = if call.config.is("overwrite") { &[][..] } else { &MEASURED };
    let refused = |error: RunError| match error.is_usage() {
        true => {
            Failure::input(error, "give the same, make all again with --overwrite, or name another --run")
        }
        false => error.into(),
    };
    voice.run.keep_found(&call.config.seen_from(voice.run.dir()), found, decide).map_err(refused)
}

fn shipping(call: &Call, lens: Option<String>, k: usize, voice: &Voice) -> Result<Shipping, Failure> {
    let stored = voice.run.reader().config().ok();
    let size = stored.as_ref().and_then(|it| it.get("collect")?.get("group_size")?.as_integer());
    Ok(Shipping {
        options: GroupOptions {
            lens,
            k,
            include_messages: call.get("include_messages")?,
            allow_rendered: call.get("allow_rendered")?,
            group_size: size.and_then(|it| usize::try_from(it).ok()),
        },
        ensure_scores_are_not_same: call.get("ensure_scores_are_not_same")?,
    })
}

/// The exit code and its words.
pub(super) fn verdict(summary: &Summary, done: &Done) -> Result<(), Failure> {
    if let Some(stopped) = &done.stopped {
        return Err(voice::failure(stopped));
    }
    let n_unmade = summary.lost("episodes");
    let n_lost = summary.lost("votes") + summary.lost("readings");
    match n_unmade + n_lost {
        0 => Ok(()),
        _ => Err(Failure::losses(
            format!(
                "{n_unmade} episodes, and {n_lost} votes and readings of others were lost; each says why"
            ),
            "mend the causes; the same command asks only for what is missing",
        )),
    }
}
