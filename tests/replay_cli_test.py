#!/usr/bin/env python3
"""Tests of `mlaverify replay` as a user runs it.  python3 tests/replay_cli_test.py PATH_TO_mlaverify [unittest arguments]"""
import random
import sys
import unittest

from verb_test import VerbTest

HEADER = "arrival_ms,input_tokens,output_tokens\n"
SMALL = ["--lk", "64", "--lv", "32", "--heads", "2", "--page-size", "8"]
TRACE = HEADER + "".join(f"0,{20 + 13 * i % 50},{5 + 7 * i % 11}\n" for i in range(12))


class Replay(VerbTest):
    def file(self, content, name="trace.csv"):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def test_summary(self):
        out = self.good(self.file(TRACE), *SMALL)
        for text in ("12 served, 0 in flight, 0 waiting, 0 still to arrive, 0 refused", "no mismatches", "p99", "x the floor"):
            self.assertIn(text, out)
        self.assertNotIn("cut after", out)

    def test_counts(self):
        # All arrive at once, so that no count depends on how long a step takes.
        arguments = [self.file(TRACE), *SMALL, "--max-batch", "5", "--seed", "7", "--check-rows", "3"]
        result = self.json(*arguments)
        requests = result["requests"]
        self.assertEqual(requests, {"in_trace": 12, "total": 12, "served": 12, "in_flight": 0, "waiting": 0, "to_arrive": 0,
                                    "refused": 0})
        self.assertEqual(result["tokens_accepted"], sum(int(line.split(",")[2]) for line in TRACE.split()[1:]))
        self.assertEqual(result["live_requests"]["peak"], 5)
        self.assertAlmostEqual(result["live_requests"]["mean"] * result["steps"] * 4, result["tokens_verified"])
        self.assertEqual(result["check"]["rows"], 3 * result["steps"])
        self.assertEqual(result["check"]["mismatches"], 0)
        self.assertGreater(result["check"]["worst_error"], 0)
        self.assertLess(result["check"]["worst_error"], 1)
        pool = result["pool"]
        self.assertLessEqual(pool["in_use_mean"], pool["in_use_peak"])
        self.assertLessEqual(pool["in_use_peak"], pool["reserved_peak"])
        self.assertLessEqual(pool["reserved_peak"], pool["pages"])
        self.assertGreater(pool["allocations"], pool["in_use_peak"])
        times = result["step_ms"]
        self.assertLess(0, times["p50"])
        self.assertLessEqual(times["p50"], times["p95"])
        self.assertLessEqual(times["p95"], times["p99"])
        for name in ("tokens_verified_per_second", "tokens_accepted_per_second", "gb_per_second", "gflop_per_second",
                     "times_floor"):
            self.assertGreater(result[name], 0, name)
        self.assertFalse(result["cut_by_max_steps"])
        again = self.json(*arguments)
        for name in ("steps", "tokens_verified", "tokens_accepted", "live_requests", "pool", "requests", "check"):
            self.assertEqual(result[name], again[name], name)
        other = self.json(*arguments[:-4], "--seed", "8")
        self.assertNotEqual(result["tokens_verified"], other["tokens_verified"])

    def test_acceptance(self):
        trace = self.file(HEADER + "0,10,40\n")
        for rate, steps in (("0", 40), ("1", 10)):
            self.assertEqual(self.json(trace, *SMALL, "--accept-rate", rate)["steps"], steps)
        self.assertEqual(self.json(trace, *SMALL, "--qlen", "1")["steps"], 40)
        self.assertEqual(self.json(trace, *SMALL, "--accept-rate", "1", "--qlen", "8")["steps"], 5)

    def test_types(self):
        for dtype, kv_dtype in (("bf16", "f8_e4m3"), ("f16", "f16"), ("f32", "f8_e5m2"), ("f32", "f32")):
            result = self.json(self.file(TRACE), *SMALL, "--dtype", dtype, "--kv-dtype", kv_dtype, "--threads", "1")
            self.assertEqual(result["check"]["mismatches"], 0)
            self.assertEqual((result["options"]["dtype"], result["options"]["kv_dtype"]), (dtype, kv_dtype))
        result = self.json(self.file(TRACE), *SMALL[4:], "--kv-dtype", "f8_ds_mla", "--threads", "1")
        self.assertEqual(result["check"]["mismatches"], 0)
        self.assertEqual(result["pool"]["bytes"] % 656, 0)

    def test_cut(self):
        trace = self.file(TRACE + "1e9,5,5\n")
        result = self.json(trace, *SMALL, "--max-steps", "2", "--max-batch", "4")
        self.assertTrue(result["cut_by_max_steps"])
        self.assertEqual(result["steps"], 2)
        requests = result["requests"]
        self.assertEqual(sum(n for name, n in requests.items() if name not in ("in_trace", "total")), requests["total"])
        self.assertEqual(result["requests"]["to_arrive"], 1)
        self.assertIn("cut after 2 steps (--max-steps)", self.good(trace, *SMALL, "--max-steps", "2"))
        requests = self.json(trace, *SMALL, "--max-requests", "3")["requests"]
        self.assertEqual((requests["in_trace"], requests["total"], requests["served"]), (13, 3, 3))
        self.assertIn("3 of its 13 requests", self.good(trace, *SMALL, "--max-requests", "3"))

    def test_clock(self):
        trace = self.file(HEADER + "1000000,5,1\n0,5,1\n")  # not in order
        self.assertGreaterEqual(self.json(trace, *SMALL)["clock_ms"], 1e6)
        result = self.json(trace, *SMALL, "--speed-up", "1000")
        self.assertGreaterEqual(result["clock_ms"], 1e3)
        self.assertLess(result["clock_ms"], 1e6)

    def test_requests_that_do_not_fit(self):
        # 10 pages of 8 tokens: the second request can never fit; the other two fit one at a time.
        trace = self.file(HEADER + "0,50,9\n0,80,9\n0,50,9\n")
        result = self.json(trace, *SMALL, "--pool-pages", "10")
        self.assertEqual(result["refused"], [{"line": 3, "why": "needs 12 pages of 8 tokens, the pool has 10"}])
        self.assertEqual(result["requests"]["served"], 2)
        self.assertEqual(result["live_requests"]["peak"], 1)
        self.assertIn("refused: the request of line 3 needs 12 pages of 8 tokens, the pool has 10",
                      self.good(trace, *SMALL, "--pool-pages", "10"))
        self.refused("nothing to serve", trace, *SMALL, "--pool-pages", "1")

    def test_sessions(self):
        trace = self.file("session,arrival_ms,input_tokens,output_tokens\r\n1,0,10,3\r\n1,900,10,0\r\n2,0,10,3\r\n")
        result = self.json(trace, *SMALL)
        self.assertEqual(result["requests"]["served"], 3)
        self.assertEqual(result["live_requests"]["peak"], 2)

    def test_bad_traces(self):
        for content, wanted in (
                ("", "the file is empty"),
                (HEADER, "no requests after the header"),
                ("a,b\n", ":1: the header is 'a,b'"),
                (HEADER + "0,1\n", ":2: '0,1' has 2 fields; it should have 3"),
                (HEADER + "0,1,1\n0,x,1\n", ":3: input_tokens is 'x'"),
                (HEADER + "0,1,1\n\n", ":3: '' has 1 field"),
                (HEADER + "0,1,99999999999999999999\n", ":2: output_tokens is '99999999999999999999'"),
                (HEADER + "nan,1,1\n", ":2: arrival_ms is 'nan'"),
                (HEADER + "-5,1,1\n", ":2: arrival_ms is '-5'"),
                (HEADER + "0,1,0\n", "nothing to verify"),
                (HEADER.encode() + b"\0\x1b]0;x\x07,1,1\n", ":2: arrival_ms is '??]0;x?'"),
                (b"\xff\xfe" + HEADER.encode("utf-16-le"), ":1: the header is '??a?r"),
                (random.Random(0).randbytes(1 << 16), ":1: "),
                (b"x" * (1 << 20), ":1: the line is longer than 1024 bytes")):
            with self.subTest(content=content[:60]):
                self.refused(wanted, self.file(content), *SMALL)
        self.refused("no-such-file.csv: cannot open it", "no-such-file.csv", *SMALL)
        self.refused("cannot read it", str(self.folder), *SMALL)
        self.refused("longer than 1024 bytes", "/dev/zero", *SMALL)

    def test_bad_options(self):
        trace = self.file(TRACE)
        for arguments in (["--max-batch", "0"], ["--max-batch", "x"], ["--pool-pages", "0"], ["--pool-pages", "99999999999"],
                          ["--accept-rate", "1.5"], ["--accept-rate", "nan"], ["--speed-up", "0"], ["--speed-up", "-1"],
                          ["--speed-up", "inf"], ["--qlen", "0"], ["--heads", "-1"], ["--lk", "20"], ["--lv", "128"],
                          ["--page-size", "0"], ["--dtype", "f8_e4m3"], ["--kv-dtype", "int8"], ["--check-rows", "-1"],
                          ["--seed", "-1"], ["--max-steps", "0"], ["--max-requests", "0"], ["--threads", "-1"],
                          ["--backend", "none"], ["--no-such-option"], ["second.csv"]):
            with self.subTest(arguments=arguments):
                self.refused("", trace, *SMALL, *arguments)
        self.refused('--seed: "-1", must be a whole number from 0 to', trace, *SMALL, "--seed", "-1")
        self.refused('--accept-rate: "", must be a number', trace, *SMALL, "--accept-rate", "")
        self.refused("--pool-pages: 2147483647 pages take", trace, "--pool-pages", "2147483647", "--page-size", "2147483647")
        self.refused("", *SMALL)

    def test_backends(self):
        trace = self.file(HEADER + "0,10,3\n")
        self.assertEqual(self.json(trace, *SMALL, "--backend", "reference")["check"]["mismatches"], 0)
        self.assertEqual(self.json(trace, *SMALL, "--backend", "cpu")["check"]["mismatches"], 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    Replay.command = [sys.argv.pop(1), "replay"]
    unittest.main()
