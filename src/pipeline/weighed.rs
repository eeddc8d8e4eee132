//! What each step of scored episodes is worth to a trainer: its credit against that of its group's other episodes.
//!
//! Owns `credit.jsonl`, a line for each step: made of the score files once a stage has come to its end, so that no group
//! is weighed by half, and read when groups are shipped. Episodes are grouped as they ship: what a run adds later changes
//! nothing that a trainer has had. A step without credit has no advantage but a reason. Deliberately absent: how
//! advantages are computed, which is `credit::advantage`.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::ship::actions::MessageForm;
use crate::ship::dataset::scored_episode;
use crate::ship::groups::group_of;
use crate::store::atomic::Pending;
use crate::store::episodes::{BadFile, Loaded, Source, load};
use crate::store::hindsight::{self, Hindsight, credit_file, credited, directory_of};
use crate::wire::fault::{Fault, object_on_line, optional, required};
use backsight_core::credit::advantage::{
    AdvantageOptions, EpisodeAdvantage, EpisodeCredit, Normalise, advantages,
};

/// How credit becomes advantages.
pub struct Weighing {
    /// The lens whose scores are taken, with its placement.
    pub lens: String,
    /// Weight of the steps' own part.
    pub omega: f64,
    /// Whether Q_H is taken after smoothing.
    pub smoothed: bool,
    /// How many episodes of a task are one group; all of them where that is not known.
    pub group_size: Option<usize>,
}

/// A scored episode.
#[cfg_attr(test, derive(Clone))]
struct Scored {
    id: String,
    task: String,
    /// Which of the task's groups it is in.
    group: usize,
    reward: f64,
    /// The credit of each step, or why it has none.
    steps: Vec<Result<StepCredit, String>>,
}

#[derive(Clone)]
struct StepCredit {
    rho: Option<f64>,
    q_h: f64,
}

/// Weighs the steps of all episodes that are scored, and writes them into the run's directory.
pub fn keep(sources: Vec<Source>, run_dir: &Path, weighing: &Weighing) -> io::Result<()> {
    let of = |loaded: Loaded| {
        let group = group_of(&loaded.episode.id, weighing.group_size);
        scored(&loaded, group, run_dir, weighing)
    };
    let all: Vec<Scored> = load(sources).flatten().filter_map(of).collect();
    let mut out = Pending::create(&run_dir.join(credit_file(&weighing.lens)))?;
    lines(&all, weighing.omega).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.commit()
}

/// An episode with the credit of its steps; none that failed or that nobody has scored.
fn scored(loaded: &Loaded, group: usize, run_dir: &Path, weighing: &Weighing) -> Option<Scored> {
    let (episode, outcome) = (&loaded.episode, loaded.episode.outcome.as_ref().ok()?);
    let found = hindsight::read(&directory_of(loaded, run_dir), &weighing.lens).transpose()?;
    let found = found.map_err(|error| error.to_string()).and_then(credited);
    // A reward may have been corrected since; what credit was computed with is what it goes with.
    let reward = found.as_ref().ok().and_then(|it| it.scores.reward.as_f64()).unwrap_or(outcome.reward);
    let steps = match found.and_then(|found| steps(loaded, found, weighing.smoothed)) {
        Ok(steps) => steps,
        Err(why) => vec![Err(why); episode.steps().len()],
    };
    Some(Scored { id: episode.id.clone(), task: episode.task.id.clone(), group, reward, steps })
}

/// The credit of each of an episode's steps, which a file may count as another loader does.
fn steps(
    loaded: &Loaded,
    found: Hindsight,
    smoothed: bool,
) -> Result<Vec<Result<StepCredit, String>>, String> {
    let (scored, _) = scored_episode(loaded, Hindsight { tokens: None, ..found }, MessageForm::Full)
        .map_err(|error| error.to_string())?;
    let by_message: HashMap<usize, usize> =
        scored.actions.iter().filter_map(|action| Some((action.message, action.step?))).collect();
    let of_step = |message_idx: usize| {
        let step = by_message.get(&message_idx).and_then(|at| scored.hindsight.scores.steps.get(*at));
        let step = step.ok_or("it was never scored")?;
        let why = || step.error.clone().unwrap_or_else(|| "no credit follows from its scores".to_owned());
        let q_h = step.credit(smoothed).ok_or_else(why)?;
        Ok(StepCredit { rho: step.rho, q_h })
    };
    Ok(loaded.episode.steps().iter().map(|step| of_step(step.message_idx)).collect())
}

