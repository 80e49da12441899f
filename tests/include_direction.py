#!/usr/bin/env python3
"""Checks the direction of includes: data goes one way (docs/design.md), and so do the #include lines.

Usage: include_direction.py [REPOSITORY]
Prints each line that points the wrong way and exits with 1 if there is one.
"""
import re
import sys
from pathlib import Path

# What the layers below the API get from it: the validated call, results, settings.
CALL = ["api/check_values.h", "api/env.h", "api/status.h", "api/validate.h"]
# Layer (folder) -> what its files may include of ours: a folder ("rules/") or a single file. cli/ and tests/ may include anything.
ALLOWED = {
    "include/mlaverify": ["mlaverify/"],
    "src/rules": ["rules/"],
    "src/oracle": ["rules/", "oracle/"],
    "src/cpu": ["mlaverify/", "rules/", "cpu/", "backends/backend.h", *CALL],
    "src/cuda": ["mlaverify/", "rules/", "cuda/", "backends/backend.h", "backends/launch_facts.h", "backends/tuning.h", *CALL],
    "src/backends": ["mlaverify/", "rules/", "oracle/", "cpu/", "cuda/", "backends/", *CALL],
    "src/api": ["mlaverify/", "rules/", "backends/", "api/"],
    "src/io": ["mlaverify/", "rules/", "io/"],
    "generate": ["mlaverify/", "rules/", "io/", "generate/", "cpu/features.h", "random.h", "scheduler.h"],
}
# These layers know no operating system, no device and no library: C and C++ standard headers only.
STANDARD_ONLY = {"include/mlaverify", "src/rules"}
C_HEADERS = {"stddef.h", "stdint.h"}  # mlaverify.h is C

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def wrong_includes(root, layer, allowed):
    for path in sorted((root / layer).rglob("*")):
        if path.suffix not in {".h", ".hpp", ".c", ".cpp", ".cu", ".cuh"}:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, name = match.groups()
            if quote == '"':
                if not any(name.startswith(a) if a.endswith("/") else name == a for a in allowed):
                    yield f'{path.relative_to(root)}:{number}: includes "{name}"; {layer} may include {", ".join(allowed)}'
            elif layer in STANDARD_ONLY and not re.fullmatch(r"[a-z_]+", name) and name not in C_HEADERS:
                yield f"{path.relative_to(root)}:{number}: includes <{name}>; {layer} may include standard headers only"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    unknown = [p.name for p in sorted((root / "src").iterdir()) if p.is_dir() and f"src/{p.name}" not in ALLOWED]
    wrong = [f"src/{name}: a folder without a place in ALLOWED" for name in unknown]
    for layer, allowed in ALLOWED.items():
        wrong += wrong_includes(root, layer, allowed)
    print("\n".join(wrong) if wrong else "includes point the right way")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
