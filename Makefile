# `run` comes with the first study that can be run.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help test verify fix bench bench-search

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

test: ## Run all tests, documentation examples included
	$(CARGO) test --locked --lib --bins --tests --examples
	$(CARGO) test --locked --doc

verify: ## Check everything, change nothing
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(MAKE) test
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps

fix: ## Format the code and apply what clippy suggests
	$(CARGO) clippy --locked --fix --allow-dirty --allow-staged --all-targets
	$(CARGO) fmt

bench: ## Measure the goodput engine and the allocator
	$(CARGO) bench --locked --bench engine

SEARCH := $(CURDIR)/.cache/search

bench-search: ## Measure the suggesters against others, which are installed into .cache/ (hours; goes on where it stopped)
	python3 -m venv $(SEARCH)
	$(SEARCH)/bin/pip install --quiet --requirement benches/search/requirements.txt
	$(SEARCH)/bin/python benches/search/problems.py $(SEARCH)/problems
	$(CARGO) run --locked --release --manifest-path benches/search/peers-rs/Cargo.toml -- \
		$(SEARCH)/problems $(SEARCH)/peers-rs.jsonl
	$(SEARCH)/bin/python benches/search/peers.py $(SEARCH)/peers.jsonl
	$(CARGO) bench --locked --bench search -- \
		$(SEARCH)/problems $(SEARCH)/peers.jsonl $(SEARCH)/peers-rs.jsonl --report $(SEARCH)/report.md
