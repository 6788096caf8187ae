# Longer runs of what the tests do shortly.

PYTHON ?= .venv/bin/python
CHAOS_MINUTES ?= 10
CHAOS_BROKER ?= redis rabbitmq
CHAOS_SEED := $(or $(CHAOS_SEED),$(shell date +%s))

HOSTILE_REQUESTS ?= 50000
HOSTILE_SEED := $(or $(HOSTILE_SEED),$(shell date +%s))

# Everything dies while clients want their answers; CHAOS_SEED repeats a run.
.PHONY: chaos
chaos:
	@for broker in $(CHAOS_BROKER); do \
	  echo "CHAOS_SEED=$(CHAOS_SEED) CHAOS_MINUTES=$(CHAOS_MINUTES) CHAOS_BROKER=$$broker"; \
	  CHAOS_SEED=$(CHAOS_SEED) CHAOS_MINUTES=$(CHAOS_MINUTES) \
	    $(PYTHON) -m pytest tests/acceptance/test_chaos.py -q -s -k "$$broker" || exit 1; \
	done

# So many generated requests that nobody should send; prints what was answered. HOSTILE_SEED repeats a run.
.PHONY: hostile
hostile:
	@echo "HOSTILE_SEED=$(HOSTILE_SEED) HOSTILE_REQUESTS=$(HOSTILE_REQUESTS)"
	@HOSTILE_SEED=$(HOSTILE_SEED) HOSTILE_REQUESTS=$(HOSTILE_REQUESTS) \
	  $(PYTHON) -m pytest tests/acceptance/test_generated.py -q -s
