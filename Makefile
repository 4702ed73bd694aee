# make run    the main job, in an environment of its own (.venv)
# make test   lint, types and all tests
# make types  the public modules under mypy
# make check-triton       every configuration of the Triton kernels compiled for each GPU that has a table; no GPU needed
# make check-interpreted  the operator tests of the Triton kernels in Triton's interpreter, all of them
# make test-gpu OUT=dir   the operator tests on the GPU of this machine;  make bench-gpu OUT=dir  the benchmark there
# make bench  the operators under pytest-benchmark;  make marks OUT=dir  the project's marks, rows to OUT
# make suite OUT=dir  the whole benchmark suite on the CPU, an hour at a time: again to go on
# make sanitize-gpu OUT=dir  the CUDA kernels under compute-sanitizer, on a machine with a GPU
#
# An environment that already has torch (a GPU machine, say) is used as it is by an empty VENV:
#   make test VENV= PYTHON=/path/to/python

PYTHON ?= python3
VENV ?= .venv
OUT ?= build/marks

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
READY := build/.ready
export PYTHONPATH := .:python
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
endif

.PHONY: run test lint types bench marks suite check-triton check-interpreted test-gpu bench-gpu sanitize-gpu clean

run: $(READY)
	$(PY) -m qacg_models.cli demo

# Over the cores, a file at a time, where pytest-xdist is installed.
PARALLEL = $(shell $(PY) -c "import xdist" 2>/dev/null && echo '-n auto --maxprocesses 4 --dist loadfile')

test: lint types
	$(PY) -m pytest $(PARALLEL)

lint: $(READY)
	$(PY) -m ruff check .

types: $(READY)
	$(PY) -m mypy

bench: $(READY)
	$(PY) -m pytest benchmarks --benchmark-enable

marks: $(READY)
	$(PY) -m benchmarks.marks --out $(OUT)

suite: OUT = build/suite
suite: $(READY)
	$(PY) -m benchmarks.suite --out $(OUT)

check-triton: $(READY)
	PYTHONPATH=.:tests $(PY) tests/check_triton.py

check-interpreted: OUT = build/check-interpreted
check-interpreted: $(READY)
	PYTHONPATH=.:tests $(PY) tests/kernel_suite.py --device cpu --backends triton --seconds 3600 --out $(OUT)

test-gpu: OUT = build/test-gpu
test-gpu: $(READY)
	PYTHONPATH=.:tests $(PY) tests/kernel_suite.py --out $(OUT)

bench-gpu: OUT = build/bench-gpu
bench-gpu: $(READY)
	$(PY) -m benchmarks.gpu --out $(OUT)

sanitize-gpu: OUT = build/sanitize
sanitize-gpu: $(READY)
	$(PY) tests/sanitize.py $(OUT)

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*/*.h csrc/*/*.cpp csrc/*/*.cu)
ifeq ($(strip $(VENV)),)
	$(PY) setup.py build_ext --inplace
	mkdir -p $(@D)
else
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -c constraints.txt torch ninja numpy "setuptools>=77" wheel
	$(PY) -m pip install --quiet --no-build-isolation -c constraints.txt -e ".[models,test]"
endif
	touch $@

clean:
	rm -rf build report $(VENV) qacg_kernels/*.so qacg_kernels/_build_*.json *.egg-info
