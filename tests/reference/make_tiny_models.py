#!/usr/bin/env python3
"""make_tiny_models.py OUT: tiny random decoders and their logprobs as Hugging Face transformers computes them in f32.

Needs `pip install torch transformers gguf`. Writes OUT/tiny-{llama,qwen2,qwen3}/ (weights, config.json,
expected.json) and OUT/tiny-llama/model.gguf with the same weights as llama.cpp would store them. The sizes are
awkward on purpose (not multiples of 16), and each model is stored in another number format.
expected.json: [{tokens, logprobs (of tokens[1:]), top (ids and logprobs of the five likeliest at the last position)}].
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

OUT = Path(sys.argv[1])
LENGTHS = [2, 3, 17, 64, 255, 300, 700]
COMMON = dict(num_hidden_layers=2, max_position_embeddings=8192, initializer_range=0.25)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)


def models():
    llama = LlamaConfig(vocab_size=131, hidden_size=40, intermediate_size=72, num_attention_heads=4, num_key_value_heads=2, head_dim=12, rope_parameters=LLAMA3, rms_norm_eps=1e-5, **COMMON)
    yield "tiny-llama", lambda: LlamaForCausalLM(llama), torch.float32
    qwen2 = Qwen2Config(vocab_size=128, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6), **COMMON)
    yield "tiny-qwen2", lambda: Qwen2ForCausalLM(qwen2), torch.float16
    qwen3 = Qwen3Config(vocab_size=160, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e4), **COMMON)
    yield "tiny-qwen3", lambda: Qwen3ForCausalLM(qwen3), torch.bfloat16


def randomise(model):
    """Biases and norms start as zeros and ones, which would hide mistakes."""
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
        elif "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)


def expected(model, vocab, rng):
    cases = []
    for length in LENGTHS:
        tokens = rng.integers(0, vocab, length).tolist()
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        given = logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
        top = logprobs[-1].topk(5)
        cases.append({
            "tokens": tokens,
            "logprobs": [round(x, 7) for x in given.tolist()],
            "top": [[i, round(x, 7)] for i, x in zip(top.indices.tolist(), top.values.tolist())],
        })
    return cases


def rope_factors(config):
    """The divisors llama.cpp's converter stores for Llama 3's stretched rotations."""
    rope = config.rope_parameters
    dim = config.head_dim
    for i in range(0, dim, 2):
        frequency = 1.0 / rope["rope_theta"] ** (i / dim)
        turns = rope["original_max_position_embeddings"] * frequency / (2 * math.pi)
        if turns > rope["high_freq_factor"]:
            yield 1.0
        elif turns < rope["low_freq_factor"]:
            yield rope["factor"]
        else:
            blend = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            yield 1.0 / ((1.0 - blend) / rope["factor"] + blend)


def write_gguf(model, path):
    """As llama.cpp's converter writes a Llama: rows of queries and keys reordered so that rotated pairs are adjacent."""
    config = model.config
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tensor("rope_freqs.weight", np.array(list(rope_factors(config)), dtype=np.float32))
    for name, weight in model.state_dict().items():
        data = weight.float().numpy()
        parts = name.split(".")
        if name == "model.embed_tokens.weight":
            name = "token_embd.weight"
        elif name == "model.norm.weight":
            name = "output_norm.weight"
        elif name == "lm_head.weight":
            name = "output.weight"
        else:
            kind = ".".join(parts[3:-1])
            if kind in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_proj" in kind else config.num_key_value_heads
                data = data.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(data.shape)
            name = f"blk.{parts[2]}.{names[kind]}.weight"
        writer.add_tensor(name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


rng = np.random.default_rng(20)
for seed, (name, make, dtype) in enumerate(models()):
    torch.manual_seed(seed)
    model = make()
    randomise(model)
    model = model.to(dtype)
    path = OUT / name
    # Small shards, so that one of the models has an index.
    model.save_pretrained(path, max_shard_size="100KB" if name == "tiny-llama" else "10MB")
    # Read back in f32: casting the model itself would also round its rotations.
    model = type(model).from_pretrained(path, dtype=torch.float32).eval()
    (path / "generation_config.json").unlink(missing_ok=True)
    with open(path / "expected.json", "w") as file:
        json.dump(expected(model, model.config.vocab_size, rng), file)
    if name == "tiny-llama":
        write_gguf(model, path / "model.gguf")
