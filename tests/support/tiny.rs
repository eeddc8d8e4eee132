//! A tiny random Llama with a tokenizer and a chat template, written where a test wants it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "not every test uses all of it")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

pub const VOCAB: usize = 720;
const HIDDEN: usize = 32;
const INNER: usize = 48;
const KV: usize = 16;
const N_LAYERS: usize = 2;

/// A template that ignores tools and tool calls, as SmolLM2's does.
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A recorded file; all crates share them.
pub fn fixture(name: &str) -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|dir| dir.join("tests/fixtures"));
    above.find(|dir| dir.is_dir()).unwrap().join(name)
}

/// Writes the model; all of it, or with other values in its `config.json`.
pub fn write_model(dir: &Path, changes: Value) {
    write_moved(dir, changes, 0.0);
}

/// The same with every weight moved by so much, up or down, as an optimiser's step does.
pub fn write_moved(dir: &Path, changes: Value, step: f32) {
    let mut config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": N_LAYERS,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "vocab_size": VOCAB,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::create_dir_all(dir).unwrap();
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("chat_template.jinja"), TEMPLATE).unwrap();
    fs::write(dir.join("model.safetensors"), weights(step)).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(fixture("tokenizers/chatml").join(file), dir.join(file)).unwrap();
    }
}

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..N_LAYERS {
        let parts: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[HIDDEN]),
            ("post_attention_layernorm", &[HIDDEN]),
            ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
            ("self_attn.k_proj", &[KV, HIDDEN]),
            ("self_attn.v_proj", &[KV, HIDDEN]),
            ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
            ("mlp.gate_proj", &[INNER, HIDDEN]),
            ("mlp.up_proj", &[INNER, HIDDEN]),
            ("mlp.down_proj", &[HIDDEN, INNER]),
        ];
        shapes.extend(
            parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape.to_vec())),
        );
    }
    shapes
}

/// Numbers between -0.5 and 0.5 from a fixed seed, each moved by a step, as a safetensors file.
fn weights(step: f32) -> Vec<u8> {
    let (mut header, mut data, mut state) = (Map::new(), Vec::new(), 7_u64);
    for (name, shape) in shapes() {
        let begin = data.len();
        for _ in 0..shape.iter().product() {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
            let moved = number + if state >> 63 == 0 { step } else { -step };
            data.extend_from_slice(&moved.to_le_bytes());
        }
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]}));
    }
    let header = Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// A well-formed model of a quarter of a terabyte, in a sparse file whose tensors all lie at its beginning.
pub fn write_enormous(dir: &Path) {
    let (hidden, vocab) = (1u64 << 16, 1u64 << 20);
    fs::create_dir_all(dir).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 16, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
    });
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let layer = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"];
    let layer = layer.map(|it| (format!("layers.0.{it}"), vec![16, hidden]));
    let down = ["self_attn.o_proj", "mlp.down_proj"].map(|it| (format!("layers.0.{it}"), vec![hidden, 16]));
    let norms = ["layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"];
    let norms = norms.map(|it| (it.to_owned(), vec![hidden]));
    let embedding = ("embed_tokens".to_owned(), vec![vocab, hidden]);
    let tensors = layer.into_iter().chain(down).chain(norms).chain([embedding]);
    let header = tensors.map(|(name, shape)| {
        let end = shape.iter().product::<u64>() * 2;
        let info = json!({"dtype": "F16", "shape": shape, "data_offsets": [0, end]});
        (format!("model.{name}.weight"), info)
    });
    let header = serde_json::to_vec(&header.collect::<Map<_, _>>()).unwrap();
    let path = dir.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header].concat()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + hidden * vocab * 2).unwrap();
}
