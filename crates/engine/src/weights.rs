//! A decoder's weights, packed for the engine.
//!
//! Owns [`Weights`]: which tensors there must be, and their layout in memory. Queries, keys and values
//! are one matrix with heads filled up to whole lanes; gate and up alternate panel by panel, so that
//! both halves of a product are at hand when they are multiplied. Sizes that are no multiple of sixteen
//! are filled with zeros, which change no sum. Deliberately absent: files, and the computation.

use rayon::prelude::*;

use super::config::Config;
use super::gemm::Packed;
use super::load::{WeightSource, check_memory};
use super::simd::LANES;
use backsight_core::model::Error;

/// A matrix and what is added to its product.
#[derive(Debug, Default)]
pub struct Linear {
    /// The matrix.
    pub weights: Packed,
    /// One number per column, or none at all.
    pub bias: Vec<f32>,
}

/// The weights of one layer.
#[derive(Debug, Default)]
pub struct Layer {
    /// Before attention.
    pub attention_norm: Vec<f32>,
    /// Queries, keys, values.
    pub qkv: Linear,
    /// Norms of queries and keys by head; empty where there are none.
    pub q_norm: Vec<f32>,
    /// As `q_norm`.
    pub k_norm: Vec<f32>,
    /// After attention.
    pub out: Linear,
    /// Before the feed-forward part.
    pub mlp_norm: Vec<f32>,
    /// Gate and up, alternating by panel.
    pub gate_up: Linear,
    /// Back to the hidden state.
    pub down: Linear,
}

/// A decoder's weights.
#[derive(Debug)]
pub struct Weights {
    /// The embedding by row; empty when it is the head.
    embedding: Vec<f32>,
    /// The layers in order.
    pub layers: Vec<Layer>,
    /// After the last layer.
    pub norm: Vec<f32>,
    /// From hidden state to logits.
    pub head: Packed,
}

impl Weights {
    /// Checks every tensor and the memory, then reads and packs.
    pub fn load(source: &WeightSource, config: &Config) -> Result<Self, Error> {
        let tensors = tensors(config);
        tensors.iter().try_for_each(|(name, shape)| source.check(name, shape))?;
        let numbers: u64 = tensors.iter().map(|(_, shape)| shape.iter().product::<usize>() as u64).sum();
        let help = "close other programs, or use a smaller model";
        check_memory("the model needs", numbers * 4 + numbers / 4, help)?;
        let reader = WeightReader { source, config };
        let layers = (0..config.layers).into_par_iter().map(|i| reader.layer(i));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let embedding = source.read("model.embed_tokens.weight")?;
        let norm = reader.vector("model.norm.weight", config.hidden_padded())?;
        let (embedding, head) = match config.tied {
            true => (Vec::new(), embedding),
            false => (embedding, source.read("lm_head.weight")?),
        };
        let columns: Vec<_> = head.chunks_exact(config.hidden).map(Some).collect();
        let head = Packed::new(config.hidden, &columns);
        Ok(Self { embedding, layers, norm, head })
    }

    /// The embedding of a token into the first numbers of `out`.
    pub fn embed(&self, token: usize, out: &mut [f32]) {
        let hidden = self.head.inner();
        match self.embedding.get(token * hidden..(token + 1) * hidden) {
            Some(row) => out[..hidden].copy_from_slice(row),
            None => self.head.column(token, &mut out[..hidden]),
        }
    }
}

/// Every tensor of a model with its shape.
fn tensors(config: &Config) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden, config.inner);
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![config.vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    all.extend((!config.tied).then(|| ("lm_head.weight".to_owned(), vec![config.vocab, hidden])));
    for i in 0..config.layers {
        let mut add = |name: &str, shape: &[usize]| all.push((tensor_name(i, name), shape.to_vec()));
        let mut linear = |name: &str, rows: usize, columns: usize, bias: bool| {
            add(&format!("{name}.weight"), &[rows, columns]);
            if bias {
                add(&format!("{name}.bias"), &[rows]);
            }
        };
        linear("self_attn.q_proj", q, hidden, config.qkv_bias);
        linear("self_attn.k_proj", kv, hidden, config.qkv_bias);
        linear("self_attn.v_proj", kv, hidden, config.qkv_bias);
        linear("self_attn.o_proj", hidden, q, config.out_bias);
        linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
        linear("mlp.up_proj", inner, hidden, config.mlp_bias);
        linear("mlp.down_proj", hidden, inner, config.mlp_bias);
        add("input_layernorm.weight", &[hidden]);
        add("post_attention_layernorm.weight", &[hidden]);
        if config.qk_norm() {
            add("self_attn.q_norm.weight", &[config.head_dim]);
            add("self_attn.k_norm.weight", &[config.head_dim]);
        }
    }
    all
}

fn tensor_name(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
}

/// A stored matrix with its bias, or a column of zeros where there is no row.
struct Stored {
    weights: Vec<f32>,
    bias: Vec<f32>,
    inner: usize,
}

/// An output column: which stored matrix and which of its rows. `None` is filling.
type Column = Option<(usize, usize)>;

