# Every target runs again at no cost, without a network after its first time, and from a path with spaces: all paths here
# are relative. The logic is in scripts/bootstrap.py and in the commands; nothing is decided here.

PYTHON ?= python3
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help env demo aime-smoke test test-slow lint fix bench bench-full reproduce server clean

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

lint: env ## ruff, mypy and the layers of imports
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"

fix: env ## mend what ruff can mend, and format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# Raw results take the place of those in the checkout; `make reproduce` then writes the document of this machine.
RESULTS := benchmarks/results

# LiveBench question files that you have (docs/solve.md); without them bench-full leaves that claim out.
LIVEBENCH ?=

# Minutes on 2 cores that do nothing else are beside each line: about 25 in all.
bench: env ## measure the claims that a CPU can show in half an hour; raw results in benchmarks/results
	@$(PY) -m taliesin model pull smollm2-135m
	@$(PY) -m taliesin model pull gemma3-270m
# C1, C2: 2.5 (rows that are there stay)
	$(PY) benchmarks/exactness_matrix.py --models smollm2-135m --lengths 64 512 --out $(RESULTS)/exactness_matrix.json
	$(PY) -m taliesin verify --text data/texts/skellan_light.txt --trials 1 --json > $(RESULTS)/verify_cpu.json
# C3: 1.5
	$(PY) -m taliesin shift --text data/texts/skellan_light.txt --json > $(RESULTS)/shift_cpu.json
# C4, C5: 1
	$(PY) -m taliesin bench --lengths 748,2048 --repeats 3 --out $(RESULTS)/bench_cpu
# C7: 1
	$(PY) -m taliesin needle --tokens 6000 --blocks 6 --json > $(RESULTS)/needle_cpu.json
# C8: 5
	@rm -rf build/solve/own-smollm2-135m
	$(PY) benchmarks/solve.py data/problems own-smollm2-135m --model smollm2-135m --budget 224
# C9 to C14, C16, C17, C20: 8
	@rm -rf build/flywheel $(RESULTS)/flywheel-own-smollm2-135m
	$(PY) benchmarks/flywheel.py --problems data/problems --own --model smollm2-135m --work build/flywheel \
	  --results $(RESULTS)/flywheel-own-smollm2-135m --measure 96 --tokens 64 --card-tokens 128
# C22: 1.5
	$(PY) benchmarks/upgrade.py --sentences 8 16 --out $(RESULTS)/upgrade_cpu.json
# C15: 0.5
	$(PY) benchmarks/router_calibration.py
# R7: 3
	$(PY) benchmarks/prefix_cache.py --out $(RESULTS)/prefix_cache.json
# R1 to R5: 0.5, 0.5, 2, 0.5 and 1
	$(PY) benchmarks/restore_speed.py --out $(RESULTS)/restore_speed.json
	$(PY) benchmarks/save_speed.py --out $(RESULTS)/save_speed.json
	$(PY) benchmarks/library_list.py --out $(RESULTS)/library_list.json
	$(PY) benchmarks/sandbox_overhead.py
	$(PY) benchmarks/graft_memory.py --out $(RESULTS)/graft_memory.json

bench-full: bench server ## the same at full size, larger models, the peers and llama-server (hours)
	@$(PY) -m taliesin model pull qwen2.5-coder-0.5b
	@$(PY) -m taliesin model pull qwen2.5-coder-1.5b
	$(PY) benchmarks/exactness_matrix.py --out $(RESULTS)/exactness_matrix.json
	$(PY) -m taliesin bench --out $(RESULTS)/bench_cpu
	$(PY) -m taliesin needle --json > $(RESULTS)/needle_cpu.json
	$(PY) benchmarks/solve.py data/problems own
	$(PY) benchmarks/flywheel.py --problems data/problems --own --model qwen2.5-coder-0.5b --work build/flywheel-0.5b \
	  --results $(RESULTS)/flywheel-own-qwen2.5-coder-0.5b
	$(if $(LIVEBENCH),$(PY) benchmarks/livebench.py $(LIVEBENCH) --model qwen2.5-coder-0.5b)
	$(PY) benchmarks/block_write.py --out $(RESULTS)/block_write.json
	$(PY) benchmarks/peers.py --json $(RESULTS)/peers.json
	$(PY) benchmarks/server_table.py gemma3-270m 1024,1500,1700,2048 --out $(RESULTS)/server-gemma3-270m.json
	$(PY) benchmarks/server_table.py smollm2-135m 512,700,1500,2048 --out $(RESULTS)/server-smollm2-135m.json

reproduce: env ## write docs/reproduction.md from the raw results
	@$(PY) benchmarks/reproduce.py

server: ## build llama-server of the same llama.cpp (minutes, once per machine); its path on stdout
	@"$(PYTHON)" scripts/bootstrap.py server

clean: ## remove what is in the checkout and can be made again (the cache folder and the models stay)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
