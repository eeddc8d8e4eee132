#!/usr/bin/env python3
"""llama_baseline.py GGUF THREADS: llama.cpp as a yardstick for the embedded engine.

Writes an F32 copy of GGUF beside it (once) and loads it with llama.cpp. Needs
`pip install --no-binary llama-cpp-python llama-cpp-python gguf numpy`, built from source so that it uses what the processor has.
Answers each line on stdin with one on stdout: seconds, seconds of them spent on the log-softmax, sum of the logprobs.
  score N          the logprob of each following token at all positions of an N-token prompt
  decode B C S     S greedy steps of B sequences after a context of C tokens, the context not counted, and the logprobs
                   of the tokens taken
llama.cpp gives logits; the log-softmax is done here with numpy, on as many threads, in pieces that stay in the cache.
"""
import ctypes
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

CHUNK = 512
SOFTMAX_ROWS = 4


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


def logprobs(rows, given):
    """The logprob of the given token of each row of logits."""
    found = np.empty(len(rows), np.float32)
    work = np.empty((SOFTMAX_ROWS, rows.shape[1]), np.float32)
    for start in range(0, len(rows), SOFTMAX_ROWS):
        piece = rows[start : start + SOFTMAX_ROWS]
        largest = piece.max(axis=1, keepdims=True)
        part = np.subtract(piece, largest, out=work[: len(piece)])
        own = part[np.arange(len(piece)), given[start : start + SOFTMAX_ROWS]].copy()
        found[start : start + SOFTMAX_ROWS] = own - np.log(np.exp(part, out=part).sum(axis=1))
    return found


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
    threads = int(sys.argv[2])
    params.n_threads = params.n_threads_batch = threads
    pool = ThreadPoolExecutor(threads)
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

    def logits(n):
        return np.ctypeslib.as_array(llama.llama_get_logits(context), (n, vocab))

    def timed_logprobs(n, given):
        """Seconds and the sum; waits for the logits first, which are not the log-softmax's."""
        rows = logits(n)
        began = time.perf_counter()
        size = -(-n // threads)
        parts = [pool.submit(logprobs, rows[at : at + size], given[at : at + size]) for at in range(0, n, size)]
        total = sum(float(part.result().sum(dtype=np.float64)) for part in parts)
        return np.array([time.perf_counter() - began, total])

    def read(prompt, sequence, following=None):
        spent = np.zeros(2)
        for start in range(0, len(prompt), CHUNK):
            chunk = prompt[start : start + CHUNK]
            decode([(token, start + i, sequence, following is not None) for i, token in enumerate(chunk)])
            if following is not None:
                spent += timed_logprobs(len(chunk), following[start : start + CHUNK])
        return spent

    def clear():
        llama.llama_memory_clear(llama.llama_get_memory(context), True)

    def score(n):
        clear()
        prompt = tokens(n + 1)
        began = time.perf_counter()
        spent = read(prompt[:n], 0, prompt[1:])
        return time.perf_counter() - began, *spent

    def generate(n_sequences, n_context, steps):
        clear()
        last = []
        for sequence in range(n_sequences):
            prompt = tokens(n_context, sequence)
            read(prompt[:-1], sequence)
            decode([(prompt[-1], n_context - 1, sequence, True)])
            last.append(int(logits(1)[0].argmax()))
        spent = np.zeros(2)
        began = time.perf_counter()
        for step in range(steps):
            decode([(token, n_context + step, sequence, True) for sequence, token in enumerate(last)])
            last = logits(n_sequences).argmax(axis=1).tolist()
            spent += timed_logprobs(n_sequences, last)
        return time.perf_counter() - began, *spent

    print(llama.llama_print_system_info().decode(), flush=True)
    for line in sys.stdin:
        kind, *numbers = line.split()
        print(*{"score": score, "decode": generate}[kind](*map(int, numbers)), flush=True)


main()
