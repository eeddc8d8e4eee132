//! Answers as bytes, and back, bit for bit.
//!
//! Owns the encoding of what the ledger stores. Logprobs keep every bit; absences keep their reason. Postcard writes the
//! types below, in few bytes, because a row of candidates per token is most of a ledger; what a chat answered is JSON.
//! Reading never trusts the bytes: a damaged record is none, not a number.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::model::{ChatAnswer, Finish, Generated, SampledToken, Scored, ToldVersion, Usage};
use backsight_chat::messages::{self, ArgumentForm};
use backsight_core::score::{Absence, SpanScore};
use backsight_core::tokens::{Logprob, TokenId, TokenSpan, TopK};

/// Something the ledger can keep.
pub trait Record: Sized {
    /// What it is, as the ledger's file names it.
    const KIND: &'static str;
    /// Whether it was drawn: then it is kept whatever becomes of the weights, since it cannot be had again.
    const IS_DRAW: bool = true;

    /// The bytes to store.
    fn encode(&self) -> Vec<u8>;

    /// What was stored; none where the bytes are something else.
    fn decode(bytes: &[u8]) -> Option<Self>;

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

/// Plain structs always serialise.
fn written(value: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(value).unwrap_or_default()
}

/// Reads what was written, provided that nothing is left over.
fn read<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}

/// How far a number's bits are turned: those come first that 32 bits do not have. Servers compute in 32 bits, and small
/// numbers take few bytes.
const TURN: u32 = 35;

fn bits(logprob: Logprob) -> u64 {
    logprob.get().to_bits().rotate_left(TURN)
}

fn logprob(bits: u64) -> Option<Logprob> {
    Logprob::new(f64::from_bits(bits.rotate_right(TURN))).ok()
}

/// Candidates with their numbers' bits.
type StoredTop = Vec<(TokenId, u64)>;

fn stored_top(top: &TopK) -> StoredTop {
    top.entries().iter().map(|&(id, logprob)| (id, bits(logprob))).collect()
}

fn top(stored: StoredTop) -> Option<TopK> {
    let entries = stored.into_iter().map(|(id, bits)| Some((id, logprob(bits)?)));
    entries.collect::<Option<_>>().map(TopK::new)
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Usage")]
struct StoredUsage {
    prompt_tokens: u64,
    cached_tokens: Option<u64>,
    completion_tokens: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Finish")]
enum StoredFinish {
    Stop,
    Length,
    ToolCalls,
    Other(String),
}

/// What was found at neighbouring positions of a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The tokens that stand there.
    pub ids: Vec<TokenId>,
    /// How many candidates were asked for.
    pub top_k: usize,
    /// The score of each; none where it was not asked for.
    pub scores: Vec<Option<(Logprob, TopK)>>,
}

impl Block {
    /// The bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let score = |(logprob, top): &(Logprob, TopK)| (bits(*logprob), stored_top(top));
        let scores: Vec<_> = self.scores.iter().map(|it| it.as_ref().map(score)).collect();
        written(&(&self.ids, self.top_k, scores))
    }

    /// What was stored; none where the bytes are something else.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (ids, top_k, scores): (_, _, Vec<Option<(u64, StoredTop)>>) = read(bytes)?;
        let score = |(bits, stored)| Some((logprob(bits)?, top(stored)?));
        let scores = scores.into_iter().map(|it| it.map_or(Some(None), |it| score(it).map(Some)));
        Some(Self { ids, top_k, scores: scores.collect::<Option<_>>()? })
    }
}

/// Its numbers are kept by position, in blocks.
impl Record for Scored {
    const KIND: &'static str = "score";
    const IS_DRAW: bool = false;

    fn encode(&self) -> Vec<u8> {
        Vec::new()
    }

    fn decode(_: &[u8]) -> Option<Self> {
        None
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
struct StoredGenerated {
    #[serde(with = "StoredUsage")]
    usage: Usage,
    #[serde(with = "StoredFinish")]
    finish: Finish,
    versions: Vec<(String, usize, usize)>,
    tokens: Vec<(TokenId, Option<u64>, StoredTop)>,
}

impl Record for Generated {
    const KIND: &'static str = "generate";

    fn encode(&self) -> Vec<u8> {
        let version = |it: &ToldVersion| (it.version.clone(), it.span.start(), it.span.len());
        let token = |it: &SampledToken| (it.id, it.logprob.map(bits), stored_top(&it.top));
        written(&StoredGenerated {
            usage: self.usage,
            finish: self.finish.clone(),
            versions: self.versions.iter().map(version).collect(),
            tokens: self.tokens.iter().map(token).collect(),
        })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let StoredGenerated { usage, finish, versions, tokens } = read(bytes)?;
        let version = |(version, start, len)| ToldVersion { version, span: TokenSpan::at(start, len) };
        let token = |(id, bits, stored): (_, Option<u64>, _)| {
            let logprob = bits.map_or(Some(None), |bits| logprob(bits).map(Some))?;
            Some(SampledToken { id, logprob, top: top(stored)? })
        };
        let tokens = tokens.into_iter().map(token).collect::<Option<_>>()?;
        Some(Self { tokens, finish, versions: versions.into_iter().map(version).collect(), usage })
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
    #[serde(with = "StoredUsage")]
    usage: Usage,
    #[serde(with = "StoredFinish")]
    finish: Finish,
    message: String,
}

impl Record for ChatAnswer {
    const KIND: &'static str = "chat";

    fn encode(&self) -> Vec<u8> {
        let message = messages::to_json_with(&self.message, ArgumentForm::Object).to_string();
        written(&StoredChat { usage: self.usage, finish: self.finish.clone(), message })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let StoredChat { usage, finish, message } = read(bytes)?;
        let message = messages::from_json(&serde_json::from_str(&message).ok()?).ok()?;
        Some(Self { message, finish, usage })
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

    fn block() -> impl Strategy<Value = Block> {
        let position = (any::<u32>(), prop::option::of((logprob(), top())));
        (prop::collection::vec(position, 0..8), 0usize..30).prop_map(|(positions, top_k)| {
            let (ids, scores) = positions.into_iter().unzip();
            Block { ids, top_k, scores }
        })
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

    fn bits(block: &Block) -> Vec<u64> {
        let of = |(own, top): &(Logprob, TopK)| -> Vec<u64> {
            [*own].iter().chain(top.entries().iter().map(|it| &it.1)).map(|it| it.get().to_bits()).collect()
        };
        block.scores.iter().flatten().flat_map(of).collect()
    }

    proptest! {
        #[test]
        fn scores_come_back_bit_for_bit(block in block()) {
            let again = Block::decode(&block.encode()).unwrap();
            prop_assert_eq!(bits(&again), bits(&block));
            prop_assert_eq!(again, block);
        }

        #[test]
        fn samples_come_back(generated in generated()) {
            check(&generated);
        }

        #[test]
        fn damage_never_panics(block in block(), at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let mut bytes = block.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = Block::decode(&bytes);
            let _ = Generated::decode(&bytes);
            let _ = ChatAnswer::decode(&bytes);
            let cut = cut.index(bytes.len());
            prop_assert!(Block::decode(&block.encode()[..cut]).is_none());
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
        let block = |value: f64| {
            let value = Logprob::new(value).unwrap();
            let top = TopK::new((0..100).map(|id| (id, value)).collect());
            Block { ids: vec![7], top_k: 100, scores: vec![Some((value, top))] }
        };
        let narrow = block(-11.549774169921875).encode().len();
        assert_eq!((narrow, block(-0.1).encode().len()), (narrow, narrow + 5 * 101));
    }
}
