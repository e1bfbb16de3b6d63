# The one interface to the tools. CI runs what stands here, and so does a commit hook.
SHELL := bash
PYTHON ?= python
NAME ?= kernel
PROTO := proto/pserver/v1/pserver.proto
PROTOC := $(PYTHON) -m grpc_tools.protoc -I proto

.DEFAULT_GOAL := help
.PHONY: help setup proto proto-check fmt check test test-slow test-long test-nojit bench loc ci

help:  ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

setup:  ## editable install with all tools, commit hooks on
	$(PYTHON) -m pip install -c constraints.txt -e '.[dev]'
	$(PYTHON) -m pre_commit install

proto:  ## regenerate pserver/v1 from the schema
	$(PROTOC) --python_out=. --pyi_out=. $(PROTO)

proto-check:  ## fail if pserver/v1 is not what the schema gives
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && $(PROTOC) --python_out="$$out" --pyi_out="$$out" $(PROTO) \
	&& for f in "$$out"/pserver/v1/*; do diff -u "pserver/v1/$${f##*/}" "$$f" || { echo 'run: make proto'; exit 1; }; done

fmt:  ## format, and mend what ruff can mend
	ruff check --fix --exit-zero . && ruff format .

check:  ## format, lint, types, import contracts, tidiness, schema
	ruff format --check . && ruff check . && mypy && lint-imports
	$(PYTHON) -m pytest -q -n 0 tests/test_tidy.py && $(MAKE) --no-print-directory proto-check

test:  ## all tests but the slow and long ones and those that need a GPU
	$(PYTHON) -m pytest

test-slow:  ## the slow ones (exit 5 means that there are none)
	$(PYTHON) -m pytest -n 0 -m 'slow and not gpu' tests || test $$? -eq 5

test-long:  ## those that take minutes: hundreds of kills, every mode on real data, a million malformed requests
	$(PYTHON) -m pytest -n 0 -m 'long and not gpu' tests

test-nojit:  ## kernels and tables as plain Python, so a debugger can step through them; a hundred times slower
	NUMBA_DISABLE_JIT=1 $(PYTHON) -m pytest --timeout 600 tests/unit/kernel tests/unit/table

bench:  ## one benchmark: make bench NAME=kernel
	$(PYTHON) -m bench $(NAME)

loc:  ## lines a file and a package, and the change against main
	@git ls-files -co --exclude-standard '*.py' | grep -v _pb2 | xargs wc -l | awk '$$2 != "total" {split($$2, p, "/"); n[p[1]] += $$1; print} END {for (k in n) printf "%8d %s (all)\n", n[k], k}'
	@git diff --shortstat main -- '*.py' || true

ci: check test test-nojit test-slow  ## everything that must pass before a merge
