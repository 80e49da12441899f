#!/usr/bin/env python3
"""What a call of the Python package costs the host of a GPU: the time until it returns, while the GPU works behind. Needs torch and a GPU.

Calls are put on the stream 20 at a time, each timed by itself, then the stream is waited for, so that its queue is never full. As in an
engine that serves, gradients are off.
"""

import statistics
import time

import torch

import mlaverify
from mlaverify import torch_op

LK, LV, PAGE = 576, 512, 64
SHAPES = [(16, 4, 1, 1024), (128, 1, 32, 4096), (16, 4, 256, 1024)]  # heads, qlen, requests, keys
BURST, BURSTS = 20, 50


def tensors(heads, qlen, batch, keys):
    pages = keys // PAGE
    kv = torch.randn((batch * pages, PAGE, 1, LK), device="cuda").bfloat16()
    q = torch.randn((batch * qlen, heads, LK), device="cuda").bfloat16()
    table = torch.arange(batch * pages, dtype=torch.int32, device="cuda").view(batch, pages)
    lens = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    return q, kv, table, lens, q.new_empty((batch * qlen, heads, LV)), torch.empty((batch * qlen, heads), device="cuda")


def microseconds(call):
    """Median and ninth decile."""
    times = []
    for burst in range(BURSTS + 5):
        for _ in range(BURST):
            begin = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - begin)
        torch.cuda.synchronize()
        if burst == 4:  # what came first warmed up
            times.clear()
    return statistics.median(times) / 1e3, statistics.quantiles(times, n=10)[-1] / 1e3


def calls(heads, qlen, batch, keys):
    """The ways to call, by name."""
    q, kv, table, lens, out, lse = tensors(heads, qlen, batch, keys)
    triton_form = (q, kv, kv[..., :LV], out, lse, table, lens, None, qlen)
    options = {"qlen": qlen, "v_head_dim": LV, "sm_scale": 0.04}
    large = torch.empty((1 << 24,), device="cuda")  # more than any schedule needs
    return {
        "decode_attention_fwd_verify": lambda: mlaverify.decode_attention_fwd_verify(*triton_form, None, 1, 0.04, PAGE),
        "the same, in attn_logits": lambda: mlaverify.decode_attention_fwd_verify(*triton_form, large, 8, 0.04, PAGE),
        "verify, out and lse given": lambda: mlaverify.verify(q, kv, table, lens, **options, out=out, lse=lse),
        "verify": lambda: mlaverify.verify(q, kv, table, lens, **options),
        "torch.ops.mlaverify.verify": lambda: torch_op.verify(q, kv, table, lens, qlen, LV, 0.04),
    }


@torch.inference_mode()
def main():
    print(f"mlaverify {mlaverify.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}; us a call: median, p90")
    for shape in SHAPES:
        print("--heads {} --qlen {} --batch {} --seq-len {}".format(*shape))
        for name, call in calls(*shape).items():
            print("  {:6.2f} {:6.2f}  {}".format(*microseconds(call), name), flush=True)


if __name__ == "__main__":
    main()
