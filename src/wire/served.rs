//! What our own server is asked, in the words of vLLM, SGLang and OpenAI.
//!
//! Owns the requests that `model serve` reads, with the defaults those servers have, but for SGLang's own, which
//! our client writes too. Fields that nobody knows
//! are ignored, as those servers ignore them; fields that those servers follow and we do not are refused, unless they
//! change nothing. Deliberately absent: the answers, which are written where the numbers are.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use backsight_core::tokens::TokenId;

/// A context, or several: text, or ids.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "prompt must be a text, a list of token ids, or a list of either")]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// As it is.
    Ids(Vec<TokenId>),
    /// Several, to be tokenised.
    Texts(Vec<String>),
    /// Several, as they are.
    Batch(Vec<Vec<TokenId>>),
}

/// How to draw, under the names that vLLM and OpenAI use.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Drawing {
    /// At most this many tokens.
    pub max_tokens: Option<usize>,
    /// The same under OpenAI's newer name.
    pub max_completion_tokens: Option<usize>,
    /// 0 takes the likeliest token.
    #[serde(default = "one")]
    pub temperature: f64,
    /// Keep the smallest set of tokens with this much probability.
    #[serde(default = "one")]
    pub top_p: f64,
    /// 0 and -1 keep all.
    #[serde(default)]
    pub top_k: i64,
    /// Makes a draw repeatable.
    pub seed: Option<i64>,
    /// vLLM's shape for the text: `{"json": …}` or `{"regex": …}`.
    pub structured_outputs: Option<Value>,
    /// OpenAI's shape for the text.
    pub response_format: Option<Value>,
    /// SGLang's name for a regular expression.
    pub regex: Option<String>,
    /// Whether special tokens are left out of the text.
    #[serde(default = "yes")]
    pub skip_special_tokens: bool,
}

/// The body of `POST /v1/completions`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Completion {
    /// What the request is called; the answer is called the same.
    pub request_id: Option<String>,
    /// The served name.
    pub model: Option<String>,
    /// The context.
    pub prompt: Prompt,
    /// Ids after which to stop.
    #[serde(default)]
    pub stop_token_ids: Vec<TokenId>,
    /// Whether the tokenizer adds what it adds to plain text.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
    /// How many alternatives at each sampled token.
    pub logprobs: Option<usize>,
    /// How many candidates at each prompt position; -1 wants all.
    pub prompt_logprobs: Option<i64>,
    /// Whether ids come back beside the text.
    #[serde(default)]
    pub return_token_ids: bool,
    /// Whether tokens are named `token_id:N`.
    #[serde(default)]
    pub return_tokens_as_token_ids: bool,
    /// How to draw.
    #[serde(flatten)]
    pub drawing: Drawing,
}

/// The body of `POST /v1/chat/completions`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Chat {
    /// The served name.
    pub model: Option<String>,
    /// The conversation.
    pub messages: Value,
    /// The tools' schemas.
    pub tools: Option<Vec<Value>>,
    /// Whether and which of them must be called.
    pub tool_choice: Option<Value>,
    /// What the template is given beside the conversation.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the rendered conversation ends with the header that asks the model to speak.
    #[serde(default = "yes")]
    pub add_generation_prompt: bool,
    /// Whether the tokenizer adds to the rendered conversation what it adds to plain text.
    #[serde(default)]
    pub add_special_tokens: bool,
    /// Ids after which to stop.
    pub stop_token_ids: Option<Vec<TokenId>>,
    /// Whether the sampled tokens' logprobs are wanted.
    #[serde(default)]
    pub logprobs: bool,
    /// How many alternatives at each.
    #[serde(default)]
    pub top_logprobs: usize,
    /// How many candidates at each position of the rendered conversation; -1 wants all.
    pub prompt_logprobs: Option<i64>,
    /// Whether ids come back beside the text.
    #[serde(default)]
    pub return_token_ids: bool,
    /// SGLang's wish for the ids of the rendered conversation.
    #[serde(default)]
    pub return_prompt_token_ids: bool,
    /// Whether tokens are named `token_id:N`.
    #[serde(default)]
    pub return_tokens_as_token_ids: bool,
    /// How to draw.
    #[serde(flatten)]
    pub drawing: Drawing,
}

/// The body of `POST /tokenize`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Tokenize {
    /// The text.
    pub prompt: String,
    /// Whether the tokenizer adds what it adds to plain text.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
}

