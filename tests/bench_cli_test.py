#!/usr/bin/env python3
"""mlaverify bench as a user meets it: exit codes, messages of one line, JSON that adds up. No time is judged.

usage: bench_cli_test.py PATH_TO_MLAVERIFY
"""
import json
import os
import shlex
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None
TINY = ["--heads", "2", "--qlen", "2", "--batch", "2", "--seq-len", "33", "--threads", "1"]


def bench(*args, **env):
    done = subprocess.run([PROGRAM, "bench", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=300, env={**os.environ, **env})
    done.repeat = shlex.join([PROGRAM, "bench", *args]) + "\n" + done.stdout + done.stderr
    return done


class BadInput(unittest.TestCase):
    def refused(self, *args, says, code=2, **env):
        done = bench(*args, **env)
        self.assertEqual(done.returncode, code, done.repeat)
        self.assertEqual(done.stdout, "", done.repeat)
        self.assertEqual(done.stderr.count("\n"), 1, done.repeat)
        for text in says:
            self.assertIn(text, done.stderr, done.repeat)

    def test_sizes(self):
        for option, value in [("heads", "0"), ("heads", "x"), ("heads", ""), ("qlen", "-3"), ("batch", "1e3"),
                              ("seq-len", "5,x"), ("seq-len", "4294967297"), ("page-size", "0"), ("dtype", "f64"),
                              ("kv-dtype", "int8"), ("lk", "12"), ("lv", "4096")]:
            args = TINY[:]
            if "--" + option in args:
                at = args.index("--" + option)
                del args[at:at + 2]
            self.refused(*args, "--" + option, value, says=["--" + option, "should be"])

    def test_missing_and_contradicting_options(self):
        self.refused("--heads", "4", says=["--seq-len is missing"])
        self.refused("--grid", "smoke", "--heads", "4", says=["--grid", "--heads"])
        self.refused("--batch", "3", "--seq-len", "5,6", says=["--batch", "as many as --seq-len"])
        self.refused("--threads", "0", *TINY[:-2], says=["--threads"])
        self.refused("--num-kv-splits", "-1", *TINY, says=["--num-kv-splits"])
        self.refused("--backend", "abacus", *TINY, says=["--backend", "abacus"])
        self.refused("--nonsense", says=["--nonsense"])

    def test_properties_have_shapes_of_their_own(self):
        for option in (["--grid", "smoke"], ["--heads", "4"], ["--page-size", "8"], ["--num-kv-splits", "2"], ["--invariant"],
                       ["--sustained"], ["--host-overhead"], ["--vs", "true"], ["--first-call", "warm"]):
            self.refused("--properties", *option, says=["--properties", option[0]])
        self.refused("--strict", *TINY, says=["--strict", "--properties"])

    def test_first_call(self):
        self.refused("--first-call", "hot", *TINY, says=["--first-call", "hot", "warm", "cold"])
        self.refused("--first-call", "warm", says=["--first-call", "24 shapes", "should be one"])
        for option in ("--sustained", "--host-overhead"):
            self.refused("--first-call", "cold", option, *TINY, says=["--first-call", option])

    def test_what_needs_a_gpu(self):
        for option in (["--properties"], ["--first-call", "warm", *TINY], ["--host-overhead", *TINY]):
            self.refused(*option, says=[option[0], "the backend is cpu, should be cuda"], code=3, MLAVERIFY_BACKEND="cpu")
            self.refused(*option, "--backend", "cpu", says=["should be cuda"], code=3)

    def test_more_than_the_machine_has(self):
        self.refused("--batch", "1048576", "--seq-len", "2147483647", says=["--batch 1048576", "GB of memory"])
        self.refused("--heads", "65536", "--qlen", "65536", "--batch", "65536", "--seq-len", "1", says=["GB of memory"])
        self.refused("--page-size", "2147483647", "--seq-len", "1", says=["GB of memory"])

    def test_grids(self):
        self.refused("--grid", "no_such_grid", says=["no_such_grid", "cpu", "smoke"])
        self.refused("--grid", "/dev/zero", says=["/dev/zero", "not a plain file"])
        with tempfile.TemporaryDirectory() as folder:
            self.refused("--grid", folder, says=[folder, "not a plain file"])
            path = os.path.join(folder, "grid.txt")
            for content, place in [(b"", ": no shape"), (b"--seq-len 5\n--heads many --seq-len 5\n", ":2: --heads"),
                                   (b"\x00\xff\x1b[2J", ":1: "), (b"[" * 100000, ":1: "), (b"#" * 2000000, ": longer than")]:
                with open(path, "wb") as f:
                    f.write(content)
                self.refused("--grid", path, says=[path + place])

    def test_backend_that_cannot_run(self):
        self.refused(*TINY, says=["abacus"], MLAVERIFY_BACKEND="abacus")
        info = json.loads(subprocess.run([PROGRAM, "info", "--json"], stdout=subprocess.PIPE, check=True).stdout)
        for backend in info["backends"]:
            if not backend["available"]:
                name = backend["name"]
                self.refused(*TINY, "--backend", name, says=[name, "cannot run here", backend["detail"]], code=3)
                self.refused(*TINY, says=[name, "cannot run here"], code=3, MLAVERIFY_BACKEND=name)


class Runs(unittest.TestCase):
    def report(self, *args):
        done = bench("--json", *args, MLAVERIFY_BACKEND="cpu")
        self.assertEqual(done.returncode, 0, done.repeat)
        self.assertEqual(done.stderr, "", done.repeat)
        return json.loads(done.stdout)

    def check_shape(self, report, shape):
        peak = report["ceilings"]
        for key in ("seconds", "bytes", "flops", "bytes_per_second", "flops_per_second", "floor_seconds", "times_floor"):
            self.assertGreater(shape[key], 0, key)
        self.assertGreaterEqual(shape["spread"], 0)
        self.assertGreaterEqual(shape["repetitions"], 5)
        bf16 = shape["dtype"] == "bf16" and shape["kv_dtype"] in ("bf16", "f8_e4m3", "f8_e5m2", "f8_ds_mla")
        bf16 = bf16 and (shape["lk"] | shape["lv"]) % 32 == 0 and shape["lv"] >= 128
        rate = peak.get("bf16_flops_per_second", peak["flops_per_second"]) if bf16 else peak["flops_per_second"]
        floor = max(shape["bytes"] / peak["bytes_per_second"], shape["flops"] / rate)
        self.assertAlmostEqual(shape["floor_seconds"] / floor, 1, places=9)
        self.assertAlmostEqual(shape["times_floor"] * shape["floor_seconds"] / shape["seconds"], 1, places=9)

    def test_one_shape(self):
        for backend in ("auto", "cpu", "reference"):
            with self.subTest(backend):
                report = self.report(*TINY, "--backend", backend)
                self.assertEqual(report["threads"], 1)
                self.assertEqual(report["backend"], "cpu" if backend == "auto" else backend)
                for key in ("version", "compiler", "cpu", "isa"):
                    self.assertTrue(report[key], key)
                self.assertEqual(len(report["shapes"]), 1)
                shape = report["shapes"][0]
                self.check_shape(report, shape)
                # Two requests of 33 keys: the first of two tokens sees 32 of them.
                self.assertEqual(shape["seq_lens"], [33, 33])
                self.assertEqual(shape["flops"], 2 * 2 * (32 + 33) * 2 * (576 + 512))
                self.assertEqual(shape["bytes"], 2 * 33 * 576 * 2 + 2 * 2 * 2 * (576 + 512) * 2)
                self.assertAlmostEqual(report["geometric_mean_times_floor"] / shape["times_floor"], 1, places=9)

    def test_invariant(self):
        report = self.report(*TINY, "--invariant")
        shape = report["shapes"][0]
        self.assertGreater(shape["invariant"]["seconds"], 0)
        self.assertAlmostEqual(shape["invariant"]["ratio"] * shape["seconds"] / shape["invariant"]["seconds"], 1, places=9)
        self.assertAlmostEqual(report["geometric_mean_invariant_ratio"] / shape["invariant"]["ratio"], 1, places=9)

    def test_sustained(self):
        report = self.report(*TINY, "--sustained")
        shape = report["shapes"][0]
        sustained = shape["sustained"]
        self.assertAlmostEqual(sustained["bytes_per_second"] * sustained["seconds"] / shape["bytes"], 1, places=9)
        self.assertAlmostEqual(sustained["flops_per_second"] * sustained["seconds"] / shape["flops"], 1, places=9)
        self.assertAlmostEqual(sustained["times_floor"] * shape["floor_seconds"] / sustained["seconds"], 1, places=9)
        self.assertGreaterEqual(sustained["repetitions"], 5)
        self.assertNotIn("recorded", sustained)  # peers were timed on a GPU
        self.assertAlmostEqual(report["geometric_mean_sustained_times_floor"] / sustained["times_floor"], 1, places=9)
        self.assertNotIn("sustained", self.report(*TINY)["shapes"][0])

    def test_sustained_text(self):
        done = bench(*TINY, "--sustained", MLAVERIFY_BACKEND="cpu")
        self.assertEqual(done.returncode, 0, done.repeat)
        for text in ("sustained: ", "--threads 1 --sustained"):
            self.assertIn(text, done.stdout, done.repeat)
        head, row = done.stdout.split("\n\n")[1].splitlines()[:2]
        self.assertEqual(head.split().count("GFLOP/s"), 2, done.repeat)
        self.assertEqual(len(row[:row.index("--heads")].split()), 9, done.repeat)

    def test_records_have_656_bytes_a_key(self):
        report = self.report("--heads", "2", "--seq-len", "20,3", "--kv-dtype", "f8_ds_mla", "--threads", "1")
        self.check_shape(report, report["shapes"][0])
        self.assertEqual(report["shapes"][0]["bytes"], 23 * 656 + 2 * 2 * (576 + 512) * 2)

    def test_the_printed_shape_repeats_it(self):
        first = self.report("--seq-len", "20,3", "--page-size", "7", "--dtype", "f16", "--kv-dtype", "f8_e5m2", "--lk", "64",
                            "--lv", "64", "--threads", "1", "--num-kv-splits", "2")["shapes"][0]
        again = self.report(*first["shape"].split(), "--threads", "1")["shapes"][0]
        for key in ("shape", "heads", "qlen", "seq_lens", "page_size", "dtype", "kv_dtype", "lk", "lv", "bytes", "flops"):
            self.assertEqual(first[key], again[key], key)

    def test_a_grid_of_ones_own_with_storage_from_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "grid.txt")
            with open(path, "w") as f:
                f.write("# mine\n--heads 3 --seq-len 9 # short\n\n--heads 1 --qlen 2 --seq-len 5,70\n")
            report = self.report("--grid", path, "--kv-dtype", "f32", "--threads", "2")
        self.assertEqual([s["shape"] for s in report["shapes"]],
                         ["--heads 3 --qlen 1 --batch 1 --seq-len 9 --kv-dtype f32", "--heads 1 --qlen 2 --seq-len 5,70 --kv-dtype f32"])
        for shape in report["shapes"]:
            self.check_shape(report, shape)

    def test_text(self):
        done = bench(*TINY, MLAVERIFY_BACKEND="cpu")
        self.assertEqual(done.returncode, 0, done.repeat)
        self.assertEqual(done.stderr, "", done.repeat)
        for text in ("GB/s", "GFLOP/s", "\u00d7 floor", "geometric mean over 1 shape", "--heads 2 --qlen 2 --batch 2 --seq-len 33"):
            self.assertIn(text, done.stdout, done.repeat)

    def test_help(self):
        done = bench("--help")
        self.assertEqual(done.returncode, 0, done.repeat)
        for option in ("--grid", "--heads", "--qlen", "--batch", "--seq-len", "--page-size", "--threads", "--invariant", "--sustained",
                       "--host-overhead", "--properties", "--strict", "--first-call", "--json"):
            self.assertIn(option, done.stdout)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
