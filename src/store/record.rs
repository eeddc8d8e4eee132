//! Answers as bytes, and back, bit for bit.
//!
//! Owns the encoding of what the ledger stores. Logprobs keep every bit; absences keep their reason.
//! Scores and samples are binary, because a row of candidates per token is most of a ledger; what a
//! chat answered is JSON. Reading never trusts the bytes: a damaged record is an error, not a number.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::{ChatAnswer, Finish, Generated, SampledToken, Scored, ToldVersion, Usage};
use backsight_core::episode::{Arguments, Content, Message, Role, ToolCall};
use backsight_core::score::{Absence, SpanScore, TokenScore};
use backsight_core::tokens::{Logprob, TokenSpan, TopK};

/// Something the ledger can keep.
pub trait Record: Sized {
    /// What it is, as the ledger's file names it.
    const KIND: &'static str;
    /// Whether it was drawn: then it is kept whatever becomes of the weights, since it cannot be had again.
    const IS_DRAW: bool = true;

    /// The bytes to store.
    fn encode(&self) -> Vec<u8>;

    /// What was stored.
    fn decode(bytes: &[u8]) -> Result<Self, Damaged>;

    /// What it cost.
    fn usage(&self) -> Usage;

    /// Whether every number is there that was asked for.
    fn is_whole(&self) -> bool {
        true
    }

    /// The weights as the server names them; of several the last.
    fn told(&self) -> Option<&str> {
        None
    }
}

/// The bytes are not what was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record is damaged: {0}")]
pub struct Damaged(pub String);

/// The first byte: the version of the encoding.
const VERSION: u8 = 2;

impl Record for Scored {
    const KIND: &'static str = "score";
    const IS_DRAW: bool = false;

    fn encode(&self) -> Vec<u8> {
        let positions = || self.spans.iter().flat_map(SpanScore::scores);
        let floats =
            positions().flat_map(|it| it.logprob.iter().chain(it.top.entries().iter().map(|it| &it.1)));
        let mut out = Writer::new(floats);
        out.usage(self.usage);
        out.version(self.version.as_deref());
        out.number(self.spans.len() as u64);
        for span in &self.spans {
            out.number(span.span().start() as u64);
            out.number(span.span().len() as u64);
            span.scores().iter().for_each(|score| out.token_score(score));
        }
        out.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes)?;
        let usage = reader.usage()?;
        let version = reader.version()?;
        let n_spans = reader.count()?;
        let spans = (0..n_spans).map(|_| reader.span_score()).collect::<Result<_, _>>()?;
        reader.finish(Self { spans, version, usage })
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    /// The first token of a sequence has no context, and so nothing that could be lacking.
    fn is_whole(&self) -> bool {
        let mut absent = self.spans.iter().flat_map(SpanScore::absent);
        absent.all(|(_, why)| *why == Absence::NoContext)
    }

    fn told(&self) -> Option<&str> {
        self.version.as_deref()
    }
}

impl Record for Generated {
    const KIND: &'static str = "generate";

    fn encode(&self) -> Vec<u8> {
        let tops = |it: &SampledToken| it.top.entries().iter().map(|it| it.1).collect::<Vec<_>>();
        let floats: Vec<Logprob> =
            self.tokens.iter().flat_map(|it| it.logprob.into_iter().chain(tops(it))).collect();
        let mut out = Writer::new(floats.iter());
        out.usage(self.usage);
        out.ending(&self.finish);
        out.versions(&self.versions);
        out.number(self.tokens.len() as u64);
        for token in &self.tokens {
            out.number(u64::from(token.id));
            out.option(token.logprob);
            out.top(&token.top);
        }
        out.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes)?;
        let usage = reader.usage()?;
        let finish = reader.ending()?;
        let versions = reader.versions()?;
        let n_tokens = reader.count()?;
        let tokens = (0..n_tokens).map(|_| reader.sampled_token()).collect::<Result<_, _>>()?;
        reader.finish(Self { tokens, finish, versions, usage })
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn told(&self) -> Option<&str> {
        self.versions.last().map(|it| it.version.as_str())
    }
}

