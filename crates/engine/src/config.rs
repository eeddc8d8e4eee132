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
    /// A variant that would compute something else, or numbers that are missing or do not fit together.
    #[error("{0}")]
    Unfit(String),
}

impl ConfigError {
    /// What to do about it.
    pub fn help(&self) -> &'static str {
        "use a Llama, Qwen2 or Qwen3 model, or serve this one with vLLM or SGLang"
    }
}

fn variant(key: &str, value: &str) -> ConfigError {
    ConfigError::Unfit(format!("{key} = {value} is not supported"))
}

fn missing(key: &str) -> ConfigError {
    ConfigError::Unfit(format!("the configuration has no {key}"))
}

/// Whether the model that this `config.json` describes can be run, told before its weights are there.
pub fn check_config(json: &[u8]) -> Result<(), ConfigError> {
    let hf: HfConfig = serde_json::from_slice(json)
        .map_err(|why| ConfigError::Unfit(format!("config.json cannot be read: {why}")))?;
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

/// Which architecture a GGUF file holds, and below whose name its other keys stand.
const ARCHITECTURE: &str = "general.architecture";

/// The kinds by the names of their classes, and what GGUF calls them.
const FAMILIES: [(Family, &str, &str); 3] = [
    (Family::Llama, "LlamaForCausalLM", "llama"),
    (Family::Qwen2, "Qwen2ForCausalLM", "qwen2"),
    (Family::Qwen3, "Qwen3ForCausalLM", "qwen3"),
];

/// Keys of `config.json`, and what GGUF calls them below the architecture's name.
const GGUF_KEYS: [(&str, &str); 9] = [
    ("num_hidden_layers", "block_count"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
];

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
        Self::read(hf, str::to_owned)
    }

    /// From GGUF metadata. `has` says whether the file has a tensor.
    pub fn from_gguf(
        metadata: &HashMap<String, Value>,
        vocab: usize,
        has: impl Fn(&str) -> bool,
    ) -> Result<Self, ConfigError> {
        let architecture = metadata.get(ARCHITECTURE).and_then(Value::as_str);
        let architecture = architecture.ok_or_else(|| missing(ARCHITECTURE))?;
        let key = |key: &str| format!("{architecture}.{key}");
        let scaling = metadata.get(&key("rope.scaling.type")).and_then(Value::as_str);
        if let Some(other) = scaling.filter(|it| *it != "none") {
            return Err(variant("rope.scaling.type", other));
        }
        let number = |(hf, gguf): &(&str, &str)| {
            let number = metadata.get(&key(gguf)).filter(|it| it.is_number());
            number.map(|it| ((*hf).to_owned(), it.clone()))
        };
        let numbers = Value::Object(GGUF_KEYS.iter().filter_map(number).collect());
        let numbers: HfConfig = serde_json::from_value(numbers)
            .map_err(|why| ConfigError::Unfit(format!("the metadata cannot be read: {why}")))?;
        let class = FAMILIES.iter().find(|it| it.2 == architecture).map_or(architecture, |it| it.1);
        let hf = HfConfig { architectures: vec![class.to_owned()], vocab_size: Some(vocab), ..numbers };
        let spelled = |hf: &str| GGUF_KEYS.iter().find(|it| it.0 == hf).map_or(hf.to_owned(), |it| key(it.1));
        Ok(Self {
            qkv_bias: has("blk.0.attn_q.bias"),
            out_bias: has("blk.0.attn_output.bias"),
            mlp_bias: has("blk.0.ffn_down.bias"),
            tied: !has("output.weight"),
            ..Self::read(&hf, spelled)?
        })
    }

    /// From the keys of `config.json`, which may be `spelled` in another way where they were found.
    fn read(hf: &HfConfig, spelled: impl Fn(&str) -> String) -> Result<Self, ConfigError> {
        let family = hf_family(hf)?;
        refuse_variants(hf)?;
        let need = |value: Option<usize>, key: &str| value.ok_or_else(|| missing(&spelled(key)));
        let (hidden, heads) =
            (need(hf.hidden_size, "hidden_size")?, need(hf.num_attention_heads, "num_attention_heads")?);
        let attention_bias = hf.attention_bias.unwrap_or(false);
        let config = Self {
            family,
            layers: need(hf.num_hidden_layers, "num_hidden_layers")?,
            hidden,
            inner: need(hf.intermediate_size, "intermediate_size")?,
            heads,
            kv_heads: hf.num_key_value_heads.unwrap_or(heads),
            head_dim: hf.head_dim.unwrap_or(hidden / heads.max(1)),
            vocab: need(hf.vocab_size, "vocab_size")?,
            context: need(hf.max_position_embeddings, "max_position_embeddings")?,
            epsilon: hf.rms_norm_eps.ok_or_else(|| missing(&spelled("rms_norm_eps")))? as f32,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            out_bias: family != Family::Qwen2 && attention_bias,
            mlp_bias: family == Family::Llama && hf.mlp_bias.unwrap_or(false),
            tied: hf.tie_word_embeddings.unwrap_or(false),
            frequencies: Vec::new(),
        };
        config.check()?;
        Ok(Self { frequencies: hf_frequencies(&hf.rope(), config.head_dim)?, ..config })
    }

    /// Refuses numbers that do not fit together.
    fn check(&self) -> Result<(), ConfigError> {
        let unfit = |what: String| Err(ConfigError::Unfit(what));
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
            return unfit("the configuration has a size that is zero or absurd".to_owned());
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv_heads) = (self.heads, self.kv_heads);
            return unfit(format!("{heads} query heads cannot share {kv_heads} key-value heads"));
        }
        if !self.head_dim.is_multiple_of(2) {
            return unfit(format!("a head of {} numbers cannot be rotated in pairs", self.head_dim));
        }
        Ok(())
    }
}

