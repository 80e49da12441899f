#!/usr/bin/env python3
"""The scores of the C++ model against the independent one of reference_model.py.

    python3 tests/generate_model_test.py PATH_TO_generate_logits PATH_TO_models/tiny-mla cpu|cuda [unittest arguments]
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from reference_model import SMALL, Reference, mla_oracle, write_random

PROGRAM = MODEL = BACKEND = ""
# Of the norm of a row of scores. The C++ side rounds queries, latents and attention's results to bf16 (2^-9 each), and the errors of
# the layers add up to 0.01 at most here; rotations by angles 1 % off, or a scale 5 % off, make 0.04 and more.
TOLERANCE = 0.03


class Scores(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def compare(self, model, text):
        (self.folder / "text").write_bytes(text)
        out = self.folder / "out.safetensors"
        subprocess.run([PROGRAM, BACKEND, str(model), str(self.folder / "text"), str(out)], check=True, timeout=300)
        got, _ = mla_oracle.load(out)
        want = Reference(model).run(text)
        self.assertEqual(set(got), set(want))
        worst = {}
        for name, expected in want.items():
            self.assertEqual(got[name][1].shape, expected.shape)
            error = np.linalg.norm(got[name][1] - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
            worst[name] = error.max()
            self.assertLess(worst[name], TOLERANCE, f"{name}, row {error.argmax()}")
        return want, worst

    def test_trained(self):
        text = b"And it came to pass in the days of the king, that the people went up out of the city:\nand they said, "
        want, worst = self.compare(MODEL, text)
        # The weights are those of a model that has learned, and the scores are of the byte that follows: better than chance by far.
        scores = want["logits"][:-1] - want["logits"][:-1].max(-1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        bits = -log_p[np.arange(len(text) - 1), np.frombuffer(text, np.uint8)[1:]].mean() / np.log(2)
        self.assertLess(bits, 2)
        print("trained:", {k: f"{v:.4f}" for k, v in worst.items()}, f"{bits:.2f} bits a byte")

    def test_random_weights_of_another_shape(self):
        write_random(self.folder / "model", SMALL)
        text = bytes(np.random.default_rng(2).integers(0, 256, 90, dtype=np.uint8))
        _, worst = self.compare(self.folder / "model", text)
        print("random:", {k: f"{v:.4f}" for k, v in worst.items()})

    def test_without_mtp(self):
        write_random(self.folder / "model", {**SMALL, "num_nextn_predict_layers": 0})
        self.compare(self.folder / "model", b"two words")


if __name__ == "__main__":
    PROGRAM, MODEL, BACKEND = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1] + sys.argv[4:])