impl Record for ChatAnswer {
    const KIND: &'static str = "chat";

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new([].iter());
        out.usage(self.usage);
        out.ending(&self.finish);
        // A struct of strings and JSON values always serialises.
        out.text(serde_json::to_string(&StoredMessage::from(&self.message)).unwrap_or_default().as_str());
        out.bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        let mut reader = Reader::new(bytes)?;
        let usage = reader.usage()?;
        let finish = reader.ending()?;
        let stored: StoredMessage =
            serde_json::from_str(reader.text()?).map_err(|why| Damaged(why.to_string()))?;
        let message = stored.into_message()?;
        reader.finish(Self { message, finish, usage })
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

/// Appends values to a growing buffer.
struct Writer {
    bytes: Vec<u8>,
    narrow: bool,
}

impl Writer {
    /// A buffer for a record with these logprobs. Servers compute in 32 bits; where every value fits
    /// into those without loss, half the room is enough.
    fn new<'a>(mut floats: impl Iterator<Item = &'a Logprob>) -> Self {
        let narrow = floats.all(|it| f64::from(it.get() as f32).to_bits() == it.get().to_bits());
        Self { bytes: vec![VERSION, u8::from(narrow)], narrow }
    }

    /// Seven bits per byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn logprob(&mut self, logprob: Logprob) {
        if self.narrow {
            self.bytes.extend_from_slice(&(logprob.get() as f32).to_le_bytes());
        } else {
            self.bytes.extend_from_slice(&logprob.get().to_le_bytes());
        }
    }

    fn option(&mut self, logprob: Option<Logprob>) {
        self.bytes.push(u8::from(logprob.is_some()));
        if let Some(logprob) = logprob {
            self.logprob(logprob);
        }
    }

    fn top(&mut self, top: &TopK) {
        self.number(top.entries().len() as u64);
        for &(id, logprob) in top.entries() {
            self.number(u64::from(id));
            self.logprob(logprob);
        }
    }

    fn token_score(&mut self, score: &TokenScore) {
        match &score.logprob {
            Ok(logprob) => {
                self.bytes.push(0);
                self.logprob(*logprob);
            }
            Err(Absence::NoContext) => self.bytes.push(1),
            Err(Absence::NotReturned) => self.bytes.push(2),
            Err(Absence::NotALogprob(why)) => {
                self.bytes.push(3);
                self.text(why);
            }
        }
        self.top(&score.top);
    }

    fn ending(&mut self, finish: &Finish) {
        match finish {
            Finish::Stop => self.bytes.push(0),
            Finish::Length => self.bytes.push(1),
            Finish::ToolCalls => self.bytes.push(2),
            Finish::Other(other) => {
                self.bytes.push(3);
                self.text(other);
            }
        }
    }

    fn version(&mut self, version: Option<&str>) {
        self.bytes.push(u8::from(version.is_some()));
        if let Some(version) = version {
            self.text(version);
        }
    }

    fn versions(&mut self, versions: &[ToldVersion]) {
        self.number(versions.len() as u64);
        for ToldVersion { version, span } in versions {
            self.text(version);
            self.number(span.start() as u64);
            self.number(span.len() as u64);
        }
    }

    fn usage(&mut self, usage: Usage) {
        self.number(usage.prompt_tokens);
        // Zero is "not told"; what was told is kept one higher.
        self.number(usage.cached_tokens.map_or(0, |cached| cached.saturating_add(1)));
        self.number(usage.completion_tokens);
    }
}

