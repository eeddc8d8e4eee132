//! The shape of a decoder, read from `config.json` or from GGUF metadata, and checked.
//!
//! Owns [`Config`]: everything about a model but its weights. A model that computes anything else than
//! what the engine computes is refused here, by name. Deliberately absent: files and tensors.

use std::collections::HashMap;

use super::kv::KvShape;
use super::simd::LANES;
use crate::hf_config::{HfConfig, HfRope};
use serde_json::Value;

/// Why a model cannot be run by this engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Another kind of model.
    #[error("the architecture {0} is not supported")]
    Architecture(String),
    /// A variant that would compute something else.
    #[error("{key} = {value} is not supported")]
    Variant {
        /// Which setting.
        key: String,
        /// What it says.
        value: String,
    },
    /// A number that is needed is not there.
    #[error("the configuration has no {0}")]
    Missing(String),
    /// Numbers that do not fit together.
    #[error("{0}")]
    Impossible(String),
}

impl ConfigError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        "use a Llama, Qwen2 or Qwen3 model, or serve this one with vLLM or SGLang"
    }
}

/// Whether the model that this `config.json` describes can be run, told before its weights are there.
pub fn check_config(json: &[u8]) -> Result<(), ConfigError> {
    let hf: HfConfig = serde_json::from_slice(json)
        .map_err(|why| ConfigError::Impossible(format!("config.json cannot be read: {why}")))?;
    Config::from_hf(&hf).map(drop)
}

/// The kinds of decoder. They differ in what is added to the common form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The common form.
    Llama,
    /// Queries, keys and values have a bias.
    Qwen2,
    /// Queries and keys are normalised by head.
    Qwen3,
}

/// The shape of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which kind.
    pub family: Family,
    /// Layers.
    pub layers: usize,
    /// Numbers in a hidden state.
    pub hidden: usize,
    /// Numbers inside the feed-forward part.
    pub inner: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Numbers in a query, key or value.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens a sequence may have.
    pub context: usize,
    /// Added to the mean square before its root is taken.
    pub epsilon: f32,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output has a bias.
    pub out_bias: bool,
    /// Whether the feed-forward part has biases.
    pub mlp_bias: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Radians per position of each pair of numbers in a query or key.
    pub frequencies: Vec<f32>,
}

impl Config {
    /// Whether queries and keys are normalised by head.
    pub fn qk_norm(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Numbers in a hidden state, filled up to whole lanes.
    pub fn hidden_padded(&self) -> usize {
        self.hidden.next_multiple_of(LANES)
    }

    /// Numbers inside the feed-forward part, filled up to whole lanes.
    pub fn inner_padded(&self) -> usize {
        self.inner.next_multiple_of(LANES)
    }

    /// Numbers in a head, filled up to whole lanes.
    pub fn head_padded(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Width of all queries of a position.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_padded()
    }

    /// Width of all keys, or all values, of a position.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_padded()
    }

