"""The examples of README.md and docs/python.md run, and say what they say there."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_stand_in import DECODE, SOURCE

ROOT = Path(__file__).resolve().parents[2]


def blocks():
    """Each Python example, and the output that a comment at its end promises."""
    for path in (ROOT / "README.md", ROOT / "docs" / "python.md"):
        for number, text in enumerate(re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL), 1):
            marks = [pytest.mark.torch] if "import torch" in text else []
            yield pytest.param(text, id=f"{path.name}-{number}", marks=marks)


EXAMPLES = list(blocks())


@pytest.mark.parametrize("text", EXAMPLES)
def test_example(text, make_vllm):
    if "mlaverify.vllm" in text:
        make_vllm(SOURCE + DECODE)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, "example", "exec"), {"__name__": "__main__"})  # noqa: S102
    promised = re.findall(r"print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert printed.getvalue().splitlines() == promised


def test_there_are_examples():
    texts = " ".join(example.values[0] for example in EXAMPLES)
    for needed in ("import torch", "import numpy", "mlaverify.vllm.install()"):
        assert needed in texts


@pytest.mark.torch
def test_the_torch_program():
    done = subprocess.run([sys.executable, ROOT / "examples" / "torch_verify.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"12 rows, largest relative error \d\.\de-03", done.stdout)


def test_info():
    done = subprocess.run([sys.executable, "-m", "mlaverify", "info"], capture_output=True, text=True, check=True)
    assert re.match(r"mlaverify \d+\.\d+\.\d+, ", done.stdout) and re.search(r"^  cpu +yes", done.stdout, re.MULTILINE)
