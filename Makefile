# Needs: python3 (3.11 or newer) with venv and headers, g++, make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Stamps live in the environment, so that they go when it goes.
STAMPS := $(VENV)/stamps
NATIVE := $(shell find csrc -path csrc/tests -prune -o -name '*.[ch]pp' -print)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two pips in one environment get into each other's way.
.NOTPARALLEL:
.PHONY: help demo test lint format docs bench bench-checkpointer bench-remote campaign clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(STAMPS)/demo $(STAMPS)/built ## Show what the library does, on a small model
	$(BIN)/gdsckpt demo

test: $(STAMPS)/test $(STAMPS)/kvikio $(STAMPS)/built ## Run all tests but the campaigns
	$(BIN)/python -m pytest

lint: $(STAMPS)/test ## Check style, types and the layers of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	find csrc -name '*.[ch]pp' -print0 | xargs -0 $(BIN)/clang-format --dry-run -Werror

format: $(STAMPS)/test ## Rewrite the sources in the style that lint wants
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	find csrc -name '*.[ch]pp' -print0 | xargs -0 $(BIN)/clang-format -i

docs: $(STAMPS)/base ## Print the pages that are made from the sources
	$(BIN)/python -c "from gdsckpt.config import Config; print(Config.to_markdown(), end='')" \
		> docs/settings.md

bench: $(STAMPS)/bench $(STAMPS)/built ## Measure save and load on this machine
	$(BIN)/python bench/run.py

bench-checkpointer: $(STAMPS)/bench $(STAMPS)/built ## Measure what saves behind a training cost it
	$(BIN)/python bench/checkpointer.py

bench-remote: $(STAMPS)/bench-remote $(STAMPS)/built ## Compare the cost of clients of object stores
	$(BIN)/python bench/remote.py

campaign: $(STAMPS)/test $(STAMPS)/kvikio $(STAMPS)/built ## Run the tests that take minutes to hours
	$(BIN)/python -m pytest -m campaign --timeout 0 -o faulthandler_timeout=0

clean: ## Remove the environment and all that was built
	rm -rf $(VENV) build dist *.egg-info gdsckpt/_C.*.so
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Prints requirements of pyproject.toml, one a line: of an extra, or, for `base`, of the build and
# of the project itself.
define REQUIREMENTS
import pathlib, sys, tomllib
table = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
project = table["project"]
base = table["build-system"]["requires"] + project["dependencies"]
extras = project["optional-dependencies"]
print(*(base if sys.argv[1] == "base" else extras[sys.argv[1]]), sep="\n")
endef
export REQUIREMENTS

define install-requirements
$(BIN)/python -c "$$REQUIREMENTS" $(@F) > $(STAMPS)/$(@F).txt
$(PIP) install -c constraints.txt -r $(STAMPS)/$(@F).txt
touch $@
endef

$(STAMPS)/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS)
	$(install-requirements)

$(STAMPS)/bench $(STAMPS)/bench-remote $(STAMPS)/demo $(STAMPS)/test: $(STAMPS)/base
	$(install-requirements)

# Alone (12 MB): it asks for CuPy and parts of the CUDA toolkit, gigabytes that moving files takes
# nothing from. There are no wheels for other processors, where its tests are skipped.
$(STAMPS)/kvikio: $(STAMPS)/base
ifneq ($(filter x86_64 aarch64,$(shell uname -m)),)
	$(PIP) install --no-deps -c constraints.txt kvikio-cu13 libkvikio-cu13 rapids-logger
endif
	touch $@

# An editable install compiles the extension from nothing, so it is made only when the metadata
# changed; a change of C++ alone is compiled in place, and one of Python needs neither.
# Objects are told apart by their source's time only, so a changed header throws them all away.
$(STAMPS)/built: $(STAMPS)/base setup.py $(NATIVE)
	$(if $(filter-out $(NATIVE),$?),\
		$(PIP) install --no-deps --no-build-isolation -e .,\
		$(if $(filter %.hpp,$?),rm -rf build/temp.* &&) \
		$(BIN)/python setup.py --quiet build_ext --inplace)
	touch $@
