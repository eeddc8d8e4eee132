//! Recording what a model was asked and answered, and a model that answers from such a recording.
//!
//! Owns [`Recorder`], which passes every call on and writes it to a file of one JSON object a line,
//! and [`Replay`], which looks answers up by what was asked and for which place. A request that was
//! never recorded is an error, never a guess. Deliberately absent: paying only once, which is the
//! ledger's business; a recording keeps failures too and is meant for tests and for showing.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::{Value, json};

use super::as_json;
use super::{ChatAnswer, ChatRequest, Error, GenerateRequest, Generated, Limits, Model, Scored};
use crate::score::ScoreJob;

const GENERATE: &str = "generate";
const SCORE: &str = "score";
const CHAT: &str = "chat";

/// A model whose calls are written down.
pub struct Recorder {
    inner: Arc<dyn Model>,
    path: PathBuf,
    file: Mutex<File>,
}

impl Recorder {
    /// Records the calls of `inner` to a new file.
    pub fn create(inner: Arc<dyn Model>, path: &Path) -> Result<Self, Error> {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let file = file.map_err(|why| unwritable(path, &why))?;
        let recorder = Self { inner, path: path.to_owned(), file: Mutex::new(file) };
        recorder.write(&json!({"limits": as_json::limits(recorder.inner.limits())}))?;
        Ok(recorder)
    }

    /// Writes one line in one piece, so that a reader never sees half of it unless the disk is full.
    fn write(&self, line: &Value) -> Result<(), Error> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(format!("{line}\n").as_bytes()).map_err(|why| unwritable(&self.path, &why))
    }

    fn keep<T>(
        &self,
        call: &str,
        request: Value,
        answer: Result<T, Error>,
        write: fn(&T) -> Value,
    ) -> Result<T, Error> {
        self.write(&match &answer {
            Ok(answer) => json!({"call": call, "request": request, "answer": write(answer)}),
            Err(error) => json!({"call": call, "request": request, "error": error.to_string()}),
        })?;
        answer
    }
}

#[async_trait]
impl Model for Recorder {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        let answer = self.inner.generate(request).await;
        self.keep(GENERATE, as_json::generate_request(request), answer, as_json::generated)
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        let answer = self.inner.score(job).await;
        self.keep(SCORE, as_json::score_job(job), answer, as_json::scored)
    }

    async fn score_many(&self, jobs: &[ScoreJob]) -> Vec<Result<Scored, Error>> {
        let answers = jobs.iter().zip(self.inner.score_many(jobs).await);
        answers
            .map(|(job, answer)| self.keep(SCORE, as_json::score_job(job), answer, as_json::scored))
            .collect()
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        let answer = self.inner.chat(request).await;
        self.keep(CHAT, as_json::chat_request(request), answer, as_json::chat_answer)
    }

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }
}

/// A model that answers from a recording.
#[derive(Debug)]
pub struct Replay {
    path: PathBuf,
    limits: Limits,
    answers: HashMap<String, Recorded>,
}

#[derive(Debug)]
enum Recorded {
    Answer(Value),
    Failure(String),
}

impl Replay {
    /// Reads a recording. Where a call was made more than once, its first answer counts.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |why: &dyn std::fmt::Display| Error::Invalid {
            what: format!("the recording {} cannot be read: {why}", path.display()),
            help: "make a new one".to_owned(),
        };
        let file = File::open(path).map_err(|why| unreadable(&why))?;
        let mut replay = Self { path: path.to_owned(), limits: Limits::default(), answers: HashMap::new() };
        for (index, line) in BufReader::new(file).lines().enumerate() {
            let line = line.map_err(|why| unreadable(&why))?;
            let at = |why: &dyn std::fmt::Display| unreadable(&format!("line {}: {why}", index + 1));
            let json: Value = serde_json::from_str(&line).map_err(|why| at(&why))?;
            replay.take(json).ok_or_else(|| at(&"not a recorded call"))?;
        }
        Ok(replay)
    }

    /// Takes one line; `None` when it is none of ours.
    fn take(&mut self, mut json: Value) -> Option<()> {
        if let Some(limits) = json.get("limits") {
            self.limits = as_json::to_limits(limits)?;
            return Some(());
        }
        let key = key(json.get("call")?.as_str()?, json.get("request")?);
        let recorded = match json.get_mut("answer").map(Value::take) {
            Some(answer) => Recorded::Answer(answer),
            None => Recorded::Failure(json.get("error")?.as_str()?.to_owned()),
        };
        if !matches!(self.answers.get(&key), Some(Recorded::Answer(_))) {
            self.answers.insert(key, recorded);
        }
        Some(())
    }

    fn find<T>(&self, call: &str, request: &Value, read: fn(&Value) -> Option<T>) -> Result<T, Error> {
        let file = self.path.display();
        let what = match self.answers.get(&key(call, request)) {
            Some(Recorded::Answer(answer)) => match read(answer) {
                Some(answer) => return Ok(answer),
                None => format!("the recording {file} has an answer to a {call} call that cannot be read"),
            },
            Some(Recorded::Failure(why)) => format!("the recorded call failed: {why}"),
            None => format!("the recording {file} has no such {call} call{}", place_of(request)),
        };
        Err(Error::Invalid { what, help: "record it again with the model itself".to_owned() })
    }
}

