//! `distill`: hints from next states, and a teacher's candidates on the student's own tokens.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use toml::Table;

use super::block_on;
use super::call::Call;
use super::credit::{n_episodes, setup};
use super::episodes::sum_of;
use super::failure::Failure;
use super::interrupt::Orderly;
use super::pulse::with_pulse;
use super::server::ServerArgs;
use super::sources::sources;
use super::stdout;
use super::voice::{self, Voice};
use crate::config::{Config, File, Typed, parts};
use crate::event::Event;
use crate::hf::HuggingFace;
use crate::judge;
use crate::model::budget::ModelRole;
use crate::model::probe::require_scores;
use crate::model::{Opened, PROBE_TEXT};
use crate::pipeline::distill::{self, Done, Judging, Options, Roles, Shipping, ship};
use crate::pipeline::outline::Framing;
use crate::pipeline::paid::Paid;
use crate::pipeline::reader::Texts;
use crate::ship::groups::GroupOptions;
use crate::store::episodes::Source;
use crate::store::run::{RunDir, RunError};
use crate::store::summary::Summary;
use crate::tasks::check::Check;
use crate::tasks::source::load_all;
use backsight_chat::messages::list_from_json;
use backsight_chat::tokenizer::Tokenizer;
use backsight_core::hash::sha256;
use backsight_core::lens::{Given, Placement, key_of};

/// Episodes at once: their pairs are judged together, and what bounds them is what servers take.
const EPISODES_AT_ONCE: usize = 256;
/// The stage, and the place of its draws.
const STAGE: &str = "distill";
/// What decides every number; another value is refused.
const MEASURED: [&str; 3] = ["model", "tokenizer_sha256", "template_sha256"];

pub(super) fn run(call: &Call) -> Result<(), Failure> {
    let (summary, done) = distilled(call)?;
    match call.is_json() {
        true => stdout::json(&summary.to_json())?,
        false => stdout::data(table(&summary).as_bytes())?,
    }
    verdict(&summary, &done)
}

/// Distils what is asked for, makes the groups, and keeps the summary.
fn distilled(call: &Call) -> Result<(Summary, Done), Failure> {
    let inputs = call.inputs()?;
    let (sources, run_dir) = (sources(&inputs)?, call.run_dir()?);
    let asked = Asked::read(call)?;
    let server = ServerArgs { needs_text: true, ..ServerArgs::read(&call.config)? };
    server.check()?;
    let voice = Voice::new(RunDir::open(&run_dir, STAGE)?, call.talk("episode"));
    let (summary, done) = block_on(work(call, asked, &server, sources, &voice))??;
    voice.run.keep_summary(&summary)?;
    Ok((summary, done))
}

/// What was typed, with the files it names.
struct Asked {
    framing: Framing,
    judging: Option<Judging>,
    manner: judge::Manner,
    /// The lens whose rows ship; none where nothing is distilled.
    lens: Option<String>,
}

impl Asked {
    fn read(call: &Call) -> Result<Self, Failure> {
        let name: String = call.get("lens")?;
        let placement: Placement = call.choice("hint_placement")?;
        let exchange = exchange(call)?;
        let is_hint = match name.as_str() {
            "hint" => true,
            "plain" => false,
            other => {
                let what =
                    format!("actions are distilled under hints or as they are, not through the lens {other}");
                return Err(Failure::input(what, "choose --lens hint or --lens plain"));
            }
        };
        if (placement == Placement::Turns) != exchange.is_some() {
            let what = "a worked exchange and its placement belong together";
            return Err(Failure::input(
                what,
                "name both --hint-placement turns and --hint-exchange-file FILE, or none",
            ));
        }
        let judging = Judging {
            quorum: call.choice("verdict")?,
            choice: call.choice("hint_choice")?,
            leak_words: call.get("hint_leak_words")?,
            tests: HashMap::new(),
            evaluates: call.get("judge_evaluates")?,
            placement,
            placebo: call.get("placebo")?,
            exchange,
        };
        let manner = judge::Manner {
            votes: call.get("prm_votes")?,
            answer_tokens: call.get("judge_answer_tokens")?,
            temperature: call.get("judge_temperature")?,
            structured: call.get("judge_structured")?,
            max_chars: call.get("hint_max_next_state_chars")?,
        };
        let is_on: bool = call.get("opd_enabled")?;
        let key = key_of(&name, is_hint.then_some(placement));
        Ok(Self {
            framing: setup::framing(call)?,
            judging: is_hint.then_some(judging),
            manner,
            lens: is_on.then_some(key),
        })
    }

    /// Everything that decides what a file says, by name.
    fn settings(&self, call: &Call, k: usize, terms: &[&str]) -> Result<Value, Failure> {
        let shown = |key: &&str| ((*key).to_owned(), json!(call.config.shown(key)));
        let mut all: serde_json::Map<String, Value> = SETTINGS.iter().map(shown).collect();
        all.insert("k".to_owned(), json!(k));
        all.insert("roles".to_owned(), json!(terms));
        let tests = self.judging.as_ref().map(|it| it.tests.len());
        all.insert("tests_known".to_owned(), json!(tests));
        all.insert(
            "exchange".to_owned(),
            json!(self.judging.as_ref().map(|it| sha256(format!("{:?}", it.exchange)))),
        );
        all.insert("framing".to_owned(), json!(sha256(format!("{:?}", self.framing))));
        Ok(Value::Object(all))
    }
}

