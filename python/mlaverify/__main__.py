"""python -m mlaverify info: versions and backends."""

import argparse

from mlaverify.info import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mlaverify", description="Causal MLA verify attention.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("info", help="versions of the package and of what it works with, and the backends of this machine")
    parser.parse_args()
    print(report())


if __name__ == "__main__":
    main()