/// Takes values from the front of a record.
struct Reader<'a> {
    rest: &'a [u8],
    narrow: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Result<Self, Damaged> {
        match bytes {
            [VERSION, narrow @ 0..=1, rest @ ..] => Ok(Self { rest, narrow: *narrow == 1 }),
            _ => Err(Damaged("it begins with no known version".to_owned())),
        }
    }

    /// `value`, provided that nothing is left over.
    fn finish<T>(self, value: T) -> Result<T, Damaged> {
        if self.rest.is_empty() {
            Ok(value)
        } else {
            Err(Damaged(format!("{} bytes too many", self.rest.len())))
        }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) =
            self.rest.split_at_checked(n).ok_or_else(|| Damaged("it ends too early".to_owned()))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| Damaged("it ends too early".to_owned()))
    }

    fn number(&mut self) -> Result<u64, Damaged> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Damaged("a number is too long".to_owned()))
    }

    /// How many items follow; never more than bytes that are left, so that memory is not set aside for nothing.
    fn count(&mut self) -> Result<usize, Damaged> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count <= self.rest.len() { Ok(count) } else { Err(Damaged("it ends too early".to_owned())) }
    }

    fn text(&mut self) -> Result<&'a str, Damaged> {
        let len = self.count()?;
        std::str::from_utf8(self.take(len)?).map_err(|why| Damaged(why.to_string()))
    }

    fn logprob(&mut self) -> Result<Logprob, Damaged> {
        let value = if self.narrow {
            f64::from(f32::from_le_bytes(self.array()?))
        } else {
            f64::from_le_bytes(self.array()?)
        };
        Logprob::new(value).map_err(|why| Damaged(why.to_string()))
    }

    fn id(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.number()?).map_err(|_| Damaged("a token id is too large".to_owned()))
    }

    fn top(&mut self) -> Result<TopK, Damaged> {
        let count = self.count()?;
        let entries =
            (0..count).map(|_| Ok((self.id()?, self.logprob()?))).collect::<Result<_, Damaged>>()?;
        Ok(TopK::new(entries))
    }

    fn span_score(&mut self) -> Result<SpanScore, Damaged> {
        let start = self.place()?;
        let len = self.count()?;
        let scores = (0..len).map(|_| self.token_score()).collect::<Result<Vec<_>, _>>()?;
        SpanScore::new(TokenSpan::at(start, len), scores).map_err(|why| Damaged(why.to_string()))
    }

    fn token_score(&mut self) -> Result<TokenScore, Damaged> {
        let logprob = match self.array()? {
            [0] => Ok(self.logprob()?),
            [1] => Err(Absence::NoContext),
            [2] => Err(Absence::NotReturned),
            [3] => Err(Absence::NotALogprob(self.text()?.to_owned())),
            [other] => return Err(Damaged(format!("{other} marks no kind of score"))),
        };
        Ok(TokenScore { logprob, top: self.top()? })
    }

    fn sampled_token(&mut self) -> Result<SampledToken, Damaged> {
        let id = self.id()?;
        let logprob = match self.array()? {
            [0] => None,
            _ => Some(self.logprob()?),
        };
        Ok(SampledToken { id, logprob, top: self.top()? })
    }

    fn ending(&mut self) -> Result<Finish, Damaged> {
        match self.array()? {
            [0] => Ok(Finish::Stop),
            [1] => Ok(Finish::Length),
            [2] => Ok(Finish::ToolCalls),
            [3] => Ok(Finish::Other(self.text()?.to_owned())),
            [other] => Err(Damaged(format!("{other} marks no way to end"))),
        }
    }

    fn version(&mut self) -> Result<Option<String>, Damaged> {
        match self.array()? {
            [0] => Ok(None),
            _ => Ok(Some(self.text()?.to_owned())),
        }
    }

    fn versions(&mut self) -> Result<Vec<ToldVersion>, Damaged> {
        let count = self.count()?;
        (0..count).map(|_| self.told_version()).collect()
    }

    fn told_version(&mut self) -> Result<ToldVersion, Damaged> {
        let version = self.text()?.to_owned();
        let start = self.place()?;
        Ok(ToldVersion { version, span: TokenSpan::at(start, self.place()?) })
    }

    /// A place among tokens, or a number of them.
    fn place(&mut self) -> Result<usize, Damaged> {
        Ok(usize::try_from(self.number()?).unwrap_or(usize::MAX))
    }

    fn usage(&mut self) -> Result<Usage, Damaged> {
        let prompt_tokens = self.number()?;
        let cached_tokens = self.number()?.checked_sub(1);
        Ok(Usage { prompt_tokens, cached_tokens, completion_tokens: self.number()? })
    }
}

