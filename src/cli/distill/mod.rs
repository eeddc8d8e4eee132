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
use crate::cli::credit::setup::known_tokenizer;
use crate::cli::credit::{n_episodes, refused};
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
use crate::model::{Opened, PROBE_TEXT, ServerInfo};
use crate::pipeline::distill::{self, Current, Options, Reports, Roles, Shipping, ship};
use crate::pipeline::paid::Paid;
use crate::pipeline::reader::Texts;
use crate::pipeline::weighed::Advantages;
use crate::ship::groups::GroupOptions;
use crate::store::NewWeights;
use crate::store::episodes::Source;
use crate::store::hindsight::{PUBLISHED_LENS, credit_file};
use crate::store::run::RunDir;
use crate::store::summary::Summary;
use crate::tasks::source::load_all;
use crate::tasks::{Check, CodingTask, sum_of};
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
        advantages(call)?;
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
pub(super) fn distilled(call: &Call, asked: Asked) -> Result<(Summary, Reports), Failure> {
    let sources = sources(&call.inputs()?)?;
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&call.config)? };
    server.check()?;
    let advantages = advantages(call)?;
    let voice = Voice::new(RunDir::open(&call.run_dir()?, STAGE)?, call.talk("episode"));
    let (summary, done) = block_on(work(call, asked, advantages, &server, sources, &voice))??;
    voice.run.keep_summary(&summary)?;
    Ok((summary, done))
}

/// Who is asked: a role without a server of its own is the student's.
struct Servers {
    student: Opened,
    teacher: Option<Opened>,
    judge: Option<Opened>,
}

impl Servers {
    async fn open(call: &Call, student: Opened, voice: &Arc<Voice>) -> Result<Self, Failure> {
        require_scores(&student).await?;
        let teacher = role(call, ModelRole::Teacher, true, voice).await?;
        let judge = role(call, ModelRole::Judge, false, voice).await?;
        if let Some(teacher) = &teacher {
            require_scores(teacher).await?;
            same_tokenizer(&student, teacher)?;
        }
        Ok(Self { student, teacher, judge })
    }

    fn teacher(&self) -> &Opened {
        self.teacher.as_ref().unwrap_or(&self.student)
    }

    fn judge(&self) -> &Opened {
        self.judge.as_ref().unwrap_or(&self.student)
    }

    /// The three of them behind the ledger: student, teacher, judge.
    async fn paid(&self, server: &ServerArgs, seed: u64, run: &RunDir) -> Result<[Paid; 3], Failure> {
        let terms = |role| server.terms(role, STAGE, seed);
        Ok([
            Paid::open(&self.student, run, terms(ModelRole::Student)).await?,
            Paid::open(self.teacher(), run, terms(ModelRole::Teacher)).await?,
            Paid::open(self.judge(), run, terms(ModelRole::Judge)).await?,
        ])
    }
}

/// What distilling works with.
struct Setup {
    servers: Servers,
    paid: [Paid; 3],
    roles: Roles,
    options: Options,
}

impl Setup {
    async fn open(
        call: &Call,
        mut asked: Asked,
        server: &ServerArgs,
        servers: Servers,
        voice: &Arc<Voice>,
    ) -> Result<Self, Failure> {
        let (path, tokenizer) = known_tokenizer(&servers.student)?;
        let texts = asked.texts(call, &path, tokenizer)?;
        let k = [student_k(call, &servers.student, voice)?, k(call, servers.teacher(), voice)?];
        let paid = servers.paid(server, call.get("seed")?, &voice.run).await?;
        let (manner, options) = (asked.manner, options(call, asked, server, &servers, k)?);
        let roles = Roles {
            student: Arc::clone(&paid[0].model),
            teacher: Arc::clone(&paid[1].model),
            judge: options.judging.is_some().then(|| (Arc::clone(&paid[2].model), manner)),
            texts,
        };
        Ok(Self { servers, paid, roles, options })
    }
}

