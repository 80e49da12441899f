#!/usr/bin/env python3
"""Compares the package with vLLM's Triton decode kernel on this GPU: results row by row, and times, shape by shape of a grid.

    python bench/compare_vllm.py                            # the grid h200; vLLM must be installed
    python bench/compare_vllm.py --grid MY.txt --json OUT
    python bench/compare_vllm.py --file triton_decode_attention.py   # that file of vLLM alone

Where vLLM has decode_attention_fwd_verify, that is compared; else decode_attention_fwd, which computes one token a row, called as vLLM's
Triton backend calls it: block table rows repeated, and a length for every row. "flat" is this library called with the same repeated
rows: what replacing decode_attention_fwd would give. Times are those of graph replays on the device: a graph of calls that take 4 ms, over
page sets of 256 MiB in all, replayed 7 times; the median. Needs torch and triton.
"""

import argparse
import importlib
import importlib.util
import json
import math
import multiprocessing
import shlex
import statistics
import sys
import types
from datetime import date
from pathlib import Path

import torch

import mlaverify

LK, LV, PAGE = 576, 512, 64
ROTATED_BYTES = 256 << 20
GRAPH_SECONDS, REPLAYS = 4e-3, 7
TOLERANCE, LSE_TOLERANCE = 8e-3, 4e-3  # two results, each within half of it of the exact one (docs/tolerance.md)
ROOT = Path(__file__).resolve().parents[1]
TYPES = {"bf16": torch.bfloat16, "f8_e4m3": torch.float8_e4m3fn}