    /// What the pages of keys and values look like.
    pub fn kv_shape(&self) -> KvShape {
        KvShape { layers: self.layers, heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// How many query heads share a key-value head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// From `config.json`.
    pub fn from_hf(hf: &HfConfig) -> Result<Self, ConfigError> {
        let family = hf_family(hf)?;
        refuse_variants(hf)?;
        let need =
            |value: Option<usize>, key: &str| value.ok_or_else(|| ConfigError::Missing(key.to_owned()));
        let (hidden, heads) =
            (need(hf.hidden_size, "hidden_size")?, need(hf.num_attention_heads, "num_attention_heads")?);
        let head_dim = hf.head_dim.unwrap_or(hidden / heads.max(1));
        let attention_bias = hf.attention_bias.unwrap_or(false);
        Self {
            family,
            layers: need(hf.num_hidden_layers, "num_hidden_layers")?,
            hidden,
            inner: need(hf.intermediate_size, "intermediate_size")?,
            heads,
            kv_heads: hf.num_key_value_heads.unwrap_or(heads),
            head_dim,
            vocab: need(hf.vocab_size, "vocab_size")?,
            context: need(hf.max_position_embeddings, "max_position_embeddings")?,
            epsilon: hf.rms_norm_eps.ok_or_else(|| ConfigError::Missing("rms_norm_eps".to_owned()))? as f32,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            out_bias: family != Family::Qwen2 && attention_bias,
            mlp_bias: family == Family::Llama && hf.mlp_bias.unwrap_or(false),
            tied: hf.tie_word_embeddings.unwrap_or(false),
            frequencies: hf_frequencies(&hf.rope(), head_dim)?,
        }
        .checked()
    }

    /// From GGUF metadata. `has` says whether the file has a tensor, `divisors` are its `rope_freqs`, if any.
    pub fn from_gguf(
        metadata: &HashMap<String, Value>,
        vocab: usize,
        has: impl Fn(&str) -> bool,
        divisors: Option<&[f32]>,
    ) -> Result<Self, ConfigError> {
        let keys = Keys::new(metadata)?;
        let (hidden, heads) = (keys.usize("embedding_length")?, keys.usize("attention.head_count")?);
        let head_dim = keys.optional("attention.key_length").unwrap_or(hidden / heads.max(1));
        let theta = keys.get("rope.freq_base").and_then(Value::as_f64).unwrap_or(10_000.0);
        let epsilon = keys.get("attention.layer_norm_rms_epsilon").and_then(Value::as_f64);
        Self {
            family: keys.family,
            layers: keys.usize("block_count")?,
            hidden,
            inner: keys.usize("feed_forward_length")?,
            heads,
            kv_heads: keys.optional("attention.head_count_kv").unwrap_or(heads),
            head_dim,
            vocab,
            context: keys.usize("context_length")?,
            epsilon: epsilon.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))? as f32,
            qkv_bias: has("blk.0.attn_q.bias"),
            out_bias: has("blk.0.attn_output.bias"),
            mlp_bias: has("blk.0.ffn_down.bias"),
            tied: !has("output.weight"),
            frequencies: divide(frequencies(theta, head_dim), divisors)?,
        }
        .checked()
    }

