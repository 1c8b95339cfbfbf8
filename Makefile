# Every target runs again at no cost, without a network after its first time, and from a path with spaces: all paths here
# are relative. The logic is in scripts/bootstrap.py and in the commands; nothing is decided here.

PYTHON ?= python3
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help env demo aime-smoke test test-slow lint server clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

env: ## .venv with the pinned llama-cpp-python (built from source once per machine, minutes)
	@"$(PYTHON)" scripts/bootstrap.py

demo: env ## save a text as a KV block, graft it in a second process, verify it
	@$(PY) -m taliesin model pull smollm2-135m
	@$(PY) -m taliesin demo

aime-smoke: env ## solve 4 of our problems with the default model, and report (a minute)
	@$(PY) -m taliesin model pull smollm2-135m
	@rm -rf build/aime-smoke
	$(PY) -m galahad solve data/problems --limit 4 --out build/aime-smoke --thought-tokens 256 --check-tokens 64 --program-tokens 256
	@$(PY) -m galahad report build/aime-smoke

test: env lint ## lint, then the tests (minutes)
	@$(PY) -m taliesin model pull smollm2-135m
	@$(PY) -m taliesin model pull gemma3-270m
	$(PY) -m pytest

test-slow: env ## the tests that take minutes each
	@$(PY) -m taliesin model pull smollm2-135m
	@$(PY) -m taliesin model pull gemma3-270m
	$(PY) -m pytest -m slow

lint: env ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

server: ## build llama-server of the same llama.cpp (minutes, once per machine); its path on stdout
	@"$(PYTHON)" scripts/bootstrap.py server

clean: ## remove what is in the checkout and can be made again (the cache folder and the models stay)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