struct WeightReader<'a> {
    source: &'a WeightSource,
    config: &'a Config,
}

impl WeightReader<'_> {
    fn layer(&self, i: usize) -> Result<Layer, Error> {
        let config = self.config;
        let vector = |name: &str, len: usize| self.vector(&tensor_name(i, name), len);
        let head_norm = |name: &str| match config.qk_norm() {
            true => vector(name, config.head_padded()),
            false => Ok(Vec::new()),
        };
        Ok(Layer {
            attention_norm: vector("input_layernorm.weight", config.hidden_padded())?,
            qkv: self.qkv(i)?,
            q_norm: head_norm("self_attn.q_norm.weight")?,
            k_norm: head_norm("self_attn.k_norm.weight")?,
            out: self.out(i)?,
            mlp_norm: vector("post_attention_layernorm.weight", config.hidden_padded())?,
            gate_up: self.gate_up(i)?,
            down: pack(
                &[self.stored(i, "mlp.down_proj", config.inner, config.mlp_bias)?],
                (0..config.hidden).map(|row| Some((0, row))),
            ),
        })
    }

    /// A vector, filled with zeros.
    fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, Error> {
        let mut vector = self.source.read(name)?;
        vector.resize(len, 0.0);
        Ok(vector)
    }

    fn stored(&self, layer: usize, name: &str, inner: usize, bias: bool) -> Result<Stored, Error> {
        let read = |part: &str| self.source.read(&tensor_name(layer, &format!("{name}.{part}")));
        let bias = if bias { read("bias")? } else { Vec::new() };
        Ok(Stored { weights: read("weight")?, bias, inner })
    }

    fn qkv(&self, layer: usize) -> Result<Linear, Error> {
        let config = self.config;
        let read = |name: &str| self.stored(layer, name, config.hidden, config.qkv_bias);
        let stored = [read("self_attn.q_proj")?, read("self_attn.k_proj")?, read("self_attn.v_proj")?];
        let heads = [(config.heads, true), (config.kv_heads, true), (config.kv_heads, false)];
        let columns = heads.iter().enumerate().flat_map(|(which, &(n_heads, rotated))| {
            let rows = (0..n_heads).flat_map(move |head| self.head_rows(head, rotated));
            rows.map(move |row| row.map(|row| (which, row)))
        });
        Ok(pack(&stored, columns))
    }

    /// The stored row of each number of a head, then the filling.
    fn head_rows(&self, head: usize, rotated: bool) -> impl Iterator<Item = Option<usize>> + use<> {
        let (dim, padded) = (self.config.head_dim, self.config.head_padded());
        let adjacent = rotated && self.source.pairs_adjacent();
        let within = move |i: usize| if adjacent { i % (dim / 2) * 2 + i / (dim / 2) } else { i };
        (0..padded).map(move |i| (i < dim).then(|| head * dim + within(i)))
    }

    /// Attention's output takes heads that are filled up, so its matrix has zeros there.
    fn out(&self, layer: usize) -> Result<Linear, Error> {
        let config = self.config;
        let (dim, padded) = (config.head_dim, config.head_padded());
        let stored = self.stored(layer, "self_attn.o_proj", config.heads * dim, config.out_bias)?;
        let mut weights = vec![0.0; config.hidden * config.q_width()];
        for (to, from) in weights.chunks_exact_mut(padded).zip(stored.weights.chunks_exact(dim)) {
            to[..dim].copy_from_slice(from);
        }
        let stored = Stored { weights, inner: config.q_width(), bias: stored.bias };
        Ok(pack(&[stored], (0..config.hidden).map(|row| Some((0, row)))))
    }

    fn gate_up(&self, layer: usize) -> Result<Linear, Error> {
        let config = self.config;
        let read = |name: &str| self.stored(layer, name, config.hidden, config.mlp_bias);
        let stored = [read("mlp.gate_proj")?, read("mlp.up_proj")?];
        let panels = (0..config.inner_padded()).step_by(LANES).flat_map(|first| [(0, first), (1, first)]);
        let columns = panels.flat_map(|(which, first)| {
            (first..first + LANES).map(move |row| (row < config.inner).then_some((which, row)))
        });
        Ok(pack(&stored, columns))
    }
}

fn pack(stored: &[Stored], columns: impl Iterator<Item = Column>) -> Linear {
    let columns: Vec<Column> = columns.collect();
    let inner = stored.first().map_or(0, |it| it.inner);
    let row = |(which, row): (usize, usize)| &stored[which].weights[row * inner..][..inner];
    let rows: Vec<_> = columns.iter().map(|column| column.map(row)).collect();
    let bias = |column: &Column| column.map_or(0.0, |(which, row)| stored[which].bias[row]);
    let has_bias = stored.iter().any(|it| !it.bias.is_empty());
    let mut bias: Vec<f32> = if has_bias { columns.iter().map(bias).collect() } else { Vec::new() };
    bias.resize(if has_bias { columns.len().next_multiple_of(LANES) } else { 0 }, 0.0);
    Linear { weights: Packed::new(inner, &rows), bias }
}