    fn checked(self) -> Result<Self, ConfigError> {
        let impossible = |what: String| Err(ConfigError::Impossible(what));
        let sizes = [
            self.layers,
            self.hidden,
            self.inner,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.vocab,
            self.context,
        ];
        if sizes.contains(&0) || sizes.iter().any(|&size| size > 1 << 24) {
            return impossible("the configuration has a size that is zero or absurd".to_owned());
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return impossible(format!(
                "{} query heads cannot share {} key-value heads",
                self.heads, self.kv_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return impossible(format!("a head of {} numbers cannot be rotated in pairs", self.head_dim));
        }
        Ok(self)
    }
}

fn hf_family(hf: &HfConfig) -> Result<Family, ConfigError> {
    match hf.architectures.first().map(String::as_str) {
        Some("LlamaForCausalLM") => Ok(Family::Llama),
        Some("Qwen2ForCausalLM") => Ok(Family::Qwen2),
        Some("Qwen3ForCausalLM") => Ok(Family::Qwen3),
        Some(other) => Err(ConfigError::Architecture(other.to_owned())),
        None => Err(ConfigError::Missing("architectures".to_owned())),
    }
}

/// Settings that change what is computed.
fn refuse_variants(hf: &HfConfig) -> Result<(), ConfigError> {
    let variant =
        |key: &str, value: &str| Err(ConfigError::Variant { key: key.to_owned(), value: value.to_owned() });
    match hf.hidden_act.as_deref() {
        None | Some("silu" | "swish") => {}
        Some(other) => return variant("hidden_act", other),
    }
    if hf.use_sliding_window == Some(true) {
        return variant("use_sliding_window", "true");
    }
    if let Some(quantised) = &hf.quantization_config {
        let method = quantised.get("quant_method").and_then(|it| it.as_str()).unwrap_or("given");
        return variant("quantization_config", method);
    }
    match hf.rope().partial_rotary_factor {
        Some(part) if part != 1.0 => variant("partial_rotary_factor", &part.to_string()),
        _ => Ok(()),
    }
}

/// Radians per position, in single precision as the reference computes them.
fn frequencies(theta: f64, head_dim: usize) -> Vec<f32> {
    let exponent = |pair: usize| f64::from((2 * pair) as f32 / head_dim as f32);
    (0..head_dim / 2).map(|pair| 1.0 / theta.powf(exponent(pair)) as f32).collect()
}

fn hf_frequencies(rope: &HfRope, head_dim: usize) -> Result<Vec<f32>, ConfigError> {
    let plain = frequencies(rope.rope_theta.unwrap_or(10_000.0), head_dim);
    let need = |value: Option<f64>, key: &str| value.ok_or_else(|| ConfigError::Missing(key.to_owned()));
    match rope.rope_type.as_deref() {
        None | Some("default") => Ok(plain),
        Some("linear") => {
            let factor = need(rope.factor, "rope factor")? as f32;
            Ok(plain.iter().map(|it| it / factor).collect())
        }
        Some("llama3") => {
            let scaling = Llama3 {
                factor: need(rope.factor, "rope factor")? as f32,
                low: need(rope.low_freq_factor, "rope low_freq_factor")? as f32,
                high: need(rope.high_freq_factor, "rope high_freq_factor")? as f32,
                context: need(rope.original_max_position_embeddings, "rope original_max_position_embeddings")?
                    as f32,
            };
            Ok(plain.iter().map(|&it| scaling.apply(it)).collect())
        }
        Some(other) => Err(ConfigError::Variant { key: "rope_type".to_owned(), value: other.to_owned() }),
    }
}

/// Llama 3's stretching of the context: slow rotations are slowed down more, fast ones are left, those between are blended.
struct Llama3 {
    factor: f32,
    low: f32,
    high: f32,
    context: f32,
}

impl Llama3 {
    fn apply(&self, frequency: f32) -> f32 {
        let turns = self.context * frequency / std::f32::consts::TAU;
        if turns > self.high {
            frequency
        } else if turns < self.low {
            frequency / self.factor
        } else {
            let blend = (turns - self.low) / (self.high - self.low);
            (1.0 - blend) * frequency / self.factor + blend * frequency
        }
    }
}

/// GGUF files store stretched rotations as divisors.
fn divide(frequencies: Vec<f32>, divisors: Option<&[f32]>) -> Result<Vec<f32>, ConfigError> {
    let Some(divisors) = divisors else { return Ok(frequencies) };
    if divisors.len() != frequencies.len() {
        let what = format!("rope_freqs has {} numbers for {} rotations", divisors.len(), frequencies.len());
        return Err(ConfigError::Impossible(what));
    }
    Ok(frequencies.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect())
}

/// Metadata keys below the architecture's name.
struct Keys<'a> {
    metadata: &'a HashMap<String, Value>,
    family: Family,
    name: &'a str,
}

impl<'a> Keys<'a> {
    fn new(metadata: &'a HashMap<String, Value>) -> Result<Self, ConfigError> {
        let name = metadata.get("general.architecture").and_then(Value::as_str);
        let name = name.ok_or_else(|| ConfigError::Missing("general.architecture".to_owned()))?;
        let family = match name {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            other => return Err(ConfigError::Architecture(other.to_owned())),
        };
        let keys = Self { metadata, family, name };
        match keys.get("rope.scaling.type").and_then(Value::as_str) {
            None | Some("none") => Ok(keys),
            Some(other) => {
                Err(ConfigError::Variant { key: "rope.scaling.type".to_owned(), value: other.to_owned() })
            }
        }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.metadata.get(&format!("{}.{key}", self.name))
    }

    fn optional(&self, key: &str) -> Option<usize> {
        self.get(key).and_then(Value::as_u64).and_then(|it| usize::try_from(it).ok())
    }

