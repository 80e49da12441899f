#!/usr/bin/env python3
"""Installs the library, moves it, and uses it from outside: the programs of examples/ by find_package and by pkg-config.

usage: package_test.py CMAKE SOURCE WORK static BUILD    what BUILD holds
       package_test.py CMAKE SOURCE WORK shared          a shared library, without CUDA, built for this; also what it exports
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path


def run(*command, **options):
    command = [str(c) for c in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}\nfailed: {done.returncode}")
    return done.stdout


def check(condition, what):
    if not condition:
        sys.exit(what)


def check_shared_library(prefix, source):
    libraries = sorted(prefix.rglob("libmlaverify.so*"))
    check([p.name for p in libraries] == ["libmlaverify.so", "libmlaverify.so.0.1", "libmlaverify.so.0.1.0"], f"installed {libraries}")
    dynamic = run("readelf", "-d", libraries[0])
    check("soname: [libmlaverify.so.0.1]" in dynamic, f"another SONAME:\n{dynamic}")
    exported = {line.split()[0] for line in run("nm", "-D", "--defined-only", "--format=posix", libraries[0]).splitlines()}
    header = (source / "include/mlaverify/mlaverify.h").read_text(encoding="utf-8")
    declared = set(re.findall(r"^MLAVERIFY_API[^;(]*?(mlaverify_\w+)\(", header, re.M))
    check(len(declared) > 5 and exported == declared, f"exported but not declared: {exported - declared}; missing: {declared - exported}")


def use(cmake, source, work, prefix):
    """The prefix as users have it, with all of their own flags."""
    build = work / "examples"
    environment = dict(os.environ, LD_LIBRARY_PATH="", PKG_CONFIG_PATH=str(next(prefix.rglob("pkgconfig"))))
    run(cmake, "-S", source / "examples", "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
    run(cmake, "--build", build)
    print(run(build / "verify_c", env=environment).strip())
    print(run(build / "verify_cpp", env=environment).strip())

    flags = run("pkg-config", "--cflags", "--libs", "mlaverify", env=environment).split()
    check(not any(str(work / "prefix") in f and str(prefix) not in f for f in flags), f"pkg-config names the old place: {flags}")
    run("cc", "-std=c11", source / "examples/verify.c", "-o", work / "verify_pkg_config", *flags)
    library_dir = run("pkg-config", "--variable=libdir", "mlaverify", env=environment).strip()
    print(run(work / "verify_pkg_config", env=dict(environment, LD_LIBRARY_PATH=library_dir)).strip())
    check(run("pkg-config", "--modversion", "mlaverify", env=environment).strip() == "0.1.0", "another version")


def main():
    cmake, source, work, kind = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    shutil.rmtree(work, ignore_errors=True)
    installed, prefix = work / "prefix", work / "moved"
    if kind == "shared":
        build = work / "build"
        run(cmake, "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DMLAVERIFY_CLI=OFF",
            "-DMLAVERIFY_TESTS=OFF", "-DMLAVERIFY_CUDA=OFF")
        run(cmake, "--build", build)
    else:
        build = Path(sys.argv[5])
    run(cmake, "--install", build, "--prefix", installed)
    installed.rename(prefix)
    if kind == "shared":
        check_shared_library(prefix, source)
    else:
        print(run(prefix / "bin/mlaverify", "--version").strip())
    use(cmake, source, work, prefix)

    readme = re.search(r"```c\n(.*?)```", (source / "README.md").read_text(encoding="utf-8"), re.S)
    check(readme and readme.group(1) == (source / "examples/verify.c").read_text(encoding="utf-8"),
          "the C program of the README is not examples/verify.c")


if __name__ == "__main__":
    main()
