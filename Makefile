# Every command a developer needs; `make help` lists them. CONTRIBUTING.md says more.
SHELL := /bin/bash
PYTHON ?= $(or $(TARGET_PYTHON_PATH),$(shell command -v python3.11 || command -v python3))
RUN := .venv/bin/python
PKG ?= ge-graph
# A process that is done early takes over what the other still has before it. A test that hangs fails by name,
# and a new process does the rest.
TEST = $(RUN) -m pytest -n 2 --dist worksteal --timeout 600 --timeout-method thread $(PYTEST)
# torch_npu, where it is installed, would load itself into every process that imports torch.
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0
export HF_HUB_OFFLINE ?= 1
# Where this is set, as on hosts of continuous integration, torch takes some of its warnings for errors.
export CI ?= 1
# Tests read messages in English, whatever the developer reads.
export TAIR_LANG ?= en
# Hosts that forbid byte code would compile torch's sources anew in each of the hundreds of processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-npu test tiny quick unit system emulator-test torchvision-test torchao-test compare-models opinfo fuzz fuzz-arguments fuzz-kernels fuzz-trust ranks-faults rank-patterns torch-suites rewrites native graphs chips bench lint regen coverage configure wheels install uninstall package-test package-tests docs matrix versions-test release clean archives-test npu-tensors clients-test

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup:  ## wheelhouse, uv and .venv; at once if nothing changed
	@test -n "$(PYTHON)" || { echo "setup: no python3 found; install Python 3.11"; exit 1; }
	@$(PYTHON) tools/setup.py

demo: setup  ## real models through torch.compile on the embedded engine, compared with eager
	@$(RUN) -m tools.demo

demo-npu: setup  ## the same models on NPU tensors: on the device if CANN is here, else on the emulator
	@env -u TORCH_DEVICE_BACKEND_AUTOLOAD $(RUN) -m tools.demo --device npu

# The checks run while the tests are collected.
test: setup  ## all tests, with the checks that pre-commit runs; everything runs, then what failed is named
	@failed=""; mkdir -p artefacts; $(RUN) tools/checks.py >artefacts/checks.log 2>&1 & checks=$$!; \
	env -u TORCH_DEVICE_BACKEND_AUTOLOAD $(TEST) || failed="$$failed tests"; \
	wait $$checks || failed="$$failed checks"; cat artefacts/checks.log; \
	test -z "$$failed" || { echo "make test: failed:$$failed"; exit 1; }

tiny: setup  ## a minute's worth of trust in fifteen seconds: compile, train, export, refuse
	@$(RUN) -m pytest tests/test_tiny.py

quick: setup  ## every test of about a second, of long tables a part; one to two minutes on two cores
	@$(TEST) --rows-of 48 -m "not slow"

