CARGO ?= cargo
# With libtorch from the cache folder, in a target folder that all checkouts share.
TORCH := scripts/with-libtorch.sh $(CARGO)
# The whole workspace at once: fewer packages could mean other features of dependencies, and torch-sys once more.
ALL := --locked --workspace --features torch

.DEFAULT_GOAL := help
.PHONY: help install uninstall docs run test test-browser test-python wheel test-cuda verify verify-all chaos storm fix paper bench bench-engine bench-elastic bench-study bench-search bench-bbob bench-stopping bench-python bench-race bench-dashboard bench-c10d libtorch check-cuda cifar10 fuzz stress-tests

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

STUDY ?= search-spaces/cifar10-small.yaml

# On GPUs where there are some. LIBTORCH_FLAVOUR=cpu does without them.
run: export LIBTORCH_FLAVOUR := $(or $(LIBTORCH_FLAVOUR),auto)
run: cifar10 ## Run a real study with its live page, CIFAR-10 on this machine (4 to 6 minutes), or resume it; gets libtorch and the images first
	@flavour=$$(scripts/with-libtorch.sh --flavour) && export LIBTORCH_FLAVOUR=$$flavour && \
		if [ $$flavour = cpu ]; then features=torch; else features=cuda; fi && \
		echo "building for $$flavour" && \
		$(TORCH) build --locked --workspace --features $$features --bin pollux-tune && \
		exec scripts/with-libtorch.sh sh -c 'exec "$${CARGO_TARGET_DIR:-target}/debug/pollux-tune" run $(STUDY) --dashboard'

PREFIX ?= $(HOME)/.local
FEATURES ?=
INSTALLED := $(PREFIX)/bin/pollux-tune
MAN := $(PREFIX)/share/man/man1
BASH_COMPLETION := $(PREFIX)/share/bash-completion/completions/pollux-tune
ZSH_COMPLETION := $(PREFIX)/share/zsh/site-functions/_pollux-tune
FISH_COMPLETION := $(PREFIX)/share/fish/vendor_completions.d/pollux-tune.fish

# Only trainables in Rust need libtorch. The program remembers where it is, so that nobody needs LD_LIBRARY_PATH.
install: ## Install the program, man pages and completions into PREFIX (~/.local); FEATURES=torch for trainables in Rust
	$(if $(FEATURES),$(TORCH),$(CARGO)) install --locked --path . --root "$(PREFIX)" --no-track --force $(if $(FEATURES),--features $(FEATURES))
	@mkdir -p "$(dir $(BASH_COMPLETION))" "$(dir $(ZSH_COMPLETION))" "$(dir $(FISH_COMPLETION))"
	"$(INSTALLED)" completions bash > "$(BASH_COMPLETION)"
	"$(INSTALLED)" completions zsh > "$(ZSH_COMPLETION)"
	"$(INSTALLED)" completions fish > "$(FISH_COMPLETION)"
	"$(INSTALLED)" man "$(MAN)"
	@case ":$$PATH:" in *":$(PREFIX)/bin:"*) ;; *) echo "add $(PREFIX)/bin to your PATH" ;; esac

uninstall: ## Remove what install has put into PREFIX (~/.local)
	rm -f "$(INSTALLED)" "$(MAN)"/pollux-tune.1 "$(MAN)"/pollux-tune-*.1 "$(BASH_COMPLETION)" "$(ZSH_COMPLETION)" "$(FISH_COMPLETION)"

MDBOOK := $(CURDIR)/.cache/mdbook

docs: ## Make a site of docs/ in target/book, and check its links; installs mdBook into .cache/ first (some minutes)
	$(CARGO) install --quiet --locked --root "$(MDBOOK)" mdbook@0.5.4
	"$(MDBOOK)/bin/mdbook" build
	scripts/book-check.py target/book

test: ## Run all tests, documentation examples and the Python package included; gets libtorch and PyTorch first
	$(TORCH) test $(ALL)
	$(MAKE) test-python
	$(MAKE) test-browser

# With the program that the tests were built with.
test-browser: ## Test the dashboard in Chromium, which is installed where that is possible
	scripts/with-libtorch.sh sh -c 'exec scripts/browser-tests.py "$${CARGO_TARGET_DIR:-target}/debug/pollux-tune"'

test-python: ## Install the Python package into a fresh virtual environment, and test it; gets PyTorch first (3 GB)
	scripts/with-libtorch.sh scripts/python-tests.py

PACKAGING := $(CURDIR)/.cache/packaging

