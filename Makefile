# `run` comes with the first study that can be run.

CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help test verify fix bench

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

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