/// What the played servers follow and we do not, each with the value that changes nothing; 1 is also yes, 0 no.
const NOT_FOLLOWED: &[(&str, f64)] = &[
    ("stream", 0.0),
    ("echo", 0.0),
    ("n", 1.0),
    ("best_of", 1.0),
    ("min_p", 0.0),
    ("min_tokens", 0.0),
    ("min_new_tokens", 0.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("length_penalty", 1.0),
    ("use_beam_search", 0.0),
    ("ignore_eos", 0.0),
    ("include_stop_str_in_output", 0.0),
    ("no_stop_trim", 0.0),
    ("continue_final_message", 0.0),
    ("parallel_tool_calls", 1.0),
    ("guided_json_object", 0.0),
    ("return_hidden_states", 0.0),
    ("return_text_in_logprobs", 0.0),
];
/// The same for what changes nothing when it is left out or empty.
const NOT_TAKEN: &[&str] = &[
    "stop",
    "stop_regex",
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "logits_processors",
    "custom_logit_processor",
    "custom_params",
    "suffix",
    "truncate_prompt_tokens",
    "prompt_embeds",
    "input_embeds",
    "image_data",
    "documents",
    "chat_template",
    "reasoning_effort",
    "thinking_token_budget",
    "structural_tag",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "token_ids_logprob",
    "logprob_token_ids",
    "session_params",
    "lora_path",
    "vllm_xargs",
];

/// Reads a request; one that asks for what we do not do is refused instead of being answered otherwise.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let json: Value = serde_json::from_slice(body).map_err(|why| format!("the body is not JSON: {why}"))?;
    let parts = [Some(&json), json.get("sampling_params")];
    if let Some(key) = parts.into_iter().flatten().find_map(not_followed) {
        return Err(format!("{key} is not supported by this server"));
    }
    serde_json::from_value(json).map_err(|why| why.to_string())
}

fn not_followed(json: &Value) -> Option<&'static str> {
    let changes = |&(key, neutral): &(&str, f64)| match json.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(wanted)) => f64::from(*wanted) != neutral,
        Some(value) => value.as_f64() != Some(neutral),
    };
    let is_given = |key: &str| match json.get(key) {
        None | Some(Value::Null) => false,
        Some(value) => value != &json!([]) && value != &json!({}) && value != "",
    };
    let number = NOT_FOLLOWED.iter().find(|it| changes(it)).map(|it| it.0);
    number.or_else(|| NOT_TAKEN.iter().copied().find(|key| is_given(key)))
}

/// One entry of the model list, as vLLM and SGLang write it.
pub fn listed(id: &str, owner: &str, root: &str, context: Option<usize>) -> Value {
    let entry = json!({"id": id, "object": "model", "created": 0, "owned_by": owner, "root": root,
                       "parent": null, "max_model_len": context});
    json!({"object": "list", "data": [entry]})
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::wire::OneOrMany;
    use crate::wire::sglang::GenerateRequest;

    #[test]
    fn what_is_left_out_has_the_servers_defaults() {
        let asked: Completion = read(br#"{"prompt": [1, 2], "top_k": -1, "min_p": 0}"#).unwrap();
        assert_eq!(asked.prompt, Prompt::Ids(vec![1, 2]));
        assert_eq!((asked.drawing.temperature, asked.drawing.top_k, asked.logprobs), (1.0, -1, None));
        let asked: GenerateRequest<'_> =
            read(br#"{"input_ids": [[1], [2, 3]], "logprob_start_len": [0, 1]}"#).unwrap();
        assert_eq!(asked.input_ids, Some(OneOrMany::Many(vec![vec![1].into(), vec![2, 3].into()])));
        assert_eq!(asked.logprob_start_len.unwrap().get(1), Some(1));
        assert_eq!(asked.sampling_params.max_new_tokens, 128);
        let many: Completion = read(br#"{"prompt": [[1], [2, 3]]}"#).unwrap();
        assert_eq!(many.prompt, Prompt::Batch(vec![vec![1], vec![2, 3]]));
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let check = |body: &str, expected: &str| {
            let refused = read::<Completion>(body.as_bytes()).map(|_| ()).unwrap_err();
            assert!(refused.contains(expected), "{refused}");
        };
        check("{", "the body is not JSON: EOF");
        check("[]", "invalid type: sequence");
        check(r#"{"prompt": -1}"#, "prompt must be a text, a list of token ids, or a list of either");
        check(r#"{"prompt": [1], "stream": true}"#, "stream is not supported by this server");
        check(r#"{"prompt": [1], "n": 2}"#, "n is not supported");
        check(r#"{"prompt": [1], "presence_penalty": 0.5}"#, "presence_penalty is not supported");
        check(r#"{"prompt": [1], "stop": ["a"]}"#, "stop is not supported");
        check(r#"{"prompt": [1], "ignore_eos": true}"#, "ignore_eos is not supported");
        check(r#"{"prompt": [1], "parallel_tool_calls": false}"#, "parallel_tool_calls is not supported");
        check(r#"{"prompt": [1], "chat_template": "{{ 1 }}"}"#, "chat_template is not supported");
        check(r#"{"prompt": [1], "truncate_prompt_tokens": 5}"#, "truncate_prompt_tokens is not supported");
        let neutral = r#"{"prompt": [1], "stream": false, "n": 1, "min_p": 0.0, "repetition_penalty": 1.0, "stop": [],
                          "parallel_tool_calls": true, "ignore_eos": false, "chat_template": null}"#;
        assert!(read::<Completion>(neutral.as_bytes()).is_ok());
        let nested = br#"{"input_ids": [1], "sampling_params": {"n": 3}}"#;
        assert_eq!(
            read::<GenerateRequest<'_>>(nested).map(|_| ()),
            Err("n is not supported by this server".to_owned())
        );
    }
}