wheel: ## Build the Python package, program included, into target/wheels
	python3 -m venv $(PACKAGING)
	$(PACKAGING)/bin/pip install --quiet 'pip>=24'
	$(PACKAGING)/bin/pip wheel . --no-deps --wheel-dir target/wheels

verify: ## Check everything, change nothing
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --no-default-features --all-targets -- -D warnings
	$(CARGO) clippy --locked --no-default-features --features runtime --all-targets -- -D warnings
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(TORCH) clippy $(ALL) --all-targets -- -D warnings
	$(MAKE) test
	RUSTDOCFLAGS="-D warnings" $(TORCH) doc $(ALL) --no-deps
	scripts/optional-checks.sh

SEEDS ?= 20000

# The slower suites: minutes, before a release and after changes of the engine, the groups or the workers.
verify-all: verify chaos storm ## Everything in verify, and the slower suites

FAULTS ?= 70

storm: ## Run a study of real training through FAULTS (70) kills, stops, full disks and restarts (some minutes)
	POLLUX_TUNE_STORM=$(FAULTS) $(TORCH) test $(ALL) --test elastic -- storm --nocapture

chaos: ## Run simulated studies through all kinds of faults, SEEDS of them (about 4 minutes of CPU time)
	$(CARGO) run --locked --release -- chaos --seeds $(SEEDS)
ROUNDS ?= 20
BUSY ?= 10

stress-tests: ## Run all tests ROUNDS (20) times beside BUSY (10) busy processes, and tell which of them waver (hours)
	scripts/stress-tests.sh $(ROUNDS) $(BUSY)

FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= study texts message agent_message events journal checkpoint ask_tell

# Without sanitizers, which need a nightly compiler: there is no unsafe code in what is fuzzed. What it learns stays in .cache/.
fuzz: ## Fuzz FUZZ_TARGETS (all) by coverage, each for FUZZ_SECONDS (60); installs cargo-fuzz into .cache/ first
	$(CARGO) install --quiet --locked --root .cache/cargo-fuzz cargo-fuzz@0.13.2
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p .cache/fuzz/$$target; \
		PATH="$(CURDIR)/.cache/cargo-fuzz/bin:$$PATH" $(CARGO) fuzz run --sanitizer none $$target .cache/fuzz/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=60 -rss_limit_mb=4096 -max_len=4096 || exit 1; \
	done

fix: ## Format the code and apply what clippy suggests
	$(TORCH) clippy $(ALL) --fix --allow-dirty --allow-staged --all-targets
	$(CARGO) fmt --all

libtorch: ## Get libtorch into the cache folder, for cargo with --features torch
	@scripts/libtorch.py

cifar10: ## Get CIFAR-10 into the cache folder
	@scripts/cifar10.py

check-cuda: ## Compile what is for GPUs; needs 1.5 GB of packages, but no GPU
	LIBTORCH_FLAVOUR=cuda $(TORCH) clippy --locked --workspace --features cuda,tch/doc-only --all-targets -- -D warnings

PEER := $(CURDIR)/.cache/peer

# On a machine with GPUs. NCCL needs a GPU for each worker. With HOSTS="gpu1 gpu2" also a trial with GPUS=2 over these machines, by ssh:
# this folder must be there, too.
test-cuda: peer ## Run the tests of elastic training on two GPUs, with HOSTS="gpu1 gpu2" over two machines, too; gets PyTorch with CUDA first (3 GB)
	$(PEER)/bin/pip install --quiet 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'
	LIBTORCH=$$($(PEER)/bin/python -c 'import os, torch; print(os.path.dirname(torch.__file__))') POLLUX_TUNE_TEST_GPUS=1 \
		$(CARGO) test --locked --workspace --features cuda --test elastic -- --test-threads=1
ifneq ($(strip $(HOSTS)),)
	$(MAKE) cifar10
	LIBTORCH=$$($(PEER)/bin/python -c 'import os, torch; print(os.path.dirname(torch.__file__))') \
		$(CARGO) build --locked --workspace --features cuda --bin pollux-tune
	GPUS=$(GPUS) scripts/test-hosts.sh "$(CURDIR)/target/debug/pollux-tune" $(HOSTS)
endif

.PHONY: peer
peer:
	python3 -m venv $(PEER)
	$(PEER)/bin/pip install --quiet torch==2.13.0 numpy

paper: ## Repeat the published experiments into target/paper (about 40 minutes of CPU time)
	$(CARGO) run --locked --release -- simulate paper target/paper

bench: bench-engine bench-study bench-elastic ## Measure the engine, studies against Ray Tune, elastic training against PyTorch

