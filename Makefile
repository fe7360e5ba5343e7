# The commands of a checkout. Each does its own set-up first; when nothing changed, that costs nothing.
.DEFAULT_GOAL := help
SHELL := /bin/sh
.PHONY: help run test test-cluster unit faults soak check format map bench bench-cluster mutants setup setup-bench lock clean

BIN := .venv/bin
# Tests start hundreds of processes: where the environment forbids to keep bytecode, each would compile Everlog anew.
unexport PYTHONDONTWRITEBYTECODE
# Spark needs a JDK, which need not be the one on PATH.
WITH_JAVA := JAVA_HOME="$$(scripts/java.sh)" && export JAVA_HOME &&
# Maven brings Kafka and Cassandra, and Cassandra runs on Java 17 or 11 only. Tests that lack them say so themselves.
WITH_SERVERS := $(WITH_JAVA) \
	EVERLOG_MVN="$$(scripts/maven.sh || true)" \
	EVERLOG_CASSANDRA_JAVA_HOME="$${EVERLOG_CASSANDRA_JAVA_HOME:-$$(scripts/java.sh 17 11 || true)}"
# What `make bench` compares with. A measurement that lacks one says so itself, the others go on.
WITH_PEERS := EVERLOG_INITDB="$${EVERLOG_INITDB:-$$(scripts/program.sh initdb postgresql "The benchmark" || true)}" \
	EVERLOG_REDIS="$${EVERLOG_REDIS:-$$(scripts/program.sh redis-server redis-server "The benchmark" || true)}" \
	EVERLOG_WRK="$${EVERLOG_WRK:-$$(scripts/program.sh wrk wrk "The benchmark" || true)}"
WITH_BROWSER := EVERLOG_CHROMIUM="$${EVERLOG_CHROMIUM:-$$(scripts/program.sh chromium chromium "The console's test" || true)}"

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

# `exec`: Ctrl-C goes to Everlog alone, with no shell between.
run: setup ## start Everlog in ./everlog-data; ARGS=--once: replicate everything, print a summary, exit
	@$(WITH_JAVA) exec $(BIN)/everlog up --data ./everlog-data $(ARGS)

test: setup ## run every test, with a sample of the fault matrices; ARGS: more options for pytest
	@$(WITH_SERVERS) $(WITH_BROWSER) $(BIN)/python scripts/lanes.py --beside "cluster or browser" "not (faults or soak)" $(ARGS)

test-cluster: setup ## of these, only the ones on a real Kafka and a real Cassandra
	@$(WITH_SERVERS) $(BIN)/python -m pytest -m "cluster and not faults and not soak" $(ARGS)

unit: setup ## run the quick tests: pure ones, and conformance of the embedded backends
	@$(BIN)/python -m pytest -m "not (spark or cluster or browser or docs or faults or soak)" $(ARGS)

faults: setup ## run the fault matrices whole
	@$(WITH_SERVERS) $(WITH_BROWSER) $(BIN)/python scripts/lanes.py --beside "spark and not browser" "faults and not soak" $(ARGS)

soak: setup ## run the tests that take hours
	@$(WITH_SERVERS) $(BIN)/python -m pytest -m soak $(ARGS)
	@HYPOTHESIS_PROFILE=thorough EVERLOG_EXAMPLES=2000 $(BIN)/python -m pytest --timeout=7200 \
		-m "not (spark or cluster or browser or docs or faults or soak)" $(ARGS)

check: setup-bench ## lint, check the format, check the types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy --strict

format: setup ## format the code, fix what can be fixed
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

map: setup ## draw the rooms and their doors into docs/architecture.md, from the real imports
	@$(BIN)/python scripts/map.py

bench: setup-bench ## measure, beside what a user would take instead; ARGS="--against COMMIT": beside another commit
	@$(WITH_JAVA) $(WITH_PEERS) $(BIN)/python -m bench $(ARGS)

bench-cluster: setup-bench ## measure on a real Kafka, Spark and Cassandra, beside their clients alone
	@$(WITH_SERVERS) $(BIN)/python -m bench.cluster $(ARGS)

mutants: setup ## break the rules of the fold one by one and expect a failing test for each
	@$(WITH_JAVA) $(BIN)/python scripts/mutants.py $(ARGS)

setup: ## make .venv from the locked requirements
	@scripts/setup.sh

setup-bench: # the same, and what the benchmarks compare with
	@scripts/setup.sh bench

lock: ## lock the requirements and the jars anew; ARGS=--upgrade: the requirements at their newest versions
	@scripts/lock.sh $(ARGS)
	@scripts/lock-jars.sh

clean: ## remove the environment and all that building and running left behind, but not ./everlog-data
	rm -rf .venv .setup.lock .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist spark-warehouse artifacts
	find everlog tests bench scripts examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
