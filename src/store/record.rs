//! Answers as bytes, and back, bit for bit.
//!
//! Owns the encoding of what the ledger stores. Logprobs keep every bit; absences keep their reason. Postcard writes the
//! types below, in few bytes, because a row of candidates per token is most of a ledger; what a chat answered is JSON.
//! Reading never trusts the bytes: a damaged record is an error, not a number.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::model::{ChatAnswer, Finish, Generated, SampledToken, Scored, ToldVersion, Usage};
use backsight_chat::messages::{self, ArgumentForm};
use backsight_core::score::{Absence, SpanScore, TokenScore};
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};

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
const VERSION: u8 = 3;

/// Writes a version, whether logprobs have 32 bits, and what is stored. Servers compute in 32 bits; where every value
/// fits into those without loss, half the room is enough.
fn written<'a, N: Serialize, W: Serialize>(
    logprobs: impl IntoIterator<Item = &'a Logprob>,
    narrow: impl FnOnce() -> N,
    wide: impl FnOnce() -> W,
) -> Vec<u8> {
    let fits = |it: &Logprob| f64::from(it.get() as f32).to_bits() == it.get().to_bits();
    let is_narrow = logprobs.into_iter().all(fits);
    let begin = vec![VERSION, u8::from(is_narrow)];
    let bytes = match is_narrow {
        true => postcard::to_extend(&narrow(), begin),
        false => postcard::to_extend(&wide(), begin),
    };
    // Plain structs with a buffer that grows always serialise.
    bytes.unwrap_or_default()
}

/// Reads what was written, provided that nothing is left over.
fn read<T, N: DeserializeOwned, W: DeserializeOwned>(
    bytes: &[u8],
    narrow: impl FnOnce(N) -> Result<T, Damaged>,
    wide: impl FnOnce(W) -> Result<T, Damaged>,
) -> Result<T, Damaged> {
    match bytes {
        [VERSION, 0, rest @ ..] => wide(whole(rest)?),
        [VERSION, 1, rest @ ..] => narrow(whole(rest)?),
        _ => Err(Damaged("it begins with no known version".to_owned())),
    }
}

fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damaged> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(Damaged(format!("{} bytes too many", rest.len()))),
        Err(why) => Err(Damaged(why.to_string())),
    }
}

/// A logprob as it is stored.
trait Stored: Copy + Into<f64> {
    fn of(logprob: Logprob) -> Self;

    fn logprob(self) -> Result<Logprob, Damaged> {
        Logprob::new(self.into()).map_err(|why| Damaged(why.to_string()))
    }
}

impl Stored for f32 {
    fn of(logprob: Logprob) -> Self {
        logprob.get() as Self
    }
}

impl Stored for f64 {
    fn of(logprob: Logprob) -> Self {
        logprob.get()
    }
}

type StoredTop<F> = Vec<(TokenId, F)>;

fn stored_top<F: Stored>(top: &TopK) -> StoredTop<F> {
    top.entries().iter().map(|&(id, logprob)| (id, F::of(logprob))).collect()
}

fn top<F: Stored>(stored: StoredTop<F>) -> Result<TopK, Damaged> {
    let entries = stored.into_iter().map(|(id, logprob)| Ok((id, logprob.logprob()?)));
    entries.collect::<Result<_, _>>().map(TopK::new)
}

/// Sent, cached where told, sampled.
type StoredUsage = (u64, Option<u64>, u64);

