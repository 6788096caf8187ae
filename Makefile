# Commands for contributors. docs/testing.md explains when to run each.

PYTHON ?= .venv/bin/python
BIN := $(dir $(PYTHON))
CHAOS_MINUTES ?= 10
CHAOS_BROKER ?= redis rabbitmq store
CHAOS_REDIS ?=
CHAOS_SEED := $(or $(CHAOS_SEED),$(shell date +%s))

HOSTILE_REQUESTS ?= 50000
HOSTILE_SEED := $(or $(HOSTILE_SEED),$(shell date +%s))

.PHONY: test merge peers crewai nightly lint types docs links package ci chaos hostile

# The change tier: minutes, no service needed.
test:
	$(PYTHON) -m pytest

# Other A2A libraries, from their registries, for tests/peers, and CrewAI for tests/crewai.
peers:
	$(PYTHON) -m tests.peers.environments

# The agents of CrewAI, whose pins exclude other frameworks, in a separate environment.
crewai: peers
	.peers/crewai/bin/python -m pytest tests/crewai

# What CI runs in addition; `docker` and `browser` are separate extras.
merge: peers
	$(PYTHON) -m pytest -m merge
	$(MAKE) crewai
	$(PYTHON) -m pytest tests/browser
	DOCKER_BUILDKIT=0 $(PYTHON) -m pytest -m merge tests/docker

# The rest of the matrix, then the long runs.
nightly:
	$(PYTHON) -m pytest -m nightly
	DOCKER_BUILDKIT=0 $(PYTHON) -m pytest -m nightly tests/docker
	$(MAKE) chaos hostile

lint:
	$(BIN)ruff check .
	$(BIN)ruff format --check .

types:
	$(BIN)mypy

# The site, in build/site, from the extra `docs`. A broken link or anchor fails.
docs:
	NO_MKDOCS_2_WARNING=1 $(BIN)mkdocs build

# The external links of the pages. Needs the network, so CI does not run it.
links:
	$(PYTHON) -m tests.tools.links

# Sdist and wheel in dist/, checked and tried in an empty environment; needs the extra `release`.
package:
	.ci/check_package dist $(PYTHON)

ci:
	bash .ci/run

# Kill, freeze and restart all processes while clients send requests; CHAOS_SEED repeats a run, CHAOS_REDIS=6.2 or 7 chooses the server.
chaos:
	@for broker in $(CHAOS_BROKER); do \
	  echo "CHAOS_SEED=$(CHAOS_SEED) CHAOS_MINUTES=$(CHAOS_MINUTES) CHAOS_BROKER=$$broker"; \
	  CHAOS_SEED=$(CHAOS_SEED) CHAOS_MINUTES=$(CHAOS_MINUTES) CHAOS_REDIS=$(CHAOS_REDIS) \
	    $(PYTHON) -m pytest tests/acceptance/test_chaos.py tests/acceptance/test_chaos_of_steps.py -q -s -k "$$broker" || exit 1; \
	done

# Send generated requests that no client should send, and print the responses; HOSTILE_SEED repeats a run.
hostile:
	@echo "HOSTILE_SEED=$(HOSTILE_SEED) HOSTILE_REQUESTS=$(HOSTILE_REQUESTS)"
	@HOSTILE_SEED=$(HOSTILE_SEED) HOSTILE_REQUESTS=$(HOSTILE_REQUESTS) \
	  $(PYTHON) -m pytest tests/acceptance/test_generated.py -q -s