unit: setup  ## tests of the packages
	@$(TEST) packages/*/tests

system: setup  ## tests across packages: models end to end
	@$(TEST) tests

# The wheel is unpacked into the cache, never installed into .venv: it would load itself into every process.
# The bundled tests need one process for themselves, which runs beside the rest.
EMULATOR := packages/ge-runtime-native/emulator
emulator-test: setup  ## the real torch_npu wheel on the CANN emulator; fetches the wheel
	@ls wheelhouse/torch_npu-2.13.0-*.whl >/dev/null 2>&1 || $(RUN) -m pip download -q --no-deps torch_npu==2.13.0 -d wheelhouse
	@export TAIR_TORCH_NPU=$$(ls wheelhouse/torch_npu-2.13.0-*.whl); failed=""; mkdir -p artefacts; \
	$(RUN) -c "from ge_emulator import build, launch; build.build(); launch.find_torch_npu()" || exit 1; \
	$(RUN) -m ge_emulator --bundled-torchair -- pytest $(EMULATOR)/bundled_tests >artefacts/bundled_tests.log 2>&1 & bundled=$$!; \
	$(TEST) $(EMULATOR)/tests $(EMULATOR)/native_tests tests/test_demo_npu.py || failed="$$failed tests"; \
	$(RUN) -m ge_emulator -- pytest -n 2 --dist worksteal --timeout 300 --timeout-method thread $(PYTEST) $(EMULATOR)/device_tests || failed="$$failed device_tests"; \
	wait $$bundled || failed="$$failed bundled_tests"; cat artefacts/bundled_tests.log; \
	test -z "$$failed" || { echo "make emulator-test: failed:$$failed"; exit 1; }

npu-tensors: setup  ## programs, models and torch's operators on NPU tensors do what they do on CPU tensors; TAIR_NPU_SHARE=1 runs all
	@ls wheelhouse/torch_npu-2.13.0-*.whl >/dev/null 2>&1 || $(RUN) -m pip download -q --no-deps torch_npu==2.13.0 -d wheelhouse
	@TAIR_TORCH_NPU=$$(ls wheelhouse/torch_npu-2.13.0-*.whl) $(RUN) -m ge_emulator -- pytest -n 2 --dist worksteal tests/npu_tensors tests/clients/test_serving_loop.py tests/test_serving_example.py

clients-test: setup  ## vLLM with vllm-ascend, as they are, on the CANN emulator; downloads a gigabyte
	@$(RUN) -m tools.clients

torchvision-test: setup  ## torchvision's operators and detection models; fetches the wheel
	@ls wheelhouse/torchvision-0.28.0-*.whl >/dev/null 2>&1 || $(RUN) -m pip download -q --no-deps torchvision==0.28.0 -d wheelhouse
	@$(RUN) -m tools.torchvision_here $$(ls wheelhouse/torchvision-0.28.0-*.whl) pytest -n 2 tests/test_torchvision.py

torchao-test: setup  ## what torchao makes of models, with weights of int8 and int4, and convert_pt2e; fetches the wheel
	@ls -d build/torchao/torchao-0.18.0* >/dev/null 2>&1 || $(RUN) -m pip install -q --no-deps --target build/torchao torchao==0.18.0
	@PYTHONPATH=build/torchao $(TEST) tests/test_torchao.py

compare-models: setup  ## tair compare on 30 healthy models in three types, and on 60 faults
	@$(TEST) tests/test_compare_models.py

opinfo: setup  ## every OpInfo of torch against the embedded engine, with a report
	@$(RUN) -m labs.opinfo

FUZZ ?= --seconds 600
fuzz: setup  ## random programs against aot_eager; FUZZ="--seconds 3600 --seed 5"; findings go to artefacts/fuzz
	@$(RUN) -m labs.fuzz $(FUZZ)

ARGUMENTS ?= --calls 50000
fuzz-arguments: setup  ## converters called with arguments of every kind, against eager; ARGUMENTS="--calls 9000 --seed 5"
	@$(RUN) -m labs.fuzz.arguments $(ARGUMENTS)

KERNELS ?= --calls 20000
fuzz-kernels: setup  ## kernels of the embedded engine with hostile operands, guarded memory; KERNELS="--calls 9000 --seed 5"
	@$(RUN) -m labs.fuzz.kernels $(KERNELS)

RANKS ?= --count 200
ranks-faults: setup  ## random models over many ranks with one fault each, and sound ones: is it found, and where; RANKS="--count 40 --seed 5"
	@$(RUN) -m labs.ranks_faults $(RANKS)

rank-patterns: setup  ## distributed models on 2, 4 and 8 processes, with gloo and with hccl on the emulator, for docs/collectives.md
	@ls wheelhouse/torch_npu-2.13.0-*.whl >/dev/null 2>&1 || $(RUN) -m pip download -q --no-deps torch_npu==2.13.0 -d wheelhouse
	@TAIR_TORCH_NPU=$$(ls wheelhouse/torch_npu-2.13.0-*.whl) $(RUN) -m labs.rank_patterns

# Half of the time for the readers, entries of the cache and archives among them, half for kernels; a few seconds of it
# for artefacts of compiled graphs. With other seeds each time; in CI with one, so that every change meets the same.
TRUST ?= 60
SEED ?= $(shell date +%s)
fuzz-trust: setup  ## what may come from strangers: entries, archives, artefacts, kernels; TRUST=3600 for an hour
	@failed=""; half=$$(( $(TRUST) / 2 )); mkdir -p artefacts; \
	$(RUN) -m labs.fuzz.kernels --for $$half --seed $$(( $(SEED) * 1000 )) >artefacts/fuzz_kernels.log 2>&1 & kernels=$$!; \
	TAIR_FUZZ_SEED=$(SEED) TAIR_FUZZ_SECONDS=$$half TAIR_FUZZ_ARTEFACTS=$$(( $(TRUST) * 5 )) $(RUN) -m pytest -n 0 tests/test_fuzz.py \
		packages/npu-backend/tests/test_cache_trust.py -k "fuzz or damaged_artefacts" || failed="$$failed readers"; \
	wait $$kernels || failed="$$failed kernels"; cat artefacts/fuzz_kernels.log; \
	test -z "$$failed" || { echo "make fuzz-trust: failed:$$failed"; exit 1; }

torch-suites: setup  ## torch's own databases of modules, optimizers and operators, every row; the page of gaps
	@$(RUN) -m labs.suites
	@$(RUN) -m labs.opinfo --database hop_db --database autograd_function_db --database custom_op_db
	@TAIR_WHOLE=1 $(TEST) tests/test_module_db.py tests/test_optim_db.py tests/test_opcheck.py \
		tests/test_control_flow.py tests/data_dependent

rewrites: setup  ## what debug.verify_rewrites catches, and that it is silent over all models, programs and passes
	@TAIR_WHOLE=1 $(TEST) tests/test_verified_rewrites.py packages/npu-backend/tests/test_proofs*.py

native: setup  ## every OpInfo by the GE operators it becomes, what GE has instead, and why it is not used
	@$(RUN) -m labs.native

graphs: setup  ## operators in the graphs of real models against the bundled torchair's; written to docs/graphs.md
	@$(RUN) -m benchmarks.graphs && $(RUN) -m tools.docs.chinese

chips: setup  ## operators of real models by the unit of each chip that runs them; written to docs/chips.md
	@$(RUN) -m benchmarks.chips

bench: setup  ## ratios against eager and other exporters; written to benchmarks/results.md
	@$(RUN) -m benchmarks.run

lint: setup  ## format, lint, types, import contracts, generated files
	@$(RUN) tools/checks.py --fix

regen: setup  ## make all generated files anew
	@$(RUN) tools/regen.py

coverage: setup  ## tests with coverage; HTML in htmlcov/, coverage/coverage.info for genhtml
	@$(TEST) --cov --cov-report=html --cov-report=lcov:coverage/coverage.info --cov-report=term:skip-covered

configure:  ## choose Python and Ascend SDK from the environment, without questions
	@$(or $(shell command -v python3.11 || command -v python3),$(PYTHON)) tools/configure.py

wheels: setup  ## wheels of all packages into dist/
	@$(RUN) -m tools.release wheels

install: wheels  ## build, then install into the Python chosen by configure
	@$(RUN) -m tools.release install

uninstall:  ## remove the packages from the Python chosen by configure
	@$(PYTHON) -m tools.release uninstall

package-test: setup  ## tests of PKG from its wheel, with only its own dependencies
	@$(RUN) -m tools.release test $(PKG)

package-tests: setup  ## the quick tests of every package, each from its wheel with only its own dependencies
	@$(RUN) -m tools.release test --quick

docs: setup  ## the documentation site in English and Chinese, into site/
	@$(RUN) -m tools.docs.site

matrix: setup  ## tests on other versions of torch and Python that pip can bring here; downloads gigabytes
	@$(RUN) -m tools.matrix

versions-test: setup  ## some tests on the oldest and the newest torch, from wheels; downloads both and removes them
	@$(RUN) -m tools.matrix --ends

archives-test: setup  ## archives and caches that one torch wrote, loaded with others; downloads gigabytes
	@$(RUN) -m tools.matrix --archives

release: setup  ## check, build, test and tag PKG; DRY=1: all packages by their quick tests, no tag
	@$(RUN) -m tools.release release $(if $(DRY),--dry --quick,$(PKG))

clean:  ## remove what was built; wheelhouse/ stays
	rm -rf .venv .bootstrap dist build htmlcov artefacts
