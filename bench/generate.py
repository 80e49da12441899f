#!/usr/bin/env python3
"""What drafts bring `mlaverify generate`, as a table: for each drafter and length of a verify step the mean accepted length and the speed
against the same without drafts, over the openings of chapters that the model was not trained on.

    python3 bench/generate.py build/bin/mlaverify models/tiny-mla [options of generate: --backend cuda --threads 1 --batch 8 ...]

Each figure is the median of three runs, drafted and undrafted alternating; every text is compared with the undrafted one.
"""
import json
import statistics
import subprocess
import sys
from pathlib import Path

LENGTHS = {"mtp": (2, 3, 4, 5, 6, 8), "ngram": (2, 3, 4, 6, 8)}
RUNS = 3


def main():
    program, model, more = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    prompts = [a for line in (model / "held-out.txt").read_text().splitlines() for a in ("--prompt", line)]
    if "--batch" not in more:
        more += ["--batch", "1"]
    print("| drafts | tokens verified | mean accepted length | drafts accepted | bytes/s | without | speed-up | attention | drafting |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for draft, lengths in LENGTHS.items():
        for qlen in lengths:
            command = [program, "generate", "--model", str(model), *prompts, "--draft", draft, "--qlen", str(qlen), "--max-tokens", "256",
                       "--json", *more]
            runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(RUNS)]

            def median(value):
                return statistics.median(value(r) for r in runs)
            first = runs[0]["drafted"]
            print(f"| {draft} | {qlen} | {first['mean_accepted_length']:.2f} | {100 * first['accepted'] / max(1, first['drafted']):.0f} % "
                  f"| {median(lambda r: r['drafted']['tokens_per_second']):.0f} "
                  f"| {median(lambda r: r['undrafted']['tokens_per_second']):.0f} "
                  f"| {median(lambda r: r['speed_up']):.2f} "
                  f"| {100 * median(lambda r: r['drafted']['attention_seconds'] / r['drafted']['seconds']):.0f} % "
                  f"| {100 * median(lambda r: r['drafted']['draft_seconds'] / r['drafted']['seconds']):.0f} % |", flush=True)


if __name__ == "__main__":
    main()