#[async_trait]
impl Model for Replay {
    async fn generate(&self, request: &GenerateRequest) -> Result<Generated, Error> {
        self.find(GENERATE, &as_json::generate_request(request), as_json::to_generated)
    }

    async fn score(&self, job: &ScoreJob) -> Result<Scored, Error> {
        self.find(SCORE, &as_json::score_job(job), as_json::to_scored)
    }

    async fn chat(&self, request: &ChatRequest) -> Result<ChatAnswer, Error> {
        self.find(CHAT, &as_json::chat_request(request), as_json::to_chat_answer)
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }
}

fn key(call: &str, request: &Value) -> String {
    format!("{call} {request}")
}

/// Where the request belongs, for messages.
fn place_of(request: &Value) -> String {
    match request.get("place") {
        Some(place) => format!(" for the place {place}"),
        None => String::new(),
    }
}

fn unwritable(path: &Path, why: &std::io::Error) -> Error {
    Error::Invalid {
        what: format!("the recording {} cannot be written: {why}", path.display()),
        help: "choose a file that does not exist, on a disk with room".to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::super::scripted::{Asked, Scripted};
    use super::super::{Finish, Place, Sampling};
    use super::*;
    use crate::episode::{Arguments, Message, Role, ToolCall};
    use crate::tokens::TokenSpan;

    fn sampling() -> Sampling {
        Sampling {
            temperature: 0.7,
            top_p: 0.9,
            top_k: Some(5),
            seed: Some(u64::MAX),
            max_tokens: 6,
            constraint: None,
        }
    }

    fn generate(vote: usize) -> GenerateRequest {
        let place = Place { task: "t".into(), episode: 1, step: 2, vote };
        GenerateRequest { prompt: vec![1, 2], sampling: sampling(), stop_ids: vec![0], top_k: 3, place }
    }

    fn chat() -> ChatRequest {
        let messages = vec![Message::text(Role::User, "hi")];
        ChatRequest { messages, tools: vec![], sampling: sampling(), place: Place::default() }
    }

    fn job(end: usize) -> ScoreJob {
        let span = TokenSpan::new(0, end).unwrap();
        ScoreJob::new(Arc::from([5, 6, 7, 8]), vec![span, TokenSpan::at(2, 1)], 2).unwrap()
    }

    fn calling() -> Message {
        let object = json!({"b": 1, "a": [2.5, "x"]}).as_object().unwrap().clone();
        let call = ToolCall { id: None, name: "f".into(), arguments: Arguments::Object(object) };
        Message { content: None, tool_calls: vec![call], ..Message::text(Role::Assistant, "") }
    }

    #[tokio::test]
    async fn what_was_recorded_is_replayed_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        let model = Arc::new(Scripted::new(40).on_chat(|_| Some(calling())));
        let recorder = Recorder::create(model.clone(), &path).unwrap();
        let drawn = recorder.generate(&generate(0)).await.unwrap();
        let scored = recorder.score(&job(3)).await.unwrap();
        let said = recorder.chat(&chat()).await.unwrap();
        let replay = Replay::open(&path).unwrap();
        assert_eq!(replay.generate(&generate(0)).await, Ok(drawn));
        assert_eq!(replay.score(&job(3)).await, Ok(scored));
        assert_eq!(replay.chat(&chat()).await.as_ref(), Ok(&said));
        assert_eq!((said.message, said.finish), (calling(), Finish::ToolCalls));
        assert_eq!(replay.limits(), model.limits());
    }

    #[tokio::test]
    async fn an_unknown_request_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        let recorder = Recorder::create(Arc::new(Scripted::new(40)), &path).unwrap();
        recorder.generate(&generate(0)).await.unwrap();
        let replay = Replay::open(&path).unwrap();
        let why = replay.generate(&generate(1)).await.unwrap_err().to_string();
        let place = r#"{"task":"t","episode":1,"step":2,"vote":1}"#;
        let file = path.display();
        assert_eq!(why, format!("the recording {file} has no such generate call for the place {place}"));
        let why = replay.score(&job(3)).await.unwrap_err().to_string();
        assert_eq!(why, format!("the recording {file} has no such score call"));
    }

    #[tokio::test]
    async fn a_success_counts_more_than_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        let fails = |asked: Asked<'_>, nth| {
            let error = Error::Garbled { server: "s".into(), why: "cut".into() };
            (nth == 0 || matches!(asked, Asked::Chat(_))).then_some(error)
        };
        let recorder = Recorder::create(Arc::new(Scripted::new(40).failing(fails)), &path).unwrap();
        assert!(recorder.score(&job(3)).await.is_err());
        let scored = recorder.score(&job(3)).await;
        assert!(recorder.chat(&chat()).await.is_err());
        let replay = Replay::open(&path).unwrap();
        assert_eq!(replay.score(&job(3)).await, scored);
        let why = replay.chat(&chat()).await.unwrap_err().to_string();
        assert_eq!(why, "the recorded call failed: s answered with something unusable: cut");
    }

    #[test]
    fn a_file_that_is_no_recording_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("calls.jsonl");
        std::fs::write(&path, "{\"limits\": {}}\n").unwrap();
        let why = Replay::open(&path).unwrap_err().to_string();
        assert!(why.ends_with("cannot be read: line 1: not a recorded call"), "{why}");
        assert!(Recorder::create(Arc::new(Scripted::new(4)), &path).is_err());
    }
}
