"""The command line program: right results, and bad input refused with one clear line. Usage: cli_test.py PATH_TO_MLAVERIFY"""
import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "conformance"))
import mla_oracle as oracle  # noqa: E402

PROGRAM = ""
TIMEOUT = 120  # seconds: a hang is a failure


def mlaverify(*args, env=None, file_size_limit=None):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))

    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT,
                          env={**os.environ, **(env or {})}, restore_signals=False,  # SIGXFSZ stays ignored: writes fail
                          preexec_fn=limit if file_size_limit is not None else None)


def small_step(q_dtype="BF16", kv_dtype="BF16", lens=(9, 5), qlen=2, heads=3, lk=48, lv=32, page=4, **meta):
    """A valid step as (tensors, metadata): name -> (dtype, raw array); dead slots NaN, garbage past the tables' ends."""
    rng = np.random.default_rng(1)
    pages = [-(-n // page) for n in lens]
    table = np.full((len(lens), max(pages, default=0) + 1), 2147480000, np.int32)
    kv = np.full((sum(pages) + 2, page, 1, lk), np.nan)
    free = list(rng.permutation(len(kv)))
    for b, n in enumerate(lens):
        for i in range(n):
            if i % page == 0:
                table[b, i // page] = free.pop()
            kv[table[b, i // page], i % page, 0] = rng.standard_normal(lk)
    raw = oracle.encode(kv_dtype, np.nan_to_num(kv))
    if kv_dtype == "BF16":
        raw[np.isnan(kv)] = 0x7FC0
    tensors = {"q": (q_dtype, oracle.encode(q_dtype, rng.standard_normal((len(lens) * qlen, heads, lk)))),
               "kv_cache": (kv_dtype, raw), "block_table": ("I32", table), "seq_lens": ("I32", np.array(lens, np.int32))}
    return tensors, {"qlen": qlen, "page_size": page, "v_head_dim": lv, "sm_scale": lk ** -0.5, "num_kv_splits": 0, **meta}


def record_step(q_dtype="BF16", **options):
    """The same with a cache of 656-byte records, all of a dead slot NaN."""
    tensors, meta = small_step(q_dtype, "F32", lk=576, lv=512, **options)
    kv = tensors["kv_cache"][1].astype(np.float64)
    records = oracle.to_records(kv)
    records[(kv == 0).all(axis=-1)] = 0xFF
    tensors["kv_cache"] = ("U8", records)
    return tensors, {**meta, "kv_cache_dtype": "fp8_ds_mla"}


class CliTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="mlaverify_cli_")
        self.addCleanup(shutil.rmtree, self.dir)

    def path(self, name="step.safetensors"):
        return os.path.join(self.dir, name)

    def save(self, tensors, meta, name="step.safetensors"):
        oracle.save(self.path(name), tensors, meta)
        return self.path(name)

    def save_bytes(self, data, name="step.safetensors"):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def assert_good(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)

    def assert_refused(self, result, *parts, code=2):
        """The exit code, and one line on standard error that has all parts."""
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertRegex(result.stderr, r"\Amlaverify: [^\n]+\n\Z")
        self.assertLess(len(result.stderr), 1000)
        for part in parts:
            self.assertIn(str(part), result.stderr)

    def assert_step_refused(self, path, *parts):
        """By `run`, which then leaves no output, and by `check`."""
        out = self.path("out.safetensors")
        self.assert_refused(mlaverify("run", path, "--out", out), path, *parts)
        self.assertFalse(os.path.exists(out))
        self.assert_refused(mlaverify("check", path), path, *parts)


class RunTest(CliTest):
    def run_step(self, tensors, meta, *args):
        path = self.save(tensors, meta)
        result = mlaverify("run", path, "--out", self.path("out.safetensors"), *args)
        self.assert_good(result)
        out, _ = oracle.load(self.path("out.safetensors"))
        self.assertEqual(sorted(out), ["lse", "o"])
        self.assertEqual((out["o"][0], out["lse"][0]), (tensors["q"][0], "F32"))
        want_o, want_lse = oracle.expected_for(tensors, meta)
        wrong = oracle.compare(oracle.decode(*out["o"]), oracle.decode(*out["lse"]), want_o, want_lse, tensors["q"][0])
        self.assertIsNone(wrong)
        return result

    def test_agrees_with_the_oracle(self):
        for backend in ("auto", "cpu", "reference"):
            for q_dtype, kv_dtype in (("BF16", "BF16"), ("F16", "F16"), ("F32", "F32"), ("BF16", "F8_E4M3"), ("F32", "F8_E5M2")):
                with self.subTest(backend=backend, q=q_dtype, kv=kv_dtype):
                    self.run_step(*small_step(q_dtype, kv_dtype), "--backend", backend)

    def test_records(self):
        for backend in ("auto", "cpu", "reference"):
            for q_dtype in ("BF16", "F16", "F32"):
                with self.subTest(backend=backend, q=q_dtype):
                    self.run_step(*record_step(q_dtype, lens=(9, 0, 70)), "--backend", backend)

    def test_lengths_scale_and_splits(self):
        tensors, meta = small_step(kv_dtype="F8_E4M3", lens=(9, 0, 1, 130), qlen=3)
        tensors["k_scale"] = ("F32", np.array(0.25, np.float32))
        tensors["real_seq_lens"] = ("I32", np.array([7, 5, 1, 500], np.int32))
        for splits in (0, 1, 3):
            self.run_step(tensors, meta, "--num-kv-splits", splits)

    def test_flat_cache(self):
        tensors, meta = small_step()
        dtype, kv = tensors["kv_cache"]
        tensors["kv_cache"] = (dtype, kv.reshape(-1, 1, kv.shape[-1]))
        self.run_step(tensors, meta)

    def test_empty_batch(self):
        self.run_step(*small_step(lens=()))

    def test_repeat_gives_equal_bits(self):
        result = self.run_step(*small_step(), "--repeat", 5, "--threads", 2)
        self.assertIn("median of 5 runs", result.stdout)

    def test_other_tensors_and_metadata_are_ignored(self):
        tensors, meta = small_step(framework="pt")
        tensors["positions"] = ("I64", np.arange(4))
        tensors["weights"] = ("F64", np.ones((1, 1, 1, 1, 1)))
        tensors["rank_five"] = ("F32", np.ones((1, 1, 1, 1, 1), np.float32))
        self.run_step(tensors, meta)

    def test_replaces_the_output_whole_or_not_at_all(self):
        path = self.save(*small_step())
        out = self.save_bytes(b"before", "out.safetensors")
        self.assert_refused(mlaverify("run", path, "--out", out, file_size_limit=100), out, "cannot write")
        with open(out, "rb") as f:
            self.assertEqual(f.read(), b"before")
        self.assertEqual(sorted(os.listdir(self.dir)), ["out.safetensors", "step.safetensors"])
        self.assert_good(mlaverify("run", path, "--out", out))
        self.assertIn("o", oracle.load(out)[0])

    def test_output_that_cannot_be_written(self):
        path = self.save(*small_step())
        for out in (self.dir, self.path("none/out.safetensors")):
            self.assert_refused(mlaverify("run", path, "--out", out), out, "cannot write")

    def test_output_over_the_input(self):
        path = self.save(*small_step())
        before = pathlib.Path(path).read_bytes()
        self.assert_refused(mlaverify("run", path, "--out", path), path, "another file")
        self.assertEqual(pathlib.Path(path).read_bytes(), before)

    def test_meaningless_environment(self):
        path = self.save(*small_step())
        for name in ("MLAVERIFY_CPU_ISA", "MLAVERIFY_BACKEND"):
            for verb in (("run", path, "--out", self.path("out.safetensors")), ("check", path), ("bench", "--grid", "smoke")):
                with self.subTest(name=name, verb=verb[0]):
                    self.assert_refused(mlaverify(*verb, env={name: "AVX3"}), name, "AVX3")

    def test_instruction_set_that_this_cpu_has_not(self):
        path = self.save(*small_step())
        for isa in ("amx_bf16", "avx512_bf16", "avx512", "avx2"):
            env = {"MLAVERIFY_CPU_ISA": isa}
            cpu = next(b for b in json.loads(mlaverify("info", "--json", env=env).stdout)["backends"] if b["name"] == "cpu")
            for verb in (("run", path, "--out", self.path("out.safetensors")), ("check", path), ("bench", "--grid", "smoke")):
                if not cpu["available"]:
                    self.assert_refused(mlaverify(*verb, env=env), f"MLAVERIFY_CPU_ISA asks for {isa}, which cannot run here", code=3)

    def test_standard_output_that_cannot_be_written(self):
        path = self.save(*small_step())
        for verb in (("info",), ("check", "--json", path), ("--version",)):
            with self.subTest(verb=verb[0]), open("/dev/full", "w") as full:
                result = subprocess.run([PROGRAM, *verb], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
                self.assertEqual(result.returncode, 2)

    def test_usage(self):
        path = self.save(*small_step())
        out = ("--out", self.path("out.safetensors"))
        self.assert_refused(mlaverify("run"))
        self.assert_refused(mlaverify("run", path), "--out")
        self.assert_refused(mlaverify("run", *out))
        self.assert_refused(mlaverify("run", self.path("none"), *out), self.path("none"), "cannot open")
        self.assert_refused(mlaverify("run", self.path("no\nne"), *out), "no?ne: cannot open")
        self.assert_refused(mlaverify("run", self.dir, *out), "not a regular file")
        self.assert_refused(mlaverify("run", path, *out, "--backend", "gpu"), "'gpu'", "reference")
        self.assert_refused(mlaverify("run", path, *out, "--num-kv-splits", "-1"), "num_kv_splits", "-1")
        self.assert_refused(mlaverify("run", path, *out, "--num-kv-splits", "x"), "--num-kv-splits")
        self.assert_refused(mlaverify("run", path, *out, "--num-kv-splits", "99999999999"), "--num-kv-splits")
        self.assert_refused(mlaverify("run", path, *out, "--repeat", "0"), "--repeat")
        self.assert_refused(mlaverify("run", path, *out, "--threads", "-3"), "num_threads", "-3")
        self.assert_refused(mlaverify("run", path, *out, "--unknown"), "--unknown")
        self.assert_refused(mlaverify("run", path, "--out=", "--repeat", "2"), "--out= has no value, must be --name=VALUE or --name VALUE")
        self.assert_refused(mlaverify("run", path, *out, env={"MLAVERIFY_BACKEND": "gpu"}),
                            "MLAVERIFY_BACKEND: got 'gpu', must be one of cuda, cpu, reference")

    def test_backend_that_cannot_run_here(self):
        backends = json.loads(mlaverify("info", "--json").stdout)["backends"]
        path = self.save(*small_step())
        for b in backends:
            if not b["available"]:
                result = mlaverify("run", path, "--out", self.path("out"), "--backend", b["name"])
                self.assert_refused(result, b["name"], b["detail"], code=3)
                self.assert_refused(mlaverify("check", path, "--backend", b["name"]), b["detail"], code=3)


class BadStepTest(CliTest):
    """Bytes that are no safetensors file are for io_test; these are the kinds, end to end, and what only a step can have wrong."""

    def test_broken_files(self):
        with open(self.save(*small_step()), "rb") as f:
            good = f.read()
        header = struct.unpack("<Q", good[:8])[0]
        for data, part in ((b"", "too few"), (good[:5], "too few"), (good[:100], "truncated"), (good[:-1], "truncated"),
                           (good + b"x", "belong to no tensor"), (b"\xff" * 8 + good[8:], "exceeds the limit"),
                           (struct.pack("<Q", header + len(good)) + good[8:], "exceeds the file"),
                           (good[:8] + b"[" * header + good[8 + header:], "not a JSON object"),
                           (good[:8] + good[8:8 + header].replace(b'"BF16"', b'"BF17"', 1) + good[8 + header:], "BF17"),
                           (b"not safetensors at all", "exceeds")):
            with self.subTest(part=part):
                self.assert_step_refused(self.save_bytes(data), part)

    def test_overlapping_offsets(self):
        a = {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]}
        head = json.dumps({"a": a, "b": {**a, "data_offsets": [4, 12]}}).encode()
        self.assert_step_refused(self.save_bytes(struct.pack("<Q", len(head)) + head + bytes(12)), "overlaps")

    def test_missing(self):
        for name in ("q", "kv_cache", "block_table", "seq_lens"):
            tensors, meta = small_step()
            del tensors[name]
            self.assert_step_refused(self.save(tensors, meta), name, "missing")
        for name in ("qlen", "page_size", "v_head_dim", "sm_scale"):
            tensors, meta = small_step()
            del meta[name]
            self.assert_step_refused(self.save(tensors, meta), name, "missing")

    def test_dtypes(self):
        for name, dtype in (("q", "F64"), ("q", "F8_E4M3"), ("q", "I32"), ("kv_cache", "I64"), ("kv_cache", "I32"),
                            ("block_table", "I64"), ("block_table", "F32"), ("seq_lens", "I64"), ("seq_lens", "F32"),
                            ("real_seq_lens", "I64"), ("k_scale", "F64"), ("o", "F64"), ("o", "F16"), ("lse", "BF16")):
            with self.subTest(name=name, dtype=dtype):
                tensors, meta = small_step()
                shape = {"real_seq_lens": (2,), "k_scale": (), "o": (4, 3, 32), "lse": (4, 3)}
                array = tensors[name][1] if name in tensors else np.zeros(shape[name])
                tensors[name] = (dtype, oracle.encode(dtype, array))
                self.assert_step_refused(self.save(tensors, meta), name, dtype)

    def test_records_and_their_metadata(self):
        tensors, meta = record_step()
        self.assert_step_refused(self.save(tensors, {k: v for k, v in meta.items() if k != "kv_cache_dtype"}), "kv_cache", "U8",
                                 "kv_cache_dtype")
        self.assert_step_refused(self.save(tensors, {**meta, "kv_cache_dtype": "fp8"}), "kv_cache_dtype", "fp8_ds_mla")
        self.assert_step_refused(self.save(*small_step(kv_cache_dtype="fp8_ds_mla")), "kv_cache", "BF16", "U8")
        narrow = {**tensors, "kv_cache": ("U8", tensors["kv_cache"][1][..., :576])}
        self.assert_step_refused(self.save(narrow, meta), "kv_cache", "656")
        self.assert_step_refused(self.save(tensors, {**meta, "v_head_dim": 256}), "v_head_dim", "512")

    def test_shapes(self):
        i32 = np.zeros
        for name, array in (("q", np.zeros((5, 3, 48))), ("q", np.zeros((4, 3, 40))), ("q", np.zeros((4, 144))),
                            ("q", np.zeros((4, 3, 47))), ("q", np.zeros((4, 3, 0))), ("q", np.zeros((0, 2 ** 40, 8))),
                            ("kv_cache", np.zeros((7, 5, 1, 48))), ("kv_cache", np.zeros((7, 4, 2, 48))), ("kv_cache", np.zeros((28, 48))),
                            ("kv_cache", np.zeros((27, 1, 48))), ("kv_cache", np.zeros((0, 4, 1, 48))),
                            ("block_table", i32((3, 4))), ("block_table", i32((2, 1))), ("block_table", i32((2, 0))), ("block_table", i32(8)),
                            ("seq_lens", i32(3)), ("seq_lens", i32(0)), ("seq_lens", i32((2, 1))),
                            ("real_seq_lens", i32(3)), ("k_scale", np.ones(2)), ("k_scale", np.ones((1, 1))),
                            ("o", np.zeros((4, 3, 48))), ("o", np.zeros((4, 96))), ("lse", np.zeros((3, 3))), ("lse", np.zeros(12))):
            with self.subTest(name=name, shape=array.shape):
                tensors, meta = small_step()
                dtype = tensors[name][0] if name in tensors else "I32" if name == "real_seq_lens" else "F32"
                tensors[name] = (dtype, oracle.encode(dtype, array))
                self.assert_step_refused(self.save(tensors, meta))

    def test_metadata(self):
        for key, value in (("qlen", "two"), ("qlen", "2.0"), ("qlen", ""), ("qlen", "0"), ("qlen", "-2"), ("qlen", "3"), ("qlen", "2147483647"),
                           ("qlen", "99999999999"), ("page_size", "0"), ("page_size", "-4"), ("page_size", "5"), ("page_size", "2147483647"),
                           ("page_size", "x"), ("v_head_dim", "0"), ("v_head_dim", "-8"), ("v_head_dim", "33"), ("v_head_dim", "56"),
                           ("v_head_dim", "2147483640"), ("v_head_dim", "nan"), ("num_kv_splits", "-1"), ("num_kv_splits", "many"),
                           ("sm_scale", "one"), ("sm_scale", ""), ("sm_scale", "0.1 "), ("sm_scale", "1e999")):
            with self.subTest(key=key, value=value):
                tensors, meta = small_step()
                meta[key] = value
                self.assert_step_refused(self.save(tensors, meta))

    def test_metadata_that_is_no_string(self):
        tensors, meta = small_step()
        with open(self.save(tensors, meta), "rb") as f:
            data = f.read()
        n = struct.unpack("<Q", data[:8])[0]
        head = data[8:8 + n].replace(b'"qlen": "2"', b'"qlen": 2')
        self.assert_step_refused(self.save_bytes(struct.pack("<Q", len(head)) + head + data[8 + n:]), "qlen", "string")

    def test_lengths_and_pages_that_do_not_fit(self):
        for name, at, value, part in (("seq_lens", 0, -1, "seq_lens"), ("seq_lens", 1, 1000, "block_table"), ("seq_lens", 1, 2 ** 31 - 1, "block_table"),
                                      ("seq_lens", 0, -2 ** 31, "seq_lens"), ("block_table", (0, 2), -1, "block_table"),
                                      ("block_table", (1, 0), 1 << 30, "block_table"), ("block_table", (0, 0), 7, "block_table")):
            with self.subTest(name=name, value=value):
                tensors, meta = small_step()
                tensors[name][1][at] = value
                self.assert_step_refused(self.save(tensors, meta), part)

    def test_any_scale_is_arithmetic(self):
        for value in ("0", "-1", "inf", "nan", "1e-30"):
            tensors, meta = small_step()
            meta["sm_scale"] = value
            path = self.save(tensors, meta)
            self.assert_good(mlaverify("run", path, "--out", self.path("out.safetensors")))


class CheckTest(CliTest):
    def with_expected(self, **kwargs):
        tensors, meta = small_step(**kwargs)
        o, lse = oracle.expected_for(tensors, meta)
        tensors["o"] = ("F32", o.astype(np.float32))
        tensors["lse"] = ("F32", lse.astype(np.float32))
        return tensors, meta

    def test_built_in_cases(self):
        result = mlaverify("check", "--json")
        self.assert_good(result)
        document = json.loads(result.stdout)
        self.assertGreaterEqual(len({r["case"] for r in document["results"]}), 12)
        self.assertEqual((document["failed"], document["bad_input"]), (0, 0))
        name = document["results"][0]["case"]
        result = mlaverify("check", "--case", name, "--backend", "reference")
        self.assert_good(result)
        self.assertIn(name, result.stdout)
        self.assert_refused(mlaverify("check", "--case", "none"), "'none'", name)

    def test_files_and_directories(self):
        self.save(*self.with_expected(), "b.safetensors")
        self.save(*small_step(q_dtype="F32", kv_dtype="F32"), "a.safetensors")
        self.save_bytes(b"no step", "notes.txt")
        result = mlaverify("check", self.dir)
        self.assert_good(result)
        lines = [line.split()[:3] for line in result.stdout.splitlines()]
        self.assertEqual([line for line in lines if line[2] in ("cpu", "reference")],
                         [["ok", self.path(n + ".safetensors"), b] for n in "ab" for b in ("cpu", "reference")])
        self.assert_good(mlaverify("check", self.path("a.safetensors"), self.path("b.safetensors"), "--backend", "cpu"))

    def test_expected_results_of_either_kind(self):
        tensors, meta = self.with_expected()
        tensors["o"] = ("BF16", oracle.encode("BF16", oracle.decode(*tensors["o"])))
        self.assert_good(mlaverify("check", self.save(tensors, meta)))
        for left_out in ("o", "lse"):
            some = {name: t for name, t in tensors.items() if name != left_out}
            self.assert_good(mlaverify("check", self.save(some, meta)))

    def test_wrong_expected_results_fail(self):
        for name, at in (("o", (2, 1, 5)), ("lse", (3, 2))):
            for value in (3e3, np.nan, np.inf):
                tensors, meta = self.with_expected()
                tensors[name][1][at] = value
                path = self.save(tensors, meta, "it's wrong.safetensors")
                result = mlaverify("check", path, "--backend", "cpu")
                self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
                self.assertIn("FAIL", result.stdout)
                self.assertIn(f"request 1 token {at[0] - 2} head {at[1]}", result.stdout)
                repeat = result.stdout.split("repeat: mlaverify ", 1)[1].splitlines()[0]
                again = subprocess.run(f"'{PROGRAM}' {repeat}", shell=True, capture_output=True, text=True, timeout=TIMEOUT)
                self.assertEqual((again.returncode, again.stdout), (1, result.stdout))

    def test_json(self):
        good = self.save(*self.with_expected(), "good.safetensors")
        tensors, meta = self.with_expected()
        tensors["lse"][1][0, 0] = np.inf
        wrong = self.save(tensors, meta, "wrong.safetensors")
        broken = self.save_bytes(b"", "broken.safetensors")
        result = mlaverify("check", good, wrong, broken, "--backend", "cpu", "--json")
        self.assertEqual(result.returncode, 1)
        self.assertIn(broken, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual([r["status"] for r in document["results"]], ["ok", "failed", "bad input"])
        ok, failed, bad = document["results"]
        self.assertLess(ok["out_error"], ok["out_tolerance"])
        self.assertLess(ok["lse_error"], ok["lse_tolerance"])
        self.assertIsNone(failed["lse_error"])
        self.assertIn(wrong, failed["repeat"])
        self.assertIsNone(bad["backend"])

    def test_goes_on_after_a_bad_file(self):
        good = self.save(*self.with_expected(), "good.safetensors")
        broken = self.save_bytes(b"", "broken.safetensors")
        result = mlaverify("check", broken, good)
        self.assert_refused(result, broken)
        self.assertIn(good, result.stdout)

    def test_usage(self):
        self.assert_refused(mlaverify("check", self.path("none")), self.path("none"))
        self.assert_refused(mlaverify("check", self.dir), self.dir, "no *.safetensors")
        self.assert_refused(mlaverify("check", "--backend", "gpu"), "'gpu'")


class InfoAndPlanTest(CliTest):
    def test_info(self):
        self.assert_good(mlaverify("info"))
        document = json.loads(mlaverify("info", "--json", env={"MLAVERIFY_BACKEND": "cpu"}).stdout)
        self.assertRegex(document["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual([b["name"] for b in document["backends"]][-2:], ["cpu", "reference"])
        variables = {e["name"]: e["value"] for e in document["environment"]}
        self.assertEqual(variables["MLAVERIFY_BACKEND"], "cpu")
        self.assertGreater(document["cpu"]["threads"], 0)

    def test_backend_that_cannot_run(self):
        path = self.save(*small_step())
        for backend in json.loads(mlaverify("info", "--json").stdout)["backends"]:
            if backend["available"]:
                continue
            name, out = backend["name"], self.path("out.safetensors")
            for env, asked in ((None, ("--backend", name)), ({"MLAVERIFY_BACKEND": name}, ())):
                self.assert_refused(mlaverify("run", path, "--out", out, *asked, env=env), name, backend["detail"], code=3)
            self.assert_refused(mlaverify("check", path, "--backend", name), name, backend["detail"], code=3)
            self.assertFalse(os.path.exists(out))

    def test_plan(self):
        shape = ("--batch", 16, "--qlen", 4, "--heads", 16, "--seq-len", 8192, "--arch", "cpu")
        self.assert_good(mlaverify("plan", *shape))
        plan = json.loads(mlaverify("plan", *shape, "--json").stdout)
        self.assertEqual(plan["arch"], "cpu")
        self.assertGreater(plan["workspace_bytes"], 0)
        self.assertGreater(plan["floor_seconds"], 0)
        self.assertEqual(plan["work"]["bytes"], 16 * 8192 * 576 * 2 + 16 * 4 * 16 * (576 + 512) * 2)

    def test_plan_for_another_architecture(self):
        # Up to 640 rows: 32-row tiles.
        for batch, block_h, bound in ((10, 32, 15), (11, 64, 27)):
            plan = json.loads(mlaverify("plan", "--batch", batch, "--qlen", 4, "--heads", 16, "--arch", "gfx942", "--sm-count", 304,
                                        "--json").stdout)
            self.assertEqual((plan["config"]["block_h"], plan["max_kv_splits"]), (block_h, bound))
            self.assertIsNone(plan["floor_seconds"])
        plan = json.loads(mlaverify("plan", "--batch", 1, "--qlen", 1, "--heads", 16, "--arch", "gfx942", "--json").stdout)
        self.assertIsNone(plan["max_kv_splits"])

    def test_plan_for_a_cuda_gpu(self):
        def plan(*more):
            result = mlaverify("plan", "--qlen", 4, "--heads", 16, "--seq-len", 8192, "--json", *more)
            self.assert_good(result)
            return json.loads(result.stdout)

        p = plan("--batch", 16, "--arch", "sm_90")
        self.assertEqual((p["arch"], p["sm_count"], p["config"]["block_h"]), ("sm_90", 132, 64))
        self.assertAlmostEqual(p["floor_seconds"] * 1e6, p["work"]["bytes"] / 4570e3, places=3)
        launch = p["launch"]
        if launch is None:  # a build without CUDA
            self.assertIsNone(p["workspace_bytes"])
            return
        self.assertEqual((launch["kernel"], launch["tile_rows"], launch["tile_keys"], launch["row_tiles"]),
                         ("tensor-core", 64, p["config"]["block_n"], 16))
        self.assertEqual(launch["blocks"], 132 * launch["blocks_per_sm"])
        self.assertLessEqual(launch["blocks_per_sm"] * launch["shared_bytes"], 227 * 1024)
        self.assertEqual((launch["splits"], launch["launches"], launch["workspace_bytes"]), (0, 2, p["workspace_bytes"]))
        one = plan("--batch", 16, "--arch", "sm_90", "--num-kv-splits", 1)
        self.assertEqual((one["launch"]["splits"], one["launch"]["launches"]), (1, 1))
        self.assertLess(one["workspace_bytes"], p["workspace_bytes"])
        self.assertEqual(plan("--batch", 16, "--arch", "sm_90", "--sm-count", 10)["launch"]["blocks"],
                         10 * launch["blocks_per_sm"])
        for more, why in ((("--dtype", "f32", "--kv-dtype", "f32"), "f32"), (("--lk", 256, "--lv", 128), "widths"),
                          (("--dtype", "f16"), "types")):
            generic = plan("--batch", 16, "--arch", "sm_80", *more)["launch"]
            self.assertEqual(generic["kernel"], "generic")
            self.assertIn(why, generic["why"])
        self.assertEqual(plan("--batch", 16, "--arch", "sm_86")["launch"]["tile_rows"], 16)
        text = mlaverify("plan", "--batch", 16, "--qlen", 4, "--heads", 16, "--arch", "sm_90")
        self.assert_good(text)
        for part in ("tensor-core", "workspace", "NVIDIA H200", "floor"):
            self.assertIn(part, text.stdout)

    def test_plan_with_a_tune_file(self):
        shape = ("plan", "--batch", 16, "--qlen", 4, "--heads", 16, "--json")
        plain = json.loads(mlaverify(*shape, "--arch", "sm_90").stdout)
        if plain["launch"] is None:  # a build without CUDA
            return
        self.assertEqual(plain["launch"]["row"], {"rows": [17, 2147483647], "types": "any", "pages": "any", "kernel": "hopper",
                                                  "shares": 32})
        head = (f"mlaverify-tune 1\nlibrary {plain['version']}\ncard NVIDIA H200\ncompute-capability 9.0\narch sm_90\n"
                "multiprocessors 132\n")
        row = "row rows=33..64 types=same_16_bit pages=boxes kernel=portable_64 shares=8\n"
        path = self.save_bytes((head + "# measured\n" + row).encode(), "h200.tune")
        env = {"MLAVERIFY_TUNE_FILE": path}
        tuned = mlaverify(*shape, "--arch", "sm_90", env=env)
        self.assert_good(tuned)
        launch = json.loads(tuned.stdout)["launch"]
        self.assertEqual((launch["tile_keys"], launch["row"]["shares"], launch["row"]["rows"]), (32, 8, [33, 64]))
        for more in (("--page-size", 48), ("--kv-dtype", "f8_e4m3")):
            args = (*shape, *more, "--arch", "sm_90")
            self.assertEqual(json.loads(mlaverify(*args, env=env).stdout), json.loads(mlaverify(*args).stdout))
        for more, part in ((("--arch", "sm_80"), ":5: arch: got 'sm_90', must be 'sm_80'"),
                           (("--arch", "sm_90", "--sm-count", 78), ":6: multiprocessors: got '132', must be '78'")):
            self.assert_refused(mlaverify(*shape, *more, env=env), "MLAVERIFY_TUNE_FILE: " + path + part)
        for text, part in ((b"", ":1: got ''"), (head.replace("tune 1", "tune 9").encode(), ":1: got 'mlaverify-tune 9'"),
                           (head.encode() + b"\nrow x\n", ":8: rows: got 'x'"), (b"#" * ((1 << 20) + 1), ": is longer than 1 MiB")):
            path = self.save_bytes(text, "bad.tune")
            self.assert_refused(mlaverify(*shape, "--arch", "sm_90", env={"MLAVERIFY_TUNE_FILE": path}), path + part)
        for path in (self.dir, self.path("missing.tune")):
            self.assert_refused(mlaverify(*shape, "--arch", "sm_90", env={"MLAVERIFY_TUNE_FILE": path}), path + ": ")
        self.assert_good(mlaverify(*shape, "--arch", "cpu", env={"MLAVERIFY_TUNE_FILE": self.path("missing.tune")}))

    def test_tune(self):
        self.assert_refused(mlaverify("tune", "--heads", 0), "--heads")
        self.assert_refused(mlaverify("tune", "--grid", "smoke", "--batch", 2), "--grid")
        cuda = next(b for b in json.loads(mlaverify("info", "--json").stdout)["backends"] if b["name"] == "cuda")
        if not cuda["available"]:
            out = self.path("h200.tune")
            self.assert_refused(mlaverify("tune", "--grid", "smoke", "--out", out), "cuda", cuda["detail"], code=3)
            self.assertFalse(os.path.exists(out))

    def test_plan_usage(self):
        good = {"--batch": 2, "--qlen": 2, "--heads": 4, "--arch": "cpu"}
        flat = lambda options: [x for pair in options.items() for x in pair]  # noqa: E731
        for name in ("--batch", "--qlen", "--heads"):
            self.assert_refused(mlaverify("plan", *flat({k: v for k, v in good.items() if k != name})), name)
        for name, value in (("--batch", 0), ("--batch", "x"), ("--qlen", 0), ("--heads", -1), ("--seq-len", 0), ("--page-size", 0),
                            ("--dtype", "f8"), ("--kv-dtype", "int4"), ("--arch", "gfx1"), ("--sm-count", 0), ("--num-kv-splits", -1)):
            self.assert_refused(mlaverify("plan", *flat({**good, name: value})), name.lstrip("-").replace("-", "_") if name == "--num-kv-splits" else name)

    def test_no_verb(self):
        self.assert_refused(mlaverify())
        self.assert_refused(mlaverify("nonsense"))
        self.assertEqual(mlaverify("--version").returncode, 0)
        self.assertEqual(mlaverify("--help").returncode, 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