/// A line for each step, episode by episode.
fn lines(all: &[Scored], omega: f64) -> Vec<Value> {
    let q = |it: &Result<StepCredit, String>| it.as_ref().ok().map(|it| it.q_h);
    let of = |it: &'_ Scored| it.steps.iter().map(q).collect();
    // Attempts at other tasks say nothing of how good this one was, nor those of other weights than the group's.
    let groups: Vec<String> = all.iter().map(|it| format!("{} {}", it.group, it.task)).collect();
    let credits = all.iter().zip(&groups);
    let credits = credits.map(|(it, group)| EpisodeCredit { task: group, reward: it.reward, q: of(it) });
    let credits: Vec<EpisodeCredit<'_>> = credits.collect();
    let weighed = advantages(&credits, &AdvantageOptions { omega, normalise: Normalise::Task });
    all.iter().zip(&weighed).flat_map(|(it, weighed)| of_episode(it, weighed)).collect()
}

fn of_episode(episode: &Scored, weighed: &EpisodeAdvantage) -> Vec<Value> {
    let line = |(idx, (credit, advantage)): (usize, (&Result<StepCredit, String>, &Option<f64>))| {
        let known = credit.as_ref().ok();
        let mut line = json!({
            "episode": episode.id, "task": episode.task, "group": episode.group, "step": idx,
            "reward": episode.reward, "reward_advantage": weighed.reward_advantage, "rho": known.and_then(|it| it.rho),
            "q_h": known.map(|it| it.q_h), "advantage": advantage,
        });
        let why = match (credit, advantage) {
            (Err(why), _) => Some(why.as_str()),
            (Ok(_), None) => Some("its advantage is no finite number"),
            (Ok(_), Some(_)) => None,
        };
        if let (Value::Object(keys), Some(why)) = (&mut line, why) {
            keys.insert("why".to_owned(), why.into());
        }
        line
    };
    episode.steps.iter().zip(&weighed.steps).enumerate().map(line).collect()
}

/// The advantages of a run's steps, by episode; a step without one is not among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advantages(HashMap<String, BTreeMap<usize, f64>>);

