//! `config.json` of a Hugging Face model directory, as transformers 4 and 5 write it.
//!
//! Owns the keys we read. The surprise: rotary settings moved. Version 4 has `rope_theta` and
//! `rope_scaling` (with `type` or `rope_type`), version 5 has both inside `rope_parameters`;
//! [`HfConfig::rope`] reads either. Deliberately absent: what the numbers must be.

use serde::Deserialize;
use serde_json::Value;

/// The keys of `config.json` that a decoder's shape depends on.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HfConfig {
    pub architectures: Vec<String>,
    pub vocab_size: Option<usize>,
    pub hidden_size: Option<usize>,
    pub intermediate_size: Option<usize>,
    pub num_hidden_layers: Option<usize>,
    pub num_attention_heads: Option<usize>,
    pub num_key_value_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub max_position_embeddings: Option<usize>,
    pub rms_norm_eps: Option<f64>,
    pub hidden_act: Option<String>,
    pub tie_word_embeddings: Option<bool>,
    pub attention_bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    pub use_sliding_window: Option<bool>,
    pub quantization_config: Option<Value>,
    pub rope_theta: Option<f64>,
    pub rope_scaling: Option<HfRope>,
    pub rope_parameters: Option<HfRope>,
}

/// How positions rotate queries and keys.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HfRope {
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    pub rope_theta: Option<f64>,
    pub factor: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub original_max_position_embeddings: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
}

impl HfConfig {
    /// The rotary settings, wherever they stand.
    pub fn rope(&self) -> HfRope {
        let rope = self.rope_parameters.clone().or_else(|| self.rope_scaling.clone()).unwrap_or_default();
        HfRope { rope_theta: rope.rope_theta.or(self.rope_theta), ..rope }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn check(json: &str, rope_type: Option<&str>, theta: f64) {
        let rope = serde_json::from_str::<HfConfig>(json).unwrap().rope();
        assert_eq!((rope.rope_type.as_deref(), rope.rope_theta), (rope_type, Some(theta)), "{json}");
    }

    #[test]
    fn rotary_settings_are_found_in_both_places() {
        check(r#"{"rope_theta": 1e5}"#, None, 1e5);
        check(r#"{"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "factor": 8}}"#, Some("llama3"), 5e5);
        check(r#"{"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}"#, Some("default"), 1e6);
        check(r#"{"rope_theta": 1e4, "rope_scaling": null}"#, None, 1e4);
    }
}
