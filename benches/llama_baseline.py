#!/usr/bin/env python3
"""llama_baseline.py GGUF THREADS: llama.cpp as a yardstick for the embedded engine.

Writes an F32 copy of GGUF beside it (once), loads it with llama.cpp through `pip install llama-cpp-python gguf`
(built from source, so that it uses what the processor has), and answers lines on stdin with seconds on stdout:
  score N          logits of all positions of an N-token prompt (the log-softmax is not done and not counted)
  decode B C S     S greedy steps of B sequences after a context of C tokens, the context not counted
"""
import ctypes
import os
import sys
import time

import numpy as np

CHUNK = 512


def write_f32(source, target):
    """The same model with all tensors dequantised."""
    from gguf import GGUFReader, GGUFValueType, GGUFWriter
    from gguf.quants import dequantize

    reader = GGUFReader(source)
    writer = GGUFWriter(target + ".part", reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in reader.tensors:
        data = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, data.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(target + ".part", target)


def main():
    path = sys.argv[1].removesuffix(".gguf") + ".f32.gguf"
    if not os.path.exists(path):
        write_f32(sys.argv[1], path)
    import llama_cpp as llama

    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 8192, CHUNK, CHUNK, 4
    params.kv_unified = True
    params.n_threads = params.n_threads_batch = int(sys.argv[2])
    context = llama.llama_init_from_model(model, params)
    batch = llama.llama_batch_init(CHUNK, 0, 1)

    def decode(entries):
        """Entries are (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position, 1, sequence
            batch.logits[i] = wanted
        assert llama.llama_decode(context, batch) == 0

    def tokens(n, salt=0):
        return [(i * 7919 + salt * 31) % (vocab - 100) + 50 for i in range(n)]

    def read(prompt, sequence, wanted):
        for start in range(0, len(prompt), CHUNK):
            decode([(token, start + i, sequence, wanted) for i, token in enumerate(prompt[start : start + CHUNK])])
            if wanted:
                llama.llama_get_logits_ith(context, 0)

    def clear():
        llama.llama_memory_clear(llama.llama_get_memory(context), True)

    def score(n):
        clear()
        prompt = tokens(n)
        began = time.perf_counter()
        read(prompt, 0, True)
        return time.perf_counter() - began

    def generate(n_sequences, n_context, steps):
        clear()
        for sequence in range(n_sequences):
            read(tokens(n_context, sequence), sequence, False)
        last = [tokens(n_context + 1, sequence)[-1] for sequence in range(n_sequences)]
        began = time.perf_counter()
        for step in range(steps):
            decode([(token, n_context + step, sequence, True) for sequence, token in enumerate(last)])
            rows = [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (vocab,)) for i in range(n_sequences)]
            last = [int(row.argmax()) for row in rows]
        return time.perf_counter() - began

    print(llama.llama_print_system_info().decode(), flush=True)
    for line in sys.stdin:
        kind, *numbers = line.split()
        print({"score": score, "decode": generate}[kind](*map(int, numbers)), flush=True)


main()
