"""The pictures of mlaverify.plot, from the recorded times of bench/h200.json and from a run of the program."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from mlaverify import plot

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "bin" / "mlaverify"


def recorded_results():
    """What a run of --grid h200 would print, had it taken 1.1 times the best peer's time everywhere."""
    recorded = json.loads((ROOT / "bench" / "h200.json").read_text())
    shapes = []
    for point in recorded["grids"]["h200"]:
        words = dict(zip(point["shape"].split()[::2], point["shape"].split()[1::2]))
        best = min(point["us"].values()) * 1e-6
        shapes.append({
            "shape": point["shape"], "heads": int(words["--heads"]), "qlen": int(words["--qlen"]), "bytes": point["bytes"],
            "flops": point["flops"], "kv_dtype": words.get("--kv-dtype", "bf16"), "seconds": 1.1 * best,
            "recorded": {"name": point["name"], "seconds": {p: us * 1e-6 for p, us in point["us"].items()}, "ratio_to_best_peer": 1.1},
        })  # fmt: skip
    groups = [
        {"name": name, "meaning": f"group {name}", "points": 20, "times_floor": 1.3, "target": 1.1, "best_peer_times_floor": 1.2}
        for name in "ABCD"
    ]
    ceilings = {"bytes_per_second": recorded["read_gbs"] * 1e9, "flops_per_second": recorded["bf16_tflops"] * 1e12}
    return {"gpu": {"name": recorded["device"]}, "ceilings": ceilings, "shapes": shapes, "groups": groups}


def run_plot(*arguments):
    return subprocess.run([sys.executable, "-m", "mlaverify.plot", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_pictures(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(recorded_results()))
    done = run_plot(tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    names = [f"results-{name}.{ending}" for name in ("roofline", "groups", "ratios") for ending in ("png", "svg")]
    assert done.stdout.split() == [str(tmp_path / name) for name in names]
    for name in names:
        content = (tmp_path / name).read_bytes()
        if name.endswith("png"):
            assert content.startswith(b"\x89PNG") and len(content) > 10000
        else:
            assert ET.fromstring(content).tag.endswith("svg")


def test_every_result_is_in_the_pictures():
    results = recorded_results()
    times = plot.times_by_implementation(results)
    assert len(times["mlaverify"]) == len(results["shapes"]) == 80 and "FlashMLA" in times and "Triton verify" in times
    lines = {line.get_label(): line for line in plot.roofline(results).axes[0].get_lines()}
    assert {name: len(lines[name].get_xdata()) for name in times} == {name: len(points) for name, points in times.items()}
    axes = plot.ratio_map(results).axes[0]
    assert sum(text.get_text() == "1.10" for text in axes.texts) == 80
    heights = [bar.get_height() for bar in plot.group_bars(results).axes[0].patches]
    assert sorted(heights) == sorted([1.3, 1.2, 1.1] * 4)


@pytest.mark.skipif(not PROGRAM.exists(), reason=f"needs {PROGRAM.relative_to(ROOT)}, which `make build` builds")
def test_a_run_of_the_program(tmp_path):
    shape = ["--heads", "4", "--batch", "2", "--seq-len", "128", "--backend", "cpu"]
    printed = subprocess.run([PROGRAM, "bench", *shape, "--json"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "cpu.json").write_text(printed)
    done = run_plot(tmp_path / "cpu.json", "--out", tmp_path / "picture")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "picture-roofline.svg").exists() and "no shape has recorded peers" in done.stdout


def test_refusals(tmp_path):
    assert "No such file" in run_plot(tmp_path / "none.json").stderr
    results = recorded_results()
    no_time, no_peers, no_rate = (json.loads(json.dumps(results)) for _ in range(3))
    no_time["shapes"][0]["seconds"] = 0
    no_peers["shapes"][0]["recorded"] = None
    no_rate["ceilings"]["bytes_per_second"] = 0
    spoilt = [json.dumps(r) for r in (no_time, no_peers, no_rate)]
    for text in ("{", "{}", "[]", "[" * 100000, '{"ceilings": {}, "shapes": []}', *spoilt):
        (tmp_path / "bad.json").write_text(text)
        done = run_plot(tmp_path / "bad.json")
        assert done.returncode == 2 and "bad.json: not what mlaverify bench --json prints" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    (tmp_path / "results.json").write_text(json.dumps(results))
    done = run_plot(tmp_path / "results.json", "--out", tmp_path / "none" / "picture")
    assert (done.returncode, done.stderr) == (2, f"{tmp_path / 'none' / 'picture-roofline.png'}: No such file or directory\n")


def test_without_matplotlib():
    program = "import runpy, sys; sys.modules['matplotlib'] = None; runpy.run_module('mlaverify.plot', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("python -m mlaverify.plot: needs matplotlib (pip install matplotlib): ") and done.stderr.count("\n") == 1
