# `make demo` and `make test` are all a newcomer needs; `make check` is what a change must pass.
CARGO ?= cargo
# Programs, tests and benchmarks share one optimised profile: dependencies are compiled once.
PROFILE := --release

.PHONY: help demo test fuzz check build docs manual deb release bench clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## two bad uplinks against one Ropewalk tunnel, on this machine (as root)
	@./scripts/packages demo
	@exec ./target/release/ropewalk demo $(ARGS)

test: ## every test; those of the real programs in network namespaces too (as root)
	@./scripts/packages test
	@./scripts/test $(BESIDE)

fuzz: ## every fuzz target for a while: `make fuzz SECONDS=60`
	@./scripts/fuzz --seconds $(or $(SECONDS),10)

check: ## formatting, lints, documentation and libraries
	@./scripts/packages build
	@./scripts/tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(PROFILE) --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(PROFILE) --workspace --no-deps
	@./scripts/packages docs
	@./scripts/docs
	target/tools/bin/cargo-machete crates fuzz
	target/tools/bin/cargo-deny --locked check licenses bans sources

docs: ## the documentation as a site, in target/site
	@./scripts/packages docs
	@./scripts/docs

manual: build ## the manual pages of all programs, in target/manual
	@test -d target/venv || python3 -m venv target/venv
	@target/venv/bin/pip install -q --disable-pip-version-check -c python/constraints.txt '.[test]'
	@target/venv/bin/python scripts/manual target/manual
	@echo "read one with: man -M target/manual ropewalk-up"

# Not the benchmarks of crates/e2e: `make bench` builds them.
build: ## the programs, in target/release
	@./scripts/packages build
	$(CARGO) build $(PROFILE) --workspace --exclude ropewalk-e2e --bins

deb: ## a Debian package of the programs, in target/debian
	@./packaging/deb.sh

release: ## every package for this machine in dist; for others: `make release ARCH="aarch64 armv7"`, or ARCH=all
	@./scripts/release $(ARCH) $(ARGS)

bench: build ## the benchmarks of crates/e2e, short (as root)
	@./scripts/packages test
	@./scripts/bench --quick

clean: ## remove what was built
	$(CARGO) clean