/// The keys that decide what is distilled from an episode.
const SETTINGS: [&str; 17] = [
    "lens",
    "pairs",
    "prm_votes",
    "verdict",
    "hint_choice",
    "hint_placement",
    "hint_leak_words",
    "hint_max_next_state_chars",
    "judge_answer_tokens",
    "judge_temperature",
    "judge_structured",
    "judge_evaluates",
    "placebo",
    "audit",
    "audit_max_mean_diff",
    "seed",
    "max_context",
];

fn exchange(call: &Call) -> Result<Option<Given>, Failure> {
    let Some(text) = call.file("hint_exchange_file")? else { return Ok(None) };
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::input(
            format!("--hint-exchange-file: {why}"),
            "give a JSON list of messages with role and content",
        )
    };
    let json: Value = serde_json::from_str(&text).map_err(|error| wrong(&error))?;
    match list_from_json(&json) {
        Ok(messages) if !messages.is_empty() => Ok(Some(Given::Exchange(messages))),
        Ok(_) => Err(wrong(&"there is no message in it")),
        Err(error) => Err(wrong(&error)),
    }
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
    let texts = texts(call, &student, &mut asked.framing)?;
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
    let models = [&student, teaching, judging].map(|it| it.info.model.as_str());
    let settings = asked.settings(call, k, &models)?;
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
        audit: call.choice("audit")?,
        audit_max_mean_diff: call.get("audit_max_mean_diff")?,
        settings,
        limits: [limit(&student)?, limit(teaching)?],
        requests_at_once: if is_here { 1 } else { episode_requests },
        episodes_at_once: if is_here { 1 } else { EPISODES_AT_ONCE },
        overwrite: call.config.is("overwrite"),
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
    ship(sources, &voice.run, &shipping, &mut summary).map_err(|error| {
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

fn texts(call: &Call, student: &Opened, framing: &mut Framing) -> Result<Texts, Failure> {
    let Some((path, tokenizer)) = student.tokenizer.clone() else {
        let what = "no tokenizer was named, and the server's own is not on this machine";
        let help = "name the model's directory with --tokenizer, or the model as on the hub with --model";
        return Err(Failure::input(what, help));
    };
    let template: Option<PathBuf> = call.get("template")?;
    let texts = Texts::open(&path, tokenizer, template.as_deref(), &framing.vars)?;
    if call.config.shown("tool_text") == ["auto"] {
        framing.tool_text = texts.needed_tool_text(!framing.tools.is_empty());
    }
    Ok(texts)
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
        Ok(tests) => judging.tests = tests,
        Err(why) => voice.notices.add(format!("hints are not compared with hidden tests: {why}")),
    }
}

/// The hidden tests by task, of the tasks that a stored configuration names.
async fn tests_of(name: &str, stored: &str) -> Result<HashMap<String, String>, String> {
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
    let hidden = loaded.tasks.into_iter().filter(|it| !it.tests_shown);
    let tests = hidden.filter_map(|it| Some((it.task.id, it.check.as_ref().map(Check::texts)?.join("\n"))));
    Ok(tests.collect())
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

/// What there is now, in a few lines.
fn table(summary: &Summary) -> String {
    let made = |what| summary.made(what);
    let mut text = format!(
        "episodes   {} distilled, {} kept, {} lost, {} left\n",
        made("episodes"),
        made("kept_episodes"),
        summary.lost("episodes"),
        summary.left
    );
    let number = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |it| format!("{it:.3}"));
    let more = |key: &str| summary.more.get(key).unwrap_or(&Value::Null);
    let votes = more("votes");
    text.push_str(&format!(
        "votes      {} asked: {} for a hint, {} against, {} unreadable, {} failed; agreement {}\n",
        votes["asked"],
        votes["for"],
        votes["against"],
        votes["unreadable"],
        votes["failed"],
        number(&votes["agreement"])
    ));
    let leaks = more("leaks");
    text.push_str(&format!(
        "hints      {} of {} pairs; {} dropped that repeat the next state, {} hidden tests\n",
        made("hints"),
        more("pairs"),
        leaks["next_state"],
        leaks["tests"]
    ));
    for (lens, gap) in more("gap").as_object().into_iter().flatten() {
        text.push_str(&format!(
            "gap        {lens}: {} tokens, mean {} ± {}, {} of them beyond 1 nat, {} on the first two tokens\n",
            gap["tokens"], number(&gap["mean"]), number(&gap["spread"]), number(&gap["share_above_1"]),
            number(&gap["share_opening"])
        ));
    }
    text.push_str(&format!(
        "groups     {} with {} episodes, {} trained tokens, {} with targets\n",
        made("groups"),
        made("shipped_episodes"),
        made("trained_tokens"),
        made("shipped_tokens")
    ));
    for (what, reasons) in &summary.lost {
        for (why, n) in reasons {
            text.push_str(&format!("lost       {n} {what}: {}\n", super::output::one_line(why)));
        }
    }
    for (role, paid) in &summary.paid {
        text.push_str(&format!(
            "paid       {}: {} requests, {} tokens sent ({} of them cached), {} sampled\n",
            role.name(),
            paid.requests,
            paid.prompt_tokens,
            paid.cached_tokens,
            paid.completion_tokens
        ));
    }
    text.push_str(&format!("seconds    {:.1}\n", summary.seconds));
    text
}

/// The exit code and its words.
fn verdict(summary: &Summary, done: &Done) -> Result<(), Failure> {
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