async fn work(
    call: &Call,
    mut asked: Asked,
    advantages: Option<Advantages>,
    server: &ServerArgs,
    sources: Vec<Source>,
    voice: &Arc<Voice>,
) -> Result<(Summary, Reports), Failure> {
    let mut summary = Summary { stage: STAGE, ..Summary::default() };
    let n = sources.iter().map(n_episodes).sum();
    let servers = Servers::open(call, server.open(&voice.notices, voice.teller()).await?, voice).await?;
    hidden_tests(&mut asked, voice).await;
    let lens = asked.lens.clone();
    let Setup { servers, paid, roles, options } = Setup::open(call, asked, server, servers, voice).await?;
    let outputs = voice.run.dir().join(distill::DISTILLED);
    paid[0].note(&voice.notices, &outputs, outputs.is_dir()).await?;
    keep(call, &servers, &roles.texts, voice)?;
    let shipping = shipping(call, lens, advantages, options.width(), voice)?;
    let (settings, found) = (options.settings.clone(), options.found.clone());
    if options.teacher_is_live {
        let what = "the teacher is the student's own server: as the student is trained it moves along (--teacher-url \
                    names one that stays)";
        voice.notices.add(what);
    }
    let ServerInfo { model, kind, .. } = &servers.student.info;
    let model = format!("{model} ({})", kind.name);
    voice.say(&Event::Began { stage: STAGE, model, unit: "episode", asked: n, found: 0 });
    voice.news();
    let done = told(sources.clone(), roles, options, voice).await;
    done.count(&mut summary, n);
    let current = Current { settings: &settings, found: &found };
    ship(sources, &voice.run, &shipping, current, &mut summary).map_err(|error| {
        Failure::stopped(error, "free some space or mend the directory; the same command continues")
    })?;
    voice.end(&mut summary, &paid.iter().collect::<Vec<_>>()).await?;
    Ok((summary, done))
}

/// Distils, and tells how far that is.
async fn told(sources: Vec<Source>, roles: Roles, options: Options, voice: &Arc<Voice>) -> Reports {
    let voice_of_work = Arc::clone(voice);
    let tell = Arc::new(move |event: &Event| {
        voice_of_work.say(event);
        voice_of_work.news();
    });
    let mut orderly = Orderly::begin();
    let work = distill::run(sources, roles, options, Arc::clone(&voice.run), tell, orderly.signal());
    with_pulse(work, || voice.pulse()).await
}

/// What is asked of the pipeline.
fn options(
    call: &Call,
    asked: Asked,
    server: &ServerArgs,
    servers: &Servers,
    [student_k, k]: [usize; 2],
) -> Result<Options, Failure> {
    let settings = asked.settings(call);
    let models = [&servers.student, servers.teacher(), servers.judge()].map(|it| it.info.model.as_str());
    let tests = asked.judging.as_ref().map(|it| it.tests.len());
    let max_context: Option<usize> = call.get("max_context")?;
    // A token is left for what a server samples where it is only to score.
    let own = |opened: &Opened| opened.model.limits().context_length.map(|length| length.saturating_sub(1));
    let limit = |opened: &Opened| [max_context, own(opened)].into_iter().flatten().min();
    let episode_requests = Some(call.get("episode_requests")?).filter(|n| *n > 0).unwrap_or(usize::MAX);
    let (is_here, distils) = (server.is_here(), asked.lens.is_some());
    Ok(Options {
        framing: asked.framing,
        pairs: call.choice("pairs")?,
        max_chars: asked.manner.max_chars,
        judging: asked.judging.filter(|_| distils),
        k,
        distils,
        student_k,
        at_student: call.get("at_student_topk")?,
        audit: call.choice("audit")?,
        audit_max_mean_diff: call.get("audit_max_mean_diff")?,
        settings,
        found: json!({"k": k, "student_k": student_k, "roles": models, "tests_known": tests}),
        limits: [limit(&servers.student), limit(servers.teacher())],
        requests_at_once: if is_here { 1 } else { episode_requests },
        episodes_at_once: if is_here { 1 } else { EPISODES_AT_ONCE },
        overwrite: call.config.is("overwrite"),
        keeps_versions: server.part.new_weights == NewWeights::Continue,
        wanted_k: call.get("distill_topk")?,
        teacher_is_live: servers.teacher.is_none(),
        seed: call.get("seed")?,
    })
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
fn student_k(call: &Call, student: &Opened, voice: &Voice) -> Result<usize, Failure> {
    let wanted: usize = call.get("student_topk")?;
    let most = student.model.limits().max_top_k.unwrap_or(usize::MAX);
    if !call.get("at_student_topk")? || most >= wanted {
        return Ok(wanted.min(most));
    }
    if most == 0 {
        let what = "the student gives no candidates that a teacher could be asked about";
        return Err(Failure::stopped(what, "start its server with a larger --max-logprobs"));
    }
    voice.notices.add(format!("the student gives at most {most} candidates for a token, not {wanted}"));
    Ok(most)
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
    let n_shown = loaded.tasks.iter().filter(|it| it.tests_shown).count();
    Ok((hidden(loaded.tasks.iter()).collect(), n_shown))
}

/// The tests that the student is not shown, by task.
fn hidden<'a>(tasks: impl Iterator<Item = &'a CodingTask>) -> impl Iterator<Item = (String, String)> {
    let tests = |it: &CodingTask| Some((it.task.id.clone(), it.check.as_ref().map(Check::texts)?.join("\n")));
    tasks.filter(|it| !it.tests_shown).filter_map(tests)
}