def load_triton_module(file):
    """vLLM's module, or one file of it with the two modules that it imports."""
    if file is None:
        if importlib.util.find_spec("vllm") is None:
            sys.exit("vLLM is not installed; --file names its triton_decode_attention.py")
        return importlib.import_module("vllm.v1.attention.ops.triton_decode_attention")
    import triton
    import triton.language

    names = ("vllm", "vllm.platforms", "vllm.triton_utils")
    stand_ins = {name: types.ModuleType(name) for name in names}
    stand_ins["vllm.platforms"].current_platform = types.SimpleNamespace(is_rocm=lambda: False)
    stand_ins["vllm.triton_utils"].tl, stand_ins["vllm.triton_utils"].triton = triton.language, triton
    sys.modules.update(stand_ins)
    spec = importlib.util.spec_from_file_location("triton_decode_attention", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_grid(path):
    """The shapes of a grid file: (line, heads, qlen, lengths, kv_dtype)."""
    parser = argparse.ArgumentParser()
    for option, default in (("--heads", 16), ("--qlen", 1), ("--batch", None), ("--page-size", PAGE), ("--lk", LK), ("--lv", LV)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--seq-len", required=True)
    parser.add_argument("--dtype", default="bf16", choices=["bf16"])
    parser.add_argument("--kv-dtype", default="bf16", choices=TYPES)
    shapes = []
    for line in Path(path).read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        o = parser.parse_args(shlex.split(line))
        if (o.page_size, o.lk, o.lv) != (PAGE, LK, LV):
            sys.exit(f"{path}: {line}: only pages of {PAGE} keys and widths of {LK}/{LV} are compared")
        lens = [int(n) for n in o.seq_len.split(",")]
        shapes.append((line, o.heads, o.qlen, lens * (o.batch or 1) if len(lens) == 1 else lens, o.kv_dtype))
    return shapes


def vllm_num_kv_splits(max_seq_len):
    """As vLLM's Triton backend (0.33) chooses it."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    return min(1 << math.ceil(math.log2(max(1, max_seq_len // 512))), 2 * multiprocessors)


class Case:
    """The tensors of a shape, its pages several times over."""

    def __init__(self, heads, qlen, lens, kv_dtype):
        torch.manual_seed(0)
        self.heads, self.qlen, self.batch, self.max_len = heads, qlen, len(lens), max(lens)
        device, rows = "cuda", len(lens) * qlen
        pages = [-(-n // PAGE) for n in lens]
        page_bytes = PAGE * LK * TYPES[kv_dtype].itemsize
        self.sets = max(1, math.ceil(ROTATED_BYTES / (sum(pages) * page_bytes)))
        self.kv = torch.empty((self.sets * sum(pages), PAGE, 1, LK), dtype=TYPES[kv_dtype], device=device)
        for part in self.kv.split(4096):
            part.copy_(torch.randn(part.shape, device=device))
        self.q = torch.randn((rows, heads, LK), device=device).bfloat16()
        self.sm_scale = 1 / math.sqrt(LK)
        self.k_scale = torch.ones((), device=device)
        self.seq_lens = torch.tensor(lens, dtype=torch.int32, device=device)
        order = torch.randperm(len(self.kv), device=device).int()
        self.tables = []
        for n in range(self.sets):
            table = torch.zeros((len(lens), max(pages)), dtype=torch.int32, device=device)
            at = n * sum(pages)
            for b, count in enumerate(pages):
                table[b, :count] = order[at : at + count]
                at += count
            self.tables.append(table)
        offsets = torch.arange(1 - qlen, 1, dtype=torch.int32, device=device)
        self.row_lens = (self.seq_lens[:, None] + offsets).flatten().clamp(min=0)
        self.row_tables = [t.repeat_interleave(qlen, dim=0) for t in self.tables] if qlen > 1 else self.tables
        self.splits = vllm_num_kv_splits(self.max_len)
        self.logits = torch.empty((rows, heads, self.splits, LV + 1), device=device)

    def outputs(self):
        rows, heads, _ = self.q.shape
        return self.q.new_full((rows, heads, LV), math.nan), self.q.new_full((rows, heads), math.nan, dtype=torch.float32)

    def ours(self, out, lse, n, flat=False):
        table, lens, qlen = (self.row_tables[n], self.row_lens, 1) if flat else (self.tables[n], self.seq_lens, self.qlen)
        mlaverify.verify(
            self.q, self.kv, table, lens, qlen=qlen, v_head_dim=LV, sm_scale=self.sm_scale, k_scale=self.k_scale, out=out, lse=lse
        )

    def flat(self, out, lse, n):
        self.ours(out, lse, n, flat=True)

    def triton(self, module):
        """The call of vLLM's function."""
        values = self.kv[..., :LV]
        if hasattr(module, "decode_attention_fwd_verify"):
            return lambda out, lse, n: module.decode_attention_fwd_verify(
                self.q, self.kv, values, out, lse, self.tables[n], self.seq_lens, None, self.qlen, self.logits, self.splits, self.sm_scale,
                PAGE, k_scale=self.k_scale,
            )  # fmt: skip
        return lambda out, lse, n: module.decode_attention_fwd(
            self.q, self.kv, values, out, lse, self.row_tables[n], self.row_lens, self.logits, self.splits, self.sm_scale, PAGE,
            k_scale=self.k_scale, v_scale=self.k_scale, is_mla=True,
        )  # fmt: skip


def seconds_of(call, sets, out, lse):
    """Median time of a call in a graph."""
    call(out, lse, 0)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(out, lse, 0)
    end.record()
    end.synchronize()
    count = math.ceil(GRAPH_SECONDS / max(begin.elapsed_time(end) * 1e-3, 5e-6) / sets) * sets
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            call(out, lse, i % sets)
    times = []
    graph.replay()
    for _ in range(REPLAYS):
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / count)
    return statistics.median(times)


def difference(ours, theirs):
    """The largest difference of a row of out, relative to the row, and of lse, relative beyond 1."""
    a, b = (result[0].float() for result in (ours, theirs))
    rows = (a - b).norm(dim=-1) / b.norm(dim=-1).clamp(min=1e-30)
    lse = (ours[1] - theirs[1]).abs() / theirs[1].abs().clamp(min=1)
    return float(rows.max()), float(lse.max())


def compare(shape, module):
    line, heads, qlen, lens, kv_dtype = shape
    case = Case(heads, qlen, lens, kv_dtype)
    calls = {"ours": case.ours, "flat": case.flat, "vllm": case.triton(module)}
    results, times = {}, {}
    for name, call in calls.items():
        out, lse = results[name] = case.outputs()
        call(out, lse, 0)
    errors = [difference(results[name], results["vllm"]) for name in ("ours", "flat")]
    error, lse_error = (max(column) for column in zip(*errors))
    for name, call in calls.items():
        times[name] = seconds_of(call, case.sets, *results[name])
    return {"shape": line, "heads": heads, "qlen": qlen, "seq_lens": lens, "kv_dtype": kv_dtype, "splits": case.splits, "seconds": times,
            "difference": error, "lse_difference": lse_error, "agree": error <= TOLERANCE and lse_error <= LSE_TOLERANCE}  # fmt: skip


def compile_variant(arguments):
    """Fills triton's cache: one variant, on a small case."""
    file, heads, kv_dtype, max_len = arguments
    case = Case(heads, 2, [64, 64], kv_dtype)
    case.splits = vllm_num_kv_splits(max_len)
    case.logits = torch.empty((4, heads, case.splits, LV + 1), device="cuda")
    case.row_tables = [torch.nn.functional.pad(t, (0, -(-max_len // PAGE) - 1)) for t in case.row_tables]
    case.tables = [torch.nn.functional.pad(t, (0, -(-max_len // PAGE) - 1)) for t in case.tables]
    case.triton(load_triton_module(file))(*case.outputs(), 0)
    torch.cuda.synchronize()


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", default=ROOT / "shapes" / "h200.txt", help="a grid file of mlaverify bench (shapes/h200.txt)")
    parser.add_argument("--file", help="vLLM's triton_decode_attention.py, where vLLM is not installed")
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile Triton variants beforehand")
    options = parser.parse_args()
    shapes = read_grid(options.grid)
    variants = sorted({(options.file, heads, kv_dtype, max(lens)) for _, heads, _, lens, kv_dtype in shapes})
    with multiprocessing.get_context("spawn").Pool(min(options.jobs, len(variants))) as pool:
        pool.map(compile_variant, variants, chunksize=1)
    module = load_triton_module(options.file)
    print(f"mlaverify {mlaverify.__version__}, torch {torch.__version__}, {torch.cuda.get_device_name()}; us", flush=True)
    print(f"{'ours':>9} {'flat':>9} {'vLLM':>9} {'vLLM/ours':>9} {'vLLM/flat':>9} {'diff':>8}  shape", flush=True)
    results = []
    for shape in shapes:
        result = compare(shape, module)
        results.append(result)
        us = {name: value * 1e6 for name, value in result["seconds"].items()}
        print(f"{us['ours']:9.1f} {us['flat']:9.1f} {us['vllm']:9.1f} {us['vllm'] / us['ours']:9.2f} {us['vllm'] / us['flat']:9.2f} "
              f"{result['difference']:8.1e}  {'' if result['agree'] else 'DIFFERS '}{result['shape'][:60]}", flush=True)  # fmt: skip
    ratios = {name: geometric_mean([r["seconds"]["vllm"] / r["seconds"][name] for r in results]) for name in ("ours", "flat")}
    print(f"geometric mean of {len(results)}: vLLM/ours {ratios['ours']:.2f}, vLLM/flat {ratios['flat']:.2f}; "
          f"largest difference {max(r['difference'] for r in results):.1e}")  # fmt: skip
    if options.json:
        head = {"date": date.today().isoformat(), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                "mlaverify": mlaverify.__version__}  # fmt: skip
        Path(options.json).write_text(json.dumps({**head, "shapes": results}, indent=1))
    return 0 if all(r["agree"] for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
