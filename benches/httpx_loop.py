"""The loop of throughput.rs in Python with httpx: the same jobs, the same server, the same sum.

Usage: python httpx_loop.py URL N_JOBS CONCURRENCY
Prints one JSON object: seconds, cpu_seconds (of this process only) and the sum of all logprobs.
"""

import asyncio
import json
import sys
import time

import httpx

VOCAB = 49157
N_TOKENS, SPAN = 256, 32


def tokens(n):
    return [(n * 7919 + i * 31) % VOCAB for i in range(N_TOKENS)]


async def score(client, url, gate, n):
    body = {
        "input_ids": tokens(n),
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": N_TOKENS - SPAN - 1,
        "top_logprobs_num": 0,
    }
    async with gate:
        response = await client.post(url + "/generate", json=body)
    response.raise_for_status()
    rows = response.json()["meta_info"]["input_token_logprobs"][1:]
    assert len(rows) == SPAN
    return sum(row[0] for row in rows)


async def main(url, n_jobs, concurrency):
    gate = asyncio.Semaphore(concurrency)
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:
        await score(client, url, gate, 0)
        begun, cpu = time.perf_counter(), time.process_time()
        sums = await asyncio.gather(*(score(client, url, gate, n) for n in range(n_jobs)))
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "sum": sum(sums), "httpx": httpx.__version__}))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
