#!/usr/bin/env python3
"""Code for a newer instruction set must stay where it is asked for.

A function that the linker may merge between object files (weak: inline functions, instances of templates) must not come out of an
object compiled with flags of its own: the linker could pick that copy for everybody, and an older processor would fault in it.

usage: isa_symbols_test.py NM LIBRARY OBJECT...     (OBJECT: name of a member of the library, as in isa_avx2.cpp.o)
"""
import subprocess
import sys


def symbols(nm, library, member):
    """(type, name) of what the member defines."""
    text = subprocess.run([nm, "--defined-only", "-C", "--format=bsd", library], check=True, stdout=subprocess.PIPE, text=True).stdout
    inside, found = False, []
    for line in text.splitlines():
        if line.endswith(":"):
            inside = line[:-1] == member
        elif inside and line.strip():
            kind, name = line.split(maxsplit=2)[1:] if line[0] != " " else line.split(maxsplit=1)
            found.append((kind, name))
    return found


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    nm, library, *members = sys.argv[1:]
    wrong = 0
    for member in members:
        found = symbols(nm, library, member)
        if not found:
            print(f"{library} has no member {member}, or it defines nothing")
            wrong += 1
        for kind, name in found:
            if kind in "WwuiI":  # V is weak data, which is the same everywhere
                print(f"{member} defines the weak symbol {name} ({kind})")
                wrong += 1
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
