#!/usr/bin/env python3
"""Tests of `mlaverify generate` as a user runs it.

    python3 tests/generate_cli_test.py PATH_TO_mlaverify PATH_TO_models/tiny-mla [--backend NAME] [unittest arguments]
"""
import json
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import unittest

from reference_model import SMALL, mla_oracle, write_random
from verb_test import VerbTest

PROGRAM = MODEL = ""
BACKEND = []
PROMPT = "And it came to pass in those days, that "


class Generate(VerbTest):
    def good(self, *arguments):
        return super().good("--model", MODEL, *arguments)

    def model(self, name="model", **changes):
        """A small random checkpoint, its config changed (None: the key is left out)."""
        write_random(self.folder / name, SMALL)
        config = {k: v for k, v in {**SMALL, **changes}.items() if v is not None}
        (self.folder / name / "config.json").write_text(json.dumps(config))
        return str(self.folder / name)

    def with_tensors(self, change):
        path = pathlib.Path(self.model()) / "model.safetensors"
        tensors = {name: (dtype, raw.copy()) for name, (dtype, raw) in mla_oracle.load(path)[0].items()}
        change(tensors)
        mla_oracle.save(path, tensors, {})
        return str(path.parent)

    # ---- what it writes ----

    def test_text_and_summary(self):
        out = self.good("--prompt", PROMPT, "--max-tokens", "60")
        self.assertTrue(out.startswith(PROMPT))
        self.assertNotIn("\033", out)  # no colours in a pipe
        self.assertIn("; the same text\n", out)
        for line in ("drafts     mtp", "attention  ", "text       60 bytes in ", "speed      ", "undrafted  ", "speed-up   "):
            self.assertIn("\n" + line, out)

    def test_every_drafter_and_length_writes_the_same(self):
        texts = set()
        for draft in ("mtp", "ngram", "none"):
            for qlen in (1, 2, 5, 8):
                result = self.json("--prompt", PROMPT, "--max-tokens", "50", "--draft", draft, "--qlen", str(qlen))
                texts.add(result["texts"][0]["text"])
                self.assertEqual(result["same_text"], None if draft == "none" else True)
                drafted = result["drafted"]
                self.assertEqual(drafted["tokens"], 50)
                self.assertAlmostEqual(drafted["mean_accepted_length"] * drafted["steps"], 50)
                # A step gives a byte of the model's own behind the accepted ones, unless the text ends before.
                self.assertIn(drafted["steps"] + drafted["accepted"] - 50, (0, 1))
                self.assertLessEqual(drafted["accepted"], drafted["drafted"])
                if draft == "mtp" and qlen == 5:
                    self.assertGreater(drafted["mean_accepted_length"], 2)
        self.assertEqual(len(texts), 1)
        self.assertEqual(len(texts.pop()), 50)

    def test_several_prompts(self):
        file = self.folder / "prompt"
        file.write_bytes(b"Blessed is he that ")
        arguments = ["--prompt", PROMPT, "--prompt", "The", "--prompt-file", str(file), "--max-tokens", "30"]
        alone = [self.json("--prompt", p, "--max-tokens", "30")["texts"][0]["text"] for p in (PROMPT, "The", "Blessed is he that ")]
        for batch in ("1", "2", "8"):
            texts = self.json(*arguments, "--batch", batch)["texts"]
            self.assertEqual([t["text"] for t in texts], alone)
            self.assertEqual([t["prompt"] for t in texts], [PROMPT, "The", "Blessed is he that "])
        out = self.good(*arguments, "--no-compare")
        shown = "".join(f"---- prompt {i + 1}\n{t['prompt']}{t['text']}\n" for i, t in enumerate(texts))
        self.assertTrue(out.startswith(shown), out)
        self.assertNotIn("undrafted", out)

    def test_temperature(self):
        def text(*more):
            return self.json("--prompt", PROMPT, "--max-tokens", "40", *more)["texts"][0]["text"]
        hot = text("--temperature", "1", "--seed", "3")
        self.assertEqual(hot, text("--temperature", "1", "--seed", "3", "--draft", "none"))
        self.assertNotEqual(hot, text("--temperature", "1", "--seed", "4"))
        self.assertEqual(text(), text("--seed", "9"))

    def on_a_terminal(self, *more):
        leader, follower = pty.openpty()
        arguments = [PROGRAM, "generate", "--threads", "2", *BACKEND, "--model", MODEL, *more]
        with subprocess.Popen(arguments, stdout=follower, stderr=subprocess.PIPE) as process:
            os.close(follower)
            out = b""
            while True:
                try:
                    part = os.read(leader, 4096)
                except OSError:  # the other side is closed
                    break
                if not part:
                    break
                out += part
            os.close(leader)
            process.communicate(timeout=300)
        return out

    def test_terminal(self):
        """On a terminal accepted drafts are green, and nothing but colours is added."""
        out = self.on_a_terminal("--prompt", PROMPT, "--max-tokens", "40")
        self.assertIn(b"\033[32m", out)
        plain = out.replace(b"\033[32m", b"").replace(b"\033[0m", b"").replace(b"\r\n", b"\n").decode()
        self.assertNotIn("\033", plain)
        self.assertTrue(plain.startswith(self.good("--prompt", PROMPT, "--max-tokens", "40").split("\n\n")[0]), plain)

    def test_control_characters_do_not_reach_a_terminal(self):
        """Neither those of ASCII nor U+0080 to U+009F, some of which start commands as well, in a prompt's text or in one generated."""
        out = self.on_a_terminal("--prompt", b"a\033[31m\x07\x7f \xc2\x9b31m \xc2\xa3 \xc3\x9b", "--max-tokens", "1")
        self.assertTrue(out.startswith(b"a?[31m?? \xc2?31m \xc2\xa3 \xc3\x9b"), out)
        many = ["--temperature", "100", "--draft", "none", "--max-tokens", "450"]
        pairs = [bytes((0xc2, c)) for c in range(0x80, 0xa0)]
        prompt = pathlib.Path(self.folder / "prompt")
        prompt.write_bytes(b"\xc2")
        for seed in range(1, 41):  # until a text goes on with such a character
            text = subprocess.run([PROGRAM, "generate", *BACKEND, "--model", MODEL, "--prompt-file", str(prompt), *many, "--seed", str(seed)],
                                  capture_output=True, timeout=300, check=True).stdout
            if any(pair in text for pair in pairs):
                break
        else:
            self.fail("no text has such a character")
        out = self.on_a_terminal("--prompt-file", str(prompt), *many, "--seed", str(seed))
        self.assertFalse([pair for pair in pairs if pair in out])

    def test_record(self):
        steps = self.folder / "steps"
        out = self.good("--prompt", PROMPT, "--prompt", "Amen", "--max-tokens", "40", "--record", str(steps), "--record-steps", "2,5",
                        "--page-size", "16")
        files = sorted(steps.iterdir())
        self.assertEqual([f.name for f in files], [f"step-{s:04}-layer-{i}.safetensors" for s in (2, 5) for i in range(4)])
        for file in files:
            self.assertIn(f"recorded   {file}\n", out)
        tensors, meta = mla_oracle.load(files[-1])
        self.assertEqual(meta["page_size"], "16")
        self.assertEqual(tensors["q"][1].shape, (2 * int(meta["qlen"]), 8, 576))
        self.assertIn("layer 3, verify step 5", meta["note"])
        done = subprocess.run([PROGRAM, "check", *BACKEND, *map(str, files)], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_an_error_behind_text_has_a_line_of_its_own(self):
        (self.folder / "step-0002-layer-0.safetensors").mkdir()
        done = subprocess.run([PROGRAM, "generate", *BACKEND, "--model", MODEL, "--prompt", PROMPT, "--record", str(self.folder),
                               "--record-steps", "2"], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("step-0002-layer-0.safetensors: ", done.stderr)
        self.assertTrue(done.stdout.startswith(PROMPT) and done.stdout.endswith("\n"), done.stdout)

    def test_record_of_steps_that_do_not_come(self):
        arguments = ["--prompt", PROMPT, "--max-tokens", "3", "--record", str(self.folder), "--record-steps", "1,1000", "--draft", "none"]
        out = self.good(*arguments)
        self.assertEqual(out.count("recorded   "), 5)
        self.assertIn("recorded   nothing of step 1000: the last was step 3\n", out)
        self.assertEqual(self.json(*arguments)["recorded"], [str(self.folder / f"step-0001-layer-{i}.safetensors") for i in range(4)])
        self.refused("--record-steps: Value 0 not in range 1 to 2147483647", *arguments, "--model", MODEL, "--record-steps", "0")
        self.refused(": cannot be made", "--model", MODEL, "--prompt", "a", "--record", "")
        self.refused("--record-steps", "--model", MODEL, "--prompt", "a", "--record-steps", "1")

    def test_models_of_other_shapes(self):
        one_layer = {**SMALL, "num_hidden_layers": 1, "num_attention_heads": 5, "hidden_size": 77, "kv_lora_rank": 72,
                     "qk_rope_head_dim": 8, "qk_nope_head_dim": 1, "v_head_dim": 9, "intermediate_size": 1}
        for name, config in (("small", SMALL), ("one layer", one_layer), ("no MTP", {**one_layer, "num_nextn_predict_layers": 0})):
            write_random(self.folder / name, config)
            texts = set()
            for draft in ("none", "ngram", "mtp") if config["num_nextn_predict_layers"] else ("none", "ngram"):
                for more in (["--qlen", "2", "--page-size", "1"], ["--qlen", "64", "--page-size", "100"]):
                    done = self.run_program("--model", str(self.folder / name), "--prompt", "abcabcab", "--prompt", "a", "--max-tokens", "20",
                                            "--temperature", "1", "--draft", draft, "--json", *more)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    texts.add(json.dumps(json.loads(done.stdout)["texts"]))
            self.assertEqual(len(texts), 1, name)

    # ---- bad input ----

    def test_bad_prompts(self):
        model = ["--model", MODEL]
        self.refused("no prompt", *model)
        self.refused("prompt 2: is empty", *model, "--prompt", "a", "--prompt", "")
        empty = self.folder / "empty"
        empty.write_bytes(b"")
        self.refused("prompt 1: is empty", *model, "--prompt-file", str(empty))
        self.refused(f"{self.folder}: is not a regular file", *model, "--prompt-file", str(self.folder))
        self.refused("prompt 1: needs 4 pages of 64 tokens, the pool has 2", *model, "--prompt", "a" * 100, "--max-tokens", "100",
                     "--pool-pages", "2")
        large = self.folder / "large"
        large.touch()
        os.truncate(large, 1 << 40)  # takes no disk, and would not fit in memory
        self.refused(f"{large}: is larger than 1048576 bytes", *model, "--prompt-file", str(large))
        self.refused("positions", *model, "--prompt", "a" * 2000)
        large.write_bytes(b"a" * (1 << 20))  # refused before caches for it are made
        self.refused("prompt 1: its 1048576 bytes, 200 to generate", *model, "--prompt-file", str(large), "--max-tokens", "200")
        self.refused("prompt 1: its 2000 bytes", *model, "--prompt", "a" * 2000, "--pool-pages", "16777216")
        self.refused("nowhere: cannot open: No such file or directory", *model, "--prompt-file", str(self.folder / "nowhere"))

    @unittest.skipUnless(os.path.exists("/proc/self/mem"), "needs the files of Linux's /proc")
    def test_files_that_cannot_be_read(self):
        """Regular files whose size says nothing: the one fails at its first byte, the other has megabytes."""
        self.refused("/proc/self/mem: cannot read: Input/output error", "--model", MODEL, "--prompt-file", "/proc/self/mem")
        model = self.model()
        os.remove(f"{model}/config.json")
        os.symlink("/proc/self/mem", f"{model}/config.json")
        self.refused(f"{model}/config.json: cannot read: Input/output error", "--model", model, "--prompt", "a")
        symbols = pathlib.Path("/proc/kallsyms")
        if symbols.exists() and len(symbols.read_bytes()) > 1 << 20:
            self.refused(f"{symbols}: is larger than 1048576 bytes", "--model", MODEL, "--prompt-file", str(symbols))

    def test_caches_that_do_not_fit(self):
        backend = self.json("--prompt", "a", "--max-tokens", "1")["backend"]
        self.refused("the caches: 16777216 pages of 16384 tokens", "--model", MODEL, "--prompt", "a", "--pool-pages", "16777216",
                     "--page-size", "16384", code=3 if backend == "cuda" else 2)

    def test_longest_prompts(self):
        """The model has 512 positions; without drafts none are kept for them."""
        for length, more in ((502, []), (505, ["--qlen", "1"]), (505, ["--draft", "none"])):
            self.assertEqual(len(self.json("--prompt", "a" * length, "--max-tokens", "8", *more)["texts"][0]["text"]), 8)
            self.refused("need 513 positions, the model has 512", "--model", MODEL, "--prompt", "a" * (length + 1), "--max-tokens", "8", *more)
        self.assertEqual(self.json("--prompt", "a", "--max-tokens", "1", "--draft", "none")["qlen"], 1)

    def test_bad_options(self):
        model = ["--model", MODEL, "--prompt", "a"]
        self.refused("--model", "--prompt", "a")
        self.refused("--qlen", *model, "--qlen", "0")
        self.refused("--draft", *model, "--draft", "nobody")
        self.refused("--temperature", *model, "--temperature", "-1")
        self.refused("--temperature", *model, "--temperature", "nan")
        for option, text, wanted in (("--seed", "-1", "a whole number from 0 to 18446744073709551615"),
                                     ("--seed", "18446744073709551616", "a whole number from 0 to 18446744073709551615"),
                                     ("--seed", "", "a whole number from 0 to 18446744073709551615"), ("--qlen", "010", "a whole number"),
                                     ("--qlen", "2.5", "a whole number"), ("--record-steps", "x", "a whole number"),
                                     ("--temperature", "", "a number"), ("--temperature", "1x", "a number")):
            self.refused(f'{option}: "{text}", must be {wanted} (see', *model, "--record", str(self.folder), option, text)
        self.assertEqual(self.json("--prompt", "a", "--max-tokens", "1", "--seed", "18446744073709551615")["seed"], 2 ** 64 - 1)
        file = self.folder / "file"
        file.write_bytes(b"")
        self.refused(f"{file}: cannot be made", *model, "--record", str(file))
        no_mtp = self.folder / "no-mtp"
        write_random(no_mtp, {**SMALL, "num_nextn_predict_layers": 0})
        self.refused("has no MTP module", "--model", str(no_mtp), "--prompt", "a")

    def test_bad_folders(self):
        self.refused("/nowhere: is not a directory", "--model", "/nowhere", "--prompt", "a")
        self.refused("'': is not a directory", "--model", "", "--prompt", "a")
        file = f"{MODEL}/config.json"
        self.refused(f"{file}: is not a directory", "--model", file, "--prompt", "a")
        model = self.model()
        os.remove(f"{model}/model.safetensors")
        self.refused("model.safetensors: cannot open: ", "--model", model, "--prompt", "a")
        os.remove(f"{model}/config.json")
        self.refused("config.json: cannot open: ", "--model", model, "--prompt", "a")
        os.mkdir(f"{model}/config.json")
        self.refused("config.json: is not a regular file", "--model", model, "--prompt", "a")
        os.rmdir(f"{model}/config.json")
        os.mkfifo(f"{model}/config.json")  # opening it would wait for ever
        self.refused("config.json: is not a regular file", "--model", model, "--prompt", "a")

    def test_bad_configs(self):
        for wanted, changes in (("mixture-of-experts", {"n_routed_experts": 64}),
                                ("quantised", {"quantization_config": {"quant_method": "fp8"}}),
                                ("other attention than MLA", {"kv_lora_rank": None}),
                                ("hidden_size: 65", {"hidden_size": 65}),
                                ("hidden_size: missing", {"hidden_size": None}),
                                ("rope_parameters: {", {"rope_parameters": {"rope_type": "yarn", "factor": 40}}),
                                ("rms_norm_eps: 1e+300, must be at most 1", {"rms_norm_eps": 1e300}),
                                ("vocab_size: 32000", {"vocab_size": 32000})):
            model = self.model(**changes)
            self.refused("" if wanted == "hidden_size: 65" else f"{model}/config.json: ", "--model", model, "--prompt", "a")
            if wanted != "hidden_size: 65":
                self.refused(wanted, "--model", model, "--prompt", "a")
        model = self.model(hidden_size=65)  # a legal config, of another model
        self.refused("model.embed_tokens.weight: BF16 [256, 64], must be BF16 [256, 65]", "--model", model, "--prompt", "a")

    def test_bad_tensors(self):
        name = "model.layers.1.self_attn.kv_b_proj.weight"

        def change(what):
            return ["--model", self.with_tensors(what), "--prompt", "a"]
        self.refused(f"model.safetensors: {name}: missing, must be BF16 [102, 40]", *change(lambda t: t.pop(name)))
        self.refused(f"{name}: BF16 [40, 102], must be BF16 [102, 40]", *change(lambda t: t.update({name: ("BF16", t[name][1].T)})))
        self.refused(f"{name}: F32 [102, 40], must be",
                     *change(lambda t: t.update({name: ("F32", mla_oracle.from_bf16(t[name][1]).astype("float32"))})))
        self.refused('"model.layers.0.self_attn.q_proj.bias": is no tensor of the model',
                     *change(lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": t["model.norm.weight"]})))
        for bits, was in ((0x7fc0, "nan"), (0xff80, "-inf")):
            def spoil(tensors, bits=bits):
                tensors[name][1][3, 7] = bits
            self.refused(f"{name}: number 128 is {was}, must be finite", *change(spoil))

        def overflow(tensors):  # finite, but its products are not
            tensors["model.norm.weight"][1][:] = 0x7f7f
        self.refused("prompt 1: the model's score of byte ", *change(overflow))
        broken = self.model()
        file = pathlib.Path(broken) / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-10])
        self.refused("model.safetensors: ", "--model", broken, "--prompt", "a")

    def test_a_copy_works(self):
        """The folder is all that is needed."""
        shutil.copytree(MODEL, self.folder / "copy")
        done = self.run_program("--model", str(self.folder / "copy"), "--prompt", "a", "--max-tokens", "5", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    PROGRAM, MODEL = sys.argv[1], sys.argv[2]
    rest = sys.argv[3:]
    if rest[:1] == ["--backend"]:
        BACKEND, rest = rest[:2], rest[2:]
    Generate.command = [PROGRAM, "generate", *BACKEND]
    unittest.main(argv=sys.argv[:1] + rest)