fn hf_family(hf: &HfConfig) -> Result<Family, ConfigError> {
    let class = hf.architectures.first().ok_or_else(|| missing("architectures"))?;
    let known = FAMILIES.iter().find(|it| it.1 == class).map(|it| it.0);
    known.ok_or_else(|| ConfigError::Architecture(class.clone()))
}

/// Settings that change what is computed.
fn refuse_variants(hf: &HfConfig) -> Result<(), ConfigError> {
    match hf.hidden_act.as_deref() {
        None | Some("silu" | "swish") => {}
        Some(other) => return Err(variant("hidden_act", other)),
    }
    if hf.use_sliding_window == Some(true) {
        return Err(variant("use_sliding_window", "true"));
    }
    if let Some(quantised) = &hf.quantization_config {
        let method = quantised.get("quant_method").and_then(|it| it.as_str()).unwrap_or("given");
        return Err(variant("quantization_config", method));
    }
    match hf.rope().partial_rotary_factor {
        Some(part) if part != 1.0 => Err(variant("partial_rotary_factor", &part.to_string())),
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
    let need = |value: Option<f64>, key: &str| value.map(|it| it as f32).ok_or_else(|| missing(key));
    match rope.rope_type.as_deref() {
        None | Some("default") => Ok(plain),
        Some("linear") => {
            let factor = need(rope.factor, "rope factor")?;
            Ok(plain.iter().map(|it| it / factor).collect())
        }
        Some("llama3") => {
            let factor = need(rope.factor, "rope factor")?;
            let low = need(rope.low_freq_factor, "rope low_freq_factor")?;
            let high = need(rope.high_freq_factor, "rope high_freq_factor")?;
            let context = rope.original_max_position_embeddings;
            let context = need(context, "rope original_max_position_embeddings")?;
            Ok(plain.iter().map(|&it| stretched(it, factor, [low, high], context)).collect())
        }
        Some(other) => Err(variant("rope_type", other)),
    }
}

/// Llama 3's stretching of the context: slow rotations are slowed down more, fast ones are left, those between are blended.
fn stretched(frequency: f32, factor: f32, [low, high]: [f32; 2], context: f32) -> f32 {
    let turns = context * frequency / std::f32::consts::TAU;
    if turns > high {
        frequency
    } else if turns < low {
        frequency / factor
    } else {
        let blend = (turns - low) / (high - low);
        (1.0 - blend) * frequency / factor + blend * frequency
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
        let read = |metadata: &_| Config::from_gguf(metadata, 10, |it| it == "output.weight");
        assert_eq!(read(&metadata), config(""));
        metadata.insert("llama.rope.scaling.type".to_owned(), Value::from("yarn"));
        assert_eq!(read(&metadata).unwrap_err().to_string(), "rope.scaling.type = yarn is not supported");
        let epsilon = metadata.remove("llama.attention.layer_norm_rms_epsilon");
        metadata.remove("llama.rope.scaling.type");
        let missing = "the configuration has no llama.attention.layer_norm_rms_epsilon";
        assert_eq!((epsilon.is_some(), read(&metadata).unwrap_err().to_string().as_str()), (true, missing));
        metadata.insert("general.architecture".to_owned(), Value::from("gemma3"));
        assert_eq!(read(&metadata), Err(ConfigError::Architecture("gemma3".to_owned())));
    }
}