bench-engine: ## Measure the goodput engine and the allocator
	$(CARGO) bench --locked --bench engine

# As tests are built: compiling torch-sys once more would take longer than all of it, and libtorch does the work.
bench-elastic: peer ## Measure elastic training against PyTorch, which is installed into .cache/ (3 GB)
	$(TORCH) bench $(ALL) --profile dev --bench elastic -- $(PEER)/bin/python

bench-study: peer ## Measure what it costs to run and journal a study, against Ray Tune
	$(PEER)/bin/pip install --quiet 'ray[tune]==2.50.0'
	$(CARGO) bench --locked --bench study -- --ray=$(PEER)/bin/python

# The wheel's program, which has no libtorch, is built in the same place as the one that trains: hence the copy.
bench-python: peer cifar10 ## Measure what the Python package costs, against Optuna, PyTorch's DDP, Ray Train and trainables in Rust
	$(PEER)/bin/pip install --quiet 'ray[train]==2.60.0'
	$(TORCH) build $(ALL) --bin pollux-tune
	scripts/with-libtorch.sh sh -c 'cp "$${CARGO_TARGET_DIR:-target}/debug/pollux-tune" .cache/pollux-tune-torch'
	scripts/with-libtorch.sh scripts/python-tests.py --run benches/python/all.py \
		$(CURDIR)/.cache/pollux-tune-torch --ray $(PEER)/bin/python

MINUTES ?= 20

# Three seeds are hours already; chaos has another default. Nothing here needs libtorch but its place to build.
bench-race: SEEDS := $(if $(filter file,$(origin SEEDS)),3,$(SEEDS))
bench-race: peer cifar10 ## Race against Ray Tune and Optuna on CIFAR-10, MINUTES (20) each with SEEDS (3); resumes where it stopped
	$(PEER)/bin/pip install --quiet 'ray[tune]==2.60.0' optuna==5.0.0 matplotlib==3.11.2
	scripts/with-libtorch.sh scripts/python-tests.py --run benches/race/race.py \
		--peer $(PEER)/bin/python --minutes $(MINUTES) --seeds $(SEEDS)

bench-dashboard: ## Measure the web page against optuna-dashboard on the same 10 000 trials, and with 100 trials that run
	$(CARGO) build --locked --release
	benches/dashboard/page.py "$${CARGO_TARGET_DIR:-target}/release/pollux-tune"

bench-c10d: ## Measure process groups on this machine
	$(TORCH) run --locked --package c10d --example measure

bench-stopping: ## Measure early stopping on the learning curves in data/curves, at equal GPU time (some minutes)
	$(CARGO) bench --locked --bench stopping

SEARCH := $(CURDIR)/.cache/search

bench-search: ## Measure the suggesters against others, which are installed into .cache/ (hours; resumes where it stopped)
	python3 -m venv $(SEARCH)
	$(SEARCH)/bin/pip install --quiet --requirement benches/search/requirements.txt
	$(SEARCH)/bin/python benches/search/problems.py $(SEARCH)/problems
	$(CARGO) run --locked --release --manifest-path benches/search/peers-rs/Cargo.toml -- \
		$(SEARCH)/problems $(SEARCH)/peers-rs.jsonl
	$(SEARCH)/bin/python benches/search/peers.py $(SEARCH)/peers.jsonl
	$(CARGO) bench --locked --bench search -- \
		$(SEARCH)/problems $(SEARCH)/peers.jsonl $(SEARCH)/peers-rs.jsonl --report $(SEARCH)/report.md
	$(CARGO) bench --locked --bench search -- --unseen
	$(SEARCH)/bin/python benches/several/peers.py $(SEARCH)/several.jsonl
	$(CARGO) bench --locked --bench several -- $(SEARCH)/several.jsonl
	$(MAKE) bench-bbob

BBOB_SEEDS ?= 15

# Through the Python package, beside Optuna; ioh has the functions, and needs numpy, which is there.
bench-bbob: ## Measure the suggesters on functions that no setting was chosen with, BBOB, BBOB_SEEDS (15) instances of each (some minutes)
	test -d $(SEARCH)/ioh || (python3 -m venv $(SEARCH) && \
		$(SEARCH)/bin/pip install --quiet --no-deps --target $(SEARCH)/ioh ioh==0.3.22)
	PYTHONPATH=$(SEARCH)/ioh scripts/with-libtorch.sh scripts/python-tests.py --run benches/search/bbob.py \
		$(SEARCH)/bbob.jsonl --seeds $(BBOB_SEEDS)
