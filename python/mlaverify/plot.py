"""python -m mlaverify.plot RESULTS.json: pictures of what `mlaverify bench --json` printed. Needs matplotlib.

Each is written as PNG and as SVG: the roofline with every shape and the recorded peers; the times over the floor by group of shapes; and
a heat map of the ratio to the best peer. The last two need shapes with recorded peers (`bench --grid h200` on a GPU).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

try:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"python -m mlaverify.plot: needs matplotlib (pip install matplotlib): {error}", file=sys.stderr)
    sys.exit(2)

Results = dict[str, Any]  # the object that bench prints
TIE = 1.03  # the best peer is as fast if ours takes less than this times its time


def machine(results: Results) -> str:
    """What the results were measured on."""
    return results["gpu"]["name"] if "gpu" in results else results["cpu"]


def times_by_implementation(results: Results) -> dict[str, list[tuple[dict[str, Any], float]]]:
    """For ours and each recorded peer: the shapes and the seconds that they took."""
    times: dict[str, list[tuple[dict[str, Any], float]]] = {"mlaverify": [(s, s["seconds"]) for s in results["shapes"]]}
    for shape in results["shapes"]:
        for peer, seconds in shape.get("recorded", {}).get("seconds", {}).items():
            times.setdefault(peer, []).append((shape, seconds))
    return times


def roofline(results: Results) -> Figure:
    """Rate over intensity (operations a byte), under the measured ceilings."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    ceilings = results["ceilings"]
    rate = max(ceilings["flops_per_second"], ceilings.get("bf16_flops_per_second", 0))
    intensities = [s["flops"] / s["bytes"] for s in results["shapes"] if s["flops"] > 0]
    edge = rate / ceilings["bytes_per_second"]
    span = [min([*intensities, edge]) / 2, max([*intensities, edge]) * 2]
    axes.plot([span[0], edge, span[1]], [span[0] * ceilings["bytes_per_second"], rate, rate], color="black", label="measured ceilings")
    for name, points in times_by_implementation(results).items():
        ours = name == "mlaverify"
        axes.plot(
            [s["flops"] / s["bytes"] for s, _ in points],
            [s["flops"] / seconds for s, seconds in points],
            linestyle="",
            marker="o" if ours else "x",
            markersize=6 if ours else 4,
            alpha=1 if ours else 0.6,
            zorder=3 if ours else 2,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="operations a second", title=f"Roofline, {machine(results)}")
    axes.legend(fontsize="small")
    axes.grid(which="both", alpha=0.2)
    return figure


def group_bars(results: Results) -> Figure:
    """Geometric mean of the time over the floor in each group of shapes."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    groups = results["groups"]
    for i, (key, label) in enumerate((("times_floor", "mlaverify"), ("best_peer_times_floor", "best peer"), ("target", "target"))):
        bars = axes.bar([g + (i - 1) * 0.27 for g in range(len(groups))], [g[key] for g in groups], 0.25, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize="x-small")
    axes.set_xticks(range(len(groups)), [f"{g['name']} ({g['points']})\n{g['meaning']}" for g in groups], fontsize="x-small")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(ylabel="time over the floor", title=f"Groups of shapes, {machine(results)}")
    figure.legend(loc="outside right upper", fontsize="small")
    return figure


def ratio_map(results: Results) -> Figure:
    """Our time over that of the best peer, by rows of a request and by lengths."""
    shapes = [s for s in results["shapes"] if "recorded" in s]

    def row_of(shape: dict[str, Any]) -> tuple[str, int, int]:
        return shape["kv_dtype"], shape["heads"], shape["qlen"]

    rows = sorted({row_of(s) for s in shapes})
    columns = sorted({s["recorded"]["name"] for s in shapes})
    ratios = [[float("nan")] * len(columns) for _ in rows]
    for s in shapes:
        ratios[rows.index(row_of(s))][columns.index(s["recorded"]["name"])] = s["recorded"]["ratio_to_best_peer"]
    figure, axes = plt.subplots(figsize=(2 + 0.75 * len(columns), 1.5 + 0.32 * len(rows)), layout="constrained")
    image = axes.imshow(ratios, cmap="RdYlGn_r", norm=LogNorm(0.5, 2), aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize="x-small")
    axes.set_yticks(range(len(rows)), [f"{heads} heads x {qlen}, {kv}" for kv, heads, qlen in rows], fontsize="x-small")
    for y, line in enumerate(ratios):
        for x, ratio in enumerate(line):
            if not math.isnan(ratio):
                axes.text(x, y, f"{ratio:.2f}", ha="center", va="center", fontsize="x-small", weight="bold" if ratio > TIE else "normal")
    figure.colorbar(image, ticks=[0.5, 1, 2], format="%g").minorticks_off()
    axes.set_title(f"Time over that of the best recorded peer (slower by more than 3 %: bold), {machine(results)}", fontsize="small")
    return figure


def figures(results: Results) -> dict[str, Figure]:
    """The pictures that the results have data for, by name."""
    made = {"roofline": roofline(results)}
    if results.get("groups"):
        made["groups"] = group_bars(results)
        made["ratios"] = ratio_map(results)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mlaverify.plot", description="Pictures of the results of mlaverify bench --json.")
    parser.add_argument("results", type=Path, help="what bench --json printed")
    parser.add_argument("--out", help="where to write: PREFIX-roofline.png and so on (the name of RESULTS without its ending)")
    options = parser.parse_args()
    try:
        results = json.loads(options.results.read_text())
        made = figures(results)
    except OSError as error:
        print(f"{options.results}: {error.strerror}", file=sys.stderr)
        return 2
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        print(f"{options.results}: not what mlaverify bench --json prints: {type(error).__name__} {error}", file=sys.stderr)
        return 2
    prefix = options.out or str(options.results.with_suffix(""))
    for name, figure in made.items():
        for ending in ("png", "svg"):
            path = f"{prefix}-{name}.{ending}"
            try:
                figure.savefig(path, dpi=150)
            except OSError as error:
                print(f"{path}: {error.strerror}", file=sys.stderr)
                return 2
            print(path)
    if len(made) == 1:
        print("no shape has recorded peers: no groups, no ratios")
    return 0


if __name__ == "__main__":
    sys.exit(main())
