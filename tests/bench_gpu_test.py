#!/usr/bin/env python3
"""What mlaverify bench tells of calls on a GPU: nodes of their graphs, sustained times, host times. No time is judged. Needs a GPU: label gpu.

usage: bench_gpu_test.py PATH_TO_MLAVERIFY
"""
import json
import os
import shlex
import subprocess
import sys
import unittest

PROGRAM = None
SHAPES = ["--heads 16 --qlen 1 --batch 1 --seq-len 1024", "--heads 16 --qlen 4 --seq-len 20000,64,700,1000",
          "--heads 128 --qlen 2 --batch 3 --seq-len 3000", "--heads 16 --qlen 4 --batch 4 --seq-len 900 --page-size 1",
          "--heads 16 --qlen 4 --batch 4 --seq-len 900 --kv-dtype f8_e4m3",
          "--heads 16 --qlen 4 --batch 4 --seq-len 900 --dtype f16 --kv-dtype f16",
          "--heads 16 --qlen 4 --batch 4 --seq-len 900 --dtype f32 --kv-dtype f32"]


class Bench(unittest.TestCase):
    def run_bench(self, *args):
        command = [PROGRAM, "bench", "--backend", "cuda", *args]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, shlex.join(command) + "\n" + done.stdout + done.stderr)
        return done.stdout

    # The first call of a process is one that is captured in a graph: at most two kernels and nothing else.
    def test_first_calls(self):
        for shape in SHAPES:
            with self.subTest(shape):
                call = json.loads(self.run_bench("--first-call", "warm", "--json", *shape.split()))
                self.assertEqual(call["shape"], shape)
                self.assertEqual(call["first_call"], "warm")
                self.assertIn(call["kernel_nodes"], (1, 2))
                self.assertEqual(call["other_nodes"], 0)
                self.assertGreater(call["first_seconds"], 0)
                self.assertGreater(call["later_seconds"], 0)

    def test_first_call_text(self):
        self.assertIn("other nodes in its graph: 0", self.run_bench("--first-call", "warm", *SHAPES[0].split()))

    def test_sustained(self):
        shape = json.loads(self.run_bench("--sustained", "--json", *SHAPES[0].split()))["shapes"][0]
        self.assertEqual(shape["sustained"]["repetitions"], 31)
        self.assertGreater(shape["sustained"]["seconds"], 0)

    def test_host_overhead(self):
        host = json.loads(self.run_bench("--host-overhead", "--json", *SHAPES[0].split()))["shapes"][0]["host"]
        self.assertGreaterEqual(host["repetitions"], 200)
        self.assertGreater(host["seconds"], 0)
        self.assertGreaterEqual(host["p90_seconds"], host["seconds"])

    def test_host_overhead_text(self):
        self.assertIn("host us     p90", self.run_bench("--host-overhead", *SHAPES[0].split()))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