/// A message as the ledger stores it.
#[derive(Serialize, Deserialize)]
struct StoredMessage {
    role: String,
    text: Option<String>,
    parts: Option<Vec<String>>,
    reasoning: Option<String>,
    tool_calls: Vec<StoredCall>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredCall {
    id: Option<String>,
    name: String,
    object: Option<Map<String, Value>>,
    text: Option<String>,
}

impl From<&Message> for StoredMessage {
    fn from(message: &Message) -> Self {
        let (text, parts) = match message.content.clone() {
            None => (None, None),
            Some(Content::Text(text)) => (Some(text), None),
            Some(Content::Parts(parts)) => (None, Some(parts)),
        };
        Self {
            role: message.role.name().to_owned(),
            text,
            parts,
            reasoning: message.reasoning.clone(),
            tool_calls: message.tool_calls.iter().map(StoredCall::from).collect(),
            tool_call_id: message.tool_call_id.clone(),
            name: message.name.clone(),
        }
    }
}

impl StoredMessage {
    fn into_message(self) -> Result<Message, Damaged> {
        let role = Role::from_name(&self.role).ok_or_else(|| Damaged(format!("no role {}", self.role)))?;
        let calls = self.tool_calls.into_iter().map(StoredCall::into_call);
        Ok(Message {
            role,
            content: self.text.map(Content::Text).or(self.parts.map(Content::Parts)),
            reasoning: self.reasoning,
            tool_calls: calls.collect::<Result<_, _>>()?,
            tool_call_id: self.tool_call_id,
            name: self.name,
        })
    }
}

impl From<&ToolCall> for StoredCall {
    fn from(call: &ToolCall) -> Self {
        let (object, text) = match call.arguments.clone() {
            Arguments::Object(object) => (Some(object), None),
            Arguments::Text(text) => (None, Some(text)),
        };
        Self { id: call.id.clone(), name: call.name.clone(), object, text }
    }
}

impl StoredCall {
    fn into_call(self) -> Result<ToolCall, Damaged> {
        let arguments = self.object.map(Arguments::Object).or(self.text.map(Arguments::Text));
        let arguments = arguments.ok_or_else(|| Damaged("a tool call has no arguments".to_owned()))?;
        Ok(ToolCall { id: self.id, name: self.name, arguments })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Debug;

    fn check<R: Record + PartialEq + Debug>(record: &R) {
        assert_eq!(&R::decode(&record.encode()).unwrap(), record);
    }

    fn logprob() -> impl Strategy<Value = Logprob> {
        let any =
            prop_oneof![-50.0f64..=0.0, (-50.0f32..=0.0).prop_map(f64::from), Just(-1e-300), Just(-f64::MAX)];
        any.prop_map(|value| Logprob::new(value).unwrap())
    }

    fn top() -> impl Strategy<Value = TopK> {
        prop::collection::vec((any::<u32>(), logprob()), 0..6).prop_map(TopK::new)
    }

    fn usage() -> impl Strategy<Value = Usage> {
        (any::<u32>(), any::<Option<u32>>(), any::<u32>()).prop_map(|(prompt, cached, completion)| Usage {
            prompt_tokens: prompt.into(),
            cached_tokens: cached.map(u64::from),
            completion_tokens: completion.into(),
        })
    }

    fn token_score() -> impl Strategy<Value = TokenScore> {
        let absence = prop_oneof![
            Just(Absence::NoContext),
            Just(Absence::NotReturned),
            ".{0,9}".prop_map(Absence::NotALogprob),
        ];
        let value = prop_oneof![4 => logprob().prop_map(Ok), 1 => absence.prop_map(Err)];
        (value, top()).prop_map(|(logprob, top)| TokenScore { logprob, top })
    }

    fn scored() -> impl Strategy<Value = Scored> {
        let span = (0usize..100_000, prop::collection::vec(token_score(), 0..8))
            .prop_map(|(start, scores)| SpanScore::new(TokenSpan::at(start, scores.len()), scores).unwrap());
        (prop::collection::vec(span, 0..4), prop::option::of(".{0,9}"), usage())
            .prop_map(|(spans, version, usage)| Scored { spans, version, usage })
    }

    fn finish() -> impl Strategy<Value = Finish> {
        let known = [Finish::Stop, Finish::Length, Finish::ToolCalls];
        prop_oneof![prop::sample::select(known.to_vec()), "[a-z]{0,9}".prop_map(Finish::Other)]
    }

    fn generated() -> impl Strategy<Value = Generated> {
        let token = (any::<u32>(), prop::option::of(logprob()), top())
            .prop_map(|(id, logprob, top)| SampledToken { id, logprob, top });
        let version = (".{0,9}", 0usize..1000, 0usize..1000)
            .prop_map(|(version, start, len)| ToldVersion { version, span: TokenSpan::at(start, len) });
        (prop::collection::vec(token, 0..8), finish(), prop::collection::vec(version, 0..3), usage())
            .prop_map(|(tokens, finish, versions, usage)| Generated { tokens, finish, versions, usage })
    }

    fn bits(scored: &Scored) -> Vec<u64> {
        let scores = scored.spans.iter().flat_map(SpanScore::scores);
        let own = |it: &TokenScore| it.logprob.iter().map(|it| it.get().to_bits()).collect::<Vec<_>>();
        let top =
            |it: &TokenScore| it.top.entries().iter().map(|it| it.1.get().to_bits()).collect::<Vec<_>>();
        scores.flat_map(|it| [own(it), top(it)].concat()).collect()
    }

    proptest! {
        #[test]
        fn scores_come_back_bit_for_bit(scored in scored()) {
            check(&scored);
            prop_assert_eq!(bits(&Scored::decode(&scored.encode()).unwrap()), bits(&scored));
        }

        #[test]
        fn samples_come_back(generated in generated()) {
            check(&generated);
        }

        #[test]
        fn damage_never_panics(scored in scored(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut bytes = scored.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = Scored::decode(&bytes);
            let _ = Generated::decode(&bytes);
            let _ = ChatAnswer::decode(&bytes);
            let cut = cut.index(bytes.len());
            prop_assert!(Scored::decode(&scored.encode()[..cut]).is_err());
        }
    }

    #[test]
    fn conversations_come_back() {
        let arguments: Map<String, Value> =
            serde_json::from_str(r#"{"z": 1, "a": [0.1, -0.0, 1e300, null, "é\u0000"]}"#).unwrap();
        let call = |arguments| ToolCall { id: Some("call_1".into()), name: "sh".into(), arguments };
        let mut message = Message::text(Role::Assistant, "so\u{0}me");
        message.reasoning = Some(String::new());
        message.tool_calls =
            vec![call(Arguments::Object(arguments)), call(Arguments::Text("{broken".into()))];
        let usage = Usage { prompt_tokens: 3, cached_tokens: Some(0), completion_tokens: 1 };
        let mut answer = ChatAnswer { message, finish: Finish::ToolCalls, usage };
        check(&answer);
        answer.message.content = Some(Content::Parts(vec!["a".into(), String::new()]));
        answer.usage.cached_tokens = None;
        check(&answer);
        answer.message.content = None;
        check(&answer);
    }

    #[test]
    fn candidates_from_servers_that_compute_in_32_bits_take_half_the_room() {
        let scored = |value: f64| {
            let top = TopK::new((0..100).map(|id| (id, Logprob::new(value).unwrap())).collect());
            let score = TokenScore { logprob: Logprob::new(value).map_err(|_| Absence::NotReturned), top };
            Scored {
                spans: vec![SpanScore::new(TokenSpan::at(1, 1), vec![score]).unwrap()],
                version: None,
                usage: Usage::default(),
            }
        };
        let narrow = scored(-11.549774169921875).encode().len();
        assert_eq!((narrow, scored(-0.1).encode().len()), (narrow, narrow + 4 * 101));
    }
}