    fn usize(&self, key: &str) -> Result<usize, ConfigError> {
        self.optional(key).ok_or_else(|| self.missing(key))
    }

    fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing(format!("{}.{key}", self.name))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    const SMALL: &str = r#"{"architectures":["LlamaForCausalLM"],"vocab_size":10,"hidden_size":8,
        "intermediate_size":16,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
        "max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu","rope_theta":10000.0"#;

    fn config(more: &str) -> Result<Config, ConfigError> {
        let json = format!("{SMALL}{more}}}");
        // As a map first: the last of two equal keys wins.
        let keys: Value = serde_json::from_str(&json).unwrap();
        Config::from_hf(&serde_json::from_value(keys).unwrap())
    }

    fn check(more: &str, message: &str) {
        assert_eq!(config(more).unwrap_err().to_string(), message);
    }

    #[test]
    fn a_common_configuration_is_read() {
        let config = config("").unwrap();
        assert_eq!((config.head_dim, config.group(), config.tied, config.qkv_bias), (2, 2, false, false));
        assert_eq!(config.frequencies, [1.0]);
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused_by_name() {
        let architecture = r#","architectures":["MambaForCausalLM"]"#;
        check(architecture, "the architecture MambaForCausalLM is not supported");
        check(r#","hidden_act":"gelu""#, "hidden_act = gelu is not supported");
        check(r#","use_sliding_window":true"#, "use_sliding_window = true is not supported");
        check(r#","rope_scaling":{"type":"yarn","factor":4.0}"#, "rope_type = yarn is not supported");
        check(r#","rope_scaling":{"rope_type":"llama3"}"#, "the configuration has no rope factor");
        check(r#","num_key_value_heads":3"#, "4 query heads cannot share 3 key-value heads");
        check(r#","head_dim":5"#, "a head of 5 numbers cannot be rotated in pairs");
        check(r#","num_hidden_layers":0"#, "the configuration has a size that is zero or absurd");
        check(r#","vocab_size":null"#, "the configuration has no vocab_size");
    }

    #[test]
    fn families_differ_in_bias_and_norm() {
        let qwen2 = config(r#","architectures":["Qwen2ForCausalLM"]"#).unwrap();
        assert_eq!((qwen2.qkv_bias, qwen2.out_bias, qwen2.qk_norm()), (true, false, false));
        let qwen3 = config(r#","architectures":["Qwen3ForCausalLM"],"head_dim":32"#).unwrap();
        assert_eq!((qwen3.qkv_bias, qwen3.qk_norm(), qwen3.q_width()), (false, true, 128));
    }

    #[test]
    fn gguf_metadata_gives_the_same_configuration() {
        let number = |key: &str, value: i64| (format!("llama.{key}"), Value::from(value));
        let mut metadata = HashMap::from([
            ("general.architecture".to_owned(), Value::from("llama")),
            ("llama.attention.layer_norm_rms_epsilon".to_owned(), Value::from(f64::from(1e-5f32))),
            number("block_count", 2),
            number("embedding_length", 8),
            number("feed_forward_length", 16),
            number("attention.head_count", 4),
            number("attention.head_count_kv", 2),
            number("context_length", 64),
        ]);
        let read =
            |metadata: &_, divisors| Config::from_gguf(metadata, 10, |it| it == "output.weight", divisors);
        assert_eq!(read(&metadata, None), config(""));
        assert_eq!(read(&metadata, Some(&[8.0])).unwrap().frequencies, [0.125]);
        metadata.insert("llama.rope.scaling.type".to_owned(), Value::from("yarn"));
        assert_eq!(
            read(&metadata, None).unwrap_err().to_string(),
            "rope.scaling.type = yarn is not supported"
        );
        metadata.insert("general.architecture".to_owned(), Value::from("gemma3"));
        assert_eq!(read(&metadata, None), Err(ConfigError::Architecture("gemma3".to_owned())));
    }
}
