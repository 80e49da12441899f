# The commands of the README. Each installs what is missing (tools/setup) and builds what it needs under build/.
# Needs CMake 3.25; the presets of CMakePresets.json are the same builds without make.

JOBS := $(shell nproc 2>/dev/null || echo 2)

.PHONY: build demo test test-python check bench format lint asan clean

# The program alone, optimised: build/bin/mlaverify. The first configuration leaves the tests out; `make test` adds them to the
# same folder, so that neither builds the library twice.
build: build/build.ninja
	cmake --build --preset release --target mlaverify_program

build/build.ninja:
	tools/setup build
	cmake --preset release -DMLAVERIFY_TESTS=OFF

# Text from a real model by speculative decoding; then the first part of a recorded serving trace, served on this machine.
demo: build
	build/bin/mlaverify generate --model models/tiny-mla --prompt "In those days there was no king in Israel: " --max-tokens 400 \
	  --temperature 0.6 --seed 6
	build/bin/mlaverify replay data/traces/mooncake_conversation.csv --heads 8 --max-requests 32 --max-batch 20 \
	  --speed-up 10 --max-steps 80

test:
	tools/setup test
	cmake --preset release -DMLAVERIFY_TESTS=ON
	cmake --build --preset release
	ctest --preset release -j $(JOBS) -LE gpu
	$(MAKE) test-python

# The Python package, built without CUDA where there is no GPU, in build/venv.
test-python:
	tools/setup python
	build/venv/bin/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps .
	build/venv/bin/pytest -q python/tests

# The conformance cases through the command line program.
check: test
	build/bin/mlaverify check build/tests/conformance/cases/*.safetensors

# The time of the CPU backend against this machine's floor.
bench: build
	build/bin/mlaverify bench --grid cpu

format:
	tools/setup lint
	tools/format --fix

lint:
	tools/setup lint
	tools/setup python
	cmake --preset release -DMLAVERIFY_TESTS=ON
	cmake --preset python
	tools/format
	tools/tidy build
	tools/tidy build/python python/src
	python3 tests/include_direction.py

# All tests with AddressSanitizer and UndefinedBehaviorSanitizer.
asan:
	tools/setup test
	cmake --preset asan
	cmake --build --preset asan
	ctest --preset asan -j $(JOBS)

clean:
	rm -rf build
