#!/usr/bin/env python3
"""make_ggml_blocks.py OUT: random blocks of every ggml format we read, with the values of `pip install gguf`.

Written as tests/fixtures/ggml/blocks.json: [{kind, name, bytes (hex), values (f32, little endian, hex)}].
"""
import json
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize

FORMATS = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K]
# Byte offsets of the 16-bit floats of a block; random bytes there could be NaN.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}

rng = np.random.default_rng(7)
cases = []
for kind in FORMATS:
    numbers, size = GGML_QUANT_SIZES[kind]
    n_blocks = 2 if numbers > 1 else 32
    if kind == T.F32:
        data = rng.standard_normal(n_blocks).astype("<f4").view(np.uint8)
    elif kind == T.F16:
        data = rng.standard_normal(n_blocks).astype("<f2").view(np.uint8)
    elif kind == T.BF16:
        data = (rng.standard_normal(n_blocks).astype("<f4").view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    else:
        data = rng.integers(0, 256, n_blocks * size, dtype=np.uint8).reshape(n_blocks, size)
        for at in HALVES[kind]:
            data[:, at : at + 2] = rng.standard_normal((n_blocks, 1)).astype("<f2").view(np.uint8)
        data = data.reshape(-1)
    values = dequantize(data, kind).astype("<f4")
    cases.append({"kind": int(kind), "name": kind.name, "bytes": data.tobytes().hex(), "values": values.tobytes().hex()})
with open(sys.argv[1], "w") as file:
    json.dump(cases, file, indent=0)