fn stored_usage(usage: Usage) -> StoredUsage {
    (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
}

fn usage((prompt_tokens, cached_tokens, completion_tokens): StoredUsage) -> Usage {
    Usage { prompt_tokens, cached_tokens, completion_tokens }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Absence")]
enum StoredAbsence {
    NoContext,
    NotReturned,
    NotALogprob(String),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Finish")]
enum StoredFinish {
    Stop,
    Length,
    ToolCalls,
    Other(String),
}

#[derive(Serialize, Deserialize)]
struct StoredScored<F> {
    usage: StoredUsage,
    version: Option<String>,
    spans: Vec<(usize, Vec<StoredScore<F>>)>,
}

#[derive(Serialize, Deserialize)]
enum StoredScore<F> {
    Is(F, StoredTop<F>),
    Absent(#[serde(with = "StoredAbsence")] Absence, StoredTop<F>),
}

impl<F: Stored> StoredScored<F> {
    fn of(scored: &Scored) -> Self {
        let span = |it: &SpanScore| (it.span().start(), it.scores().iter().map(StoredScore::of).collect());
        let spans = scored.spans.iter().map(span).collect();
        Self { usage: stored_usage(scored.usage), version: scored.version.clone(), spans }
    }

    fn scored(self) -> Result<Scored, Damaged> {
        let span = |(start, scores): (usize, Vec<StoredScore<F>>)| {
            let scores = scores.into_iter().map(StoredScore::score).collect::<Result<Vec<_>, _>>()?;
            SpanScore::new(TokenSpan::at(start, scores.len()), scores).map_err(|why| Damaged(why.to_string()))
        };
        let spans = self.spans.into_iter().map(span).collect::<Result<_, _>>()?;
        Ok(Scored { spans, version: self.version, usage: usage(self.usage) })
    }
}

impl<F: Stored> StoredScore<F> {
    fn of(score: &TokenScore) -> Self {
        match &score.logprob {
            Ok(logprob) => Self::Is(F::of(*logprob), stored_top(&score.top)),
            Err(absence) => Self::Absent(absence.clone(), stored_top(&score.top)),
        }
    }

    fn score(self) -> Result<TokenScore, Damaged> {
        Ok(match self {
            Self::Is(logprob, stored) => TokenScore { logprob: Ok(logprob.logprob()?), top: top(stored)? },
            Self::Absent(absence, stored) => TokenScore { logprob: Err(absence), top: top(stored)? },
        })
    }
}

impl Record for Scored {
    const KIND: &'static str = "score";
    const IS_DRAW: bool = false;

    fn encode(&self) -> Vec<u8> {
        let positions = self.spans.iter().flat_map(SpanScore::scores);
        let logprobs =
            positions.flat_map(|it| it.logprob.iter().chain(it.top.entries().iter().map(|it| &it.1)));
        written(logprobs, || StoredScored::<f32>::of(self), || StoredScored::<f64>::of(self))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        read(bytes, StoredScored::<f32>::scored, StoredScored::<f64>::scored)
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

#[derive(Serialize, Deserialize)]
struct StoredGenerated<F> {
    usage: StoredUsage,
    #[serde(with = "StoredFinish")]
    finish: Finish,
    versions: Vec<(String, usize, usize)>,
    tokens: Vec<(TokenId, Option<F>, StoredTop<F>)>,
}

impl<F: Stored> StoredGenerated<F> {
    fn of(generated: &Generated) -> Self {
        let version = |it: &ToldVersion| (it.version.clone(), it.span.start(), it.span.len());
        let token = |it: &SampledToken| (it.id, it.logprob.map(F::of), stored_top(&it.top));
        Self {
            usage: stored_usage(generated.usage),
            finish: generated.finish.clone(),
            versions: generated.versions.iter().map(version).collect(),
            tokens: generated.tokens.iter().map(token).collect(),
        }
    }

    fn generated(self) -> Result<Generated, Damaged> {
        let version = |(version, start, len)| ToldVersion { version, span: TokenSpan::at(start, len) };
        let token = |(id, logprob, stored): (TokenId, Option<F>, StoredTop<F>)| {
            let logprob = logprob.map(Stored::logprob).transpose()?;
            Ok(SampledToken { id, logprob, top: top(stored)? })
        };
        Ok(Generated {
            tokens: self.tokens.into_iter().map(token).collect::<Result<_, _>>()?,
            finish: self.finish,
            versions: self.versions.into_iter().map(version).collect(),
            usage: usage(self.usage),
        })
    }
}

impl Record for Generated {
    const KIND: &'static str = "generate";

    fn encode(&self) -> Vec<u8> {
        let of_token = |it: &'_ SampledToken| -> Vec<Logprob> {
            it.logprob.into_iter().chain(it.top.entries().iter().map(|it| it.1)).collect()
        };
        let logprobs: Vec<Logprob> = self.tokens.iter().flat_map(of_token).collect();
        written(&logprobs, || StoredGenerated::<f32>::of(self), || StoredGenerated::<f64>::of(self))
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        read(bytes, StoredGenerated::<f32>::generated, StoredGenerated::<f64>::generated)
    }

    fn usage(&self) -> Usage {
        self.usage
    }

    fn told(&self) -> Option<&str> {
        self.versions.last().map(|it| it.version.as_str())
    }
}

/// The message is JSON, as in an episode's record.
#[derive(Serialize, Deserialize)]
struct StoredChat {
    usage: StoredUsage,
    #[serde(with = "StoredFinish")]
    finish: Finish,
    message: String,
}

impl StoredChat {
    fn answer(self) -> Result<ChatAnswer, Damaged> {
        let json = serde_json::from_str(&self.message).map_err(|why| Damaged(why.to_string()))?;
        let message = messages::from_json(&json).map_err(|why| Damaged(why.to_string()))?;
        Ok(ChatAnswer { message, finish: self.finish, usage: usage(self.usage) })
    }
}

impl Record for ChatAnswer {
    const KIND: &'static str = "chat";

    fn encode(&self) -> Vec<u8> {
        let message = messages::to_json_with(&self.message, ArgumentForm::Object).to_string();
        let stored = || StoredChat { usage: stored_usage(self.usage), finish: self.finish.clone(), message };
        written([], stored, || ())
    }

    fn decode(bytes: &[u8]) -> Result<Self, Damaged> {
        read(bytes, StoredChat::answer, StoredChat::answer)
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use backsight_core::episode::{Arguments, Content, Message, Role, ToolCall};
    use proptest::prelude::*;
    use serde_json::{Map, Value};
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