/// Writes down what is asked for and of whom; another student than before is refused.
fn keep(call: &Call, servers: &Servers, texts: &Texts, voice: &Voice) -> Result<(), Failure> {
    let (path, _) = known_tokenizer(&servers.student)?;
    let mut found = Table::new();
    let mut insert = |key: &str, value: String| found.insert(key.to_owned(), value.into());
    insert("model", servers.student.info.model.clone());
    insert("server", servers.student.info.kind.name.to_owned());
    insert("teacher", servers.teacher().info.model.clone());
    insert("judge", servers.judge().info.model.clone());
    insert("tokenizer_sha256", Tokenizer::sha256(&path)?);
    insert("template_sha256", texts.template_sha256());
    let decide = if call.config.is("overwrite") { &[][..] } else { &MEASURED };
    voice.run.keep_found(&call.config.seen_from(voice.run.dir()), found, decide).map_err(refused)
}

/// What the steps of the run are worth, where that ships; refused where nobody has credited them.
fn advantages(call: &Call) -> Result<Option<Advantages>, Failure> {
    if !call.config.is("ship_credit") {
        return Ok(None);
    }
    let dir = call.run_dir()?;
    let found = Advantages::read(&dir, PUBLISHED_LENS)
        .map_err(|error| Failure::input(error, "make it again: score the episodes with backsight credit"))?;
    found.map(Some).ok_or_else(|| {
        let what = format!("{}: there is no {} to ship", dir.display(), credit_file(PUBLISHED_LENS));
        Failure::input(what, "score the episodes with backsight credit first, or leave out --ship-credit")
    })
}

fn shipping(
    call: &Call,
    lens: Option<String>,
    advantages: Option<Advantages>,
    k: usize,
    voice: &Voice,
) -> Result<Shipping, Failure> {
    Ok(Shipping {
        options: GroupOptions {
            lens,
            k,
            at_student: call.get("at_student_topk")?,
            include_messages: call.get("include_messages")?,
            allow_rendered: call.get("allow_rendered")?,
            group_size: voice.run.reader().group_size(),
        },
        ensure_scores_are_not_same: call.get("ensure_scores_are_not_same")?,
        advantages,
    })
}

/// The exit code and its words.
pub(super) fn verdict(summary: &Summary, done: &Reports) -> Result<(), Failure> {
    let n_unmade = summary.lost("episodes");
    let n_lost = summary.lost("votes") + summary.lost("readings");
    let what =
        format!("{n_unmade} episodes, and {n_lost} votes and readings of others were lost; each says why");
    let help = "mend the causes; the same command asks only for what is missing";
    voice::verdict(done.stopped.as_ref(), n_unmade + n_lost, what, help)
}