impl Advantages {
    /// Reads what was kept of a lens; none where nothing was.
    pub fn read(run_dir: &Path, lens: &str) -> Result<Option<Self>, BadFile> {
        let path = run_dir.join(credit_file(lens));
        let bad = |line, why: String| BadFile { path: path.clone(), line, why };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(bad(None, error.to_string())),
        };
        let mut all = Self::default();
        for (number, line) in (1..).zip(BufReader::new(file).lines()) {
            let line = line.map_err(|error| bad(Some(number), error.to_string()))?;
            let added = object_on_line(number, &line).and_then(|line| all.add(&line));
            added.map_err(|fault| bad(Some(number), fault.why))?;
        }
        Ok(Some(all))
    }

    fn add(&mut self, line: &Map<String, Value>) -> Result<(), Fault> {
        let episode = required(line, "episode", "a string", Value::as_str)?;
        let step = required(line, "step", "a whole number", Value::as_u64)?;
        // A line that does not even say that there is none was written by somebody else.
        if !line.contains_key("advantage") {
            return Err(Fault::new("there is no `advantage`"));
        }
        let finite = |it: &Value| it.as_f64().filter(|it| it.is_finite());
        let advantage = optional(line, "advantage", "a finite number or null", finite)?;
        let of_episode = self.0.entry(episode.to_owned()).or_default();
        of_episode.extend(advantage.map(|it| (step as usize, it)));
        Ok(())
    }

    /// Those of an episode, by step; none of an episode that was not scored.
    pub fn of(&self, episode: &str) -> Option<&BTreeMap<usize, f64>> {
        self.0.get(episode)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn step(q_h: f64) -> Result<StepCredit, String> {
        Ok(StepCredit { rho: Some(1.0), q_h })
    }

    fn scored(id: &str, task: &str, reward: f64, steps: Vec<Result<StepCredit, String>>) -> Scored {
        Scored { id: id.to_owned(), task: task.to_owned(), group: 0, reward, steps }
    }

    #[test]
    fn a_step_is_weighed_within_its_task_and_one_without_credit_has_a_reason() {
        let all = [
            scored("a-0", "a", 1.0, vec![step(0.5), Err("no logprob".to_owned()), step(1.5)]),
            scored("a-1", "a", 0.0, vec![step(1.0)]),
            scored("b-0", "b", 9.0, vec![step(7.0)]),
        ];
        // In `a` rewards have mean and deviation 1/2, and Q_H has mean 1 and deviation d.
        let d = (0.5_f64 / 3.0).sqrt();
        let told: Vec<_> = lines(&all, 2.0)
            .iter()
            .map(|it| {
                (it["step"].as_u64().unwrap(), it["reward_advantage"].as_f64(), it["advantage"].as_f64())
            })
            .collect();
        let expected = [
            // What is worse than the average of a good episode costs it nothing.
            (0, Some(1.0), Some(1.0)),
            (1, Some(1.0), None),
            (2, Some(1.0), Some(1.0 + 2.0 * 0.5 / d)),
            (0, Some(-1.0), Some(-1.0)),
            (0, Some(0.0), Some(0.0)),
        ];
        assert_eq!(told, expected);
        let without = json!({"episode": "a-0", "task": "a", "group": 0, "step": 1, "reward": 1.0, "reward_advantage": 1.0,
                             "rho": null, "q_h": null, "advantage": null, "why": "no logprob"});
        assert_eq!(lines(&all, 2.0)[1], without);
    }

    #[test]
    fn groups_of_one_task_are_weighed_apart() {
        let of = |id: &str, group: usize, reward: f64| Scored {
            group,
            ..scored(id, "t", reward, vec![step(1.0)])
        };
        let first = [of("t-0", 0, 1.0), of("t-1", 0, 0.0)];
        let both = first.iter().chain(&[of("t-2", 1, 9.0), of("t-3", 1, 5.0)]).cloned().collect::<Vec<_>>();
        let (alone, both) = (lines(&first, 1.0), lines(&both, 1.0));
        assert_eq!(both[..2], alone);
        assert_eq!([&both[2]["group"], &both[2]["advantage"]], [&json!(1), &json!(1.0)]);
    }

    #[test]
    fn what_is_no_number_is_none() {
        let zeros = vec![step(0.0), step(0.0), step(0.0)];
        let all = [scored("a", "t", 1.0, vec![step(1.0)]), scored("b", "t", 0.0, zeros)];
        let line = &lines(&all, f64::MAX)[0];
        let expected = (&Value::Null, &json!("its advantage is no finite number"));
        assert_eq!((&line["advantage"], &line["why"]), expected);
    }

    fn read(text: &str) -> Result<Option<Advantages>, String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("credit.jsonl"), text).unwrap();
        let name = format!("{}/", dir.path().display());
        Advantages::read(dir.path(), hindsight::PUBLISHED_LENS)
            .map_err(|it| it.to_string().replace(&name, ""))
    }

    #[test]
    fn advantages_are_read_by_episode_and_step() {
        let all =
            [scored("a/b", "t", 1.0, vec![step(0.5), Err("no".to_owned())]), scored("c", "t", 0.0, vec![])];
        let text: String = lines(&all, 1.0).iter().map(|line| format!("{line}\n")).collect();
        let found = read(&text).unwrap().unwrap();
        assert_eq!(found.of("a/b"), Some(&BTreeMap::from([(0, 1.0)])));
        assert_eq!(found.of("c"), None);
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(Advantages::read(nowhere.path(), hindsight::PUBLISHED_LENS), Ok(None));
    }

    #[test]
    fn what_cannot_be_read_is_named_by_its_line() {
        let good = "{\"episode\": \"a\", \"step\": 0, \"advantage\": 1}";
        let check = |line: &str, expected: &str| {
            assert_eq!(read(&format!("{good}\n{line}\n")).unwrap_err(), expected);
        };
        check("{\"episode\": \"a\"", "credit.jsonl line 2: not JSON: EOF while parsing an object");
        check("{\"episode\": \"a\", \"step\": 1}", "credit.jsonl line 2: there is no `advantage`");
        check(
            "{\"episode\": \"a\", \"step\": 1, \"advantage\": \"1\"}",
            "credit.jsonl line 2: `advantage` must be a finite number or null, not a string",
        );
        check(
            "{\"episode\": \"a\", \"step\": -1, \"advantage\": 1}",
            "credit.jsonl line 2: `step` must be a whole number, not a number",
        );
        check(
            "{\"episode\": \"a\", \"step\": 1, \"advantage\": 1e999}",
            "credit.jsonl line 2: not JSON: number out of range",
        );
    }
}
