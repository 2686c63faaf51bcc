# How the Makefile sets up: the environment in VENV, made by PYTHON, gets the versions of CONSTRAINTS.
VENV ?= .venv
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN = $(VENV)/bin
SETUP = $(firstword $(wildcard docs/setup.md) README.md)
LEARN = $(VENV)/.llama-notebooks-learn
# $(call ask,VERB,SETTING,EXAMPLE): a setting that a verb cannot do without is asked for before anything is installed.
ask = $(if $(filter $(1),$(MAKECMDGOALS)),$(if $(strip $($(2))),,$(error Say which: make $(1) $(2)=$(3))))
$(foreach name,VENV CONSTRAINTS,$(if $(word 2,$($(name))),\
  $(error make cannot read $(name)="$($(name))", for the space in it: give a path without one)))

INSTALL = @$(BIN)/python -m pip --version > /dev/null || { echo "$(VENV) has no pip. Is another make setting it up? Wait \
for it. Else: make VENV=another_folder ..., or the lines for uv in $(SETUP)"; exit 1; }; \
  echo "Installing PyTorch, JupyterLab and what else is needed into $(VENV). It takes minutes and up to 1.5 GB; on Linux \
5 GB, with CUDA, unless PyTorch for the CPU is chosen ($(SETUP))."; \
  $(BIN)/python -m pip install $(CONSTRAINTS:%=--constraint %) $(PIP_ARGS)
# A file dated ahead (a zip from another time zone) is dated now: newer than $@, it would be installed at every call.
INSTALLED = @touch $@; for file in $^; do ! test "$$file" -nt $@ || touch "$$file"; done; touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	  v < (3, 11) and sys.exit("Python %d.%d found, 3.11 or newer needed: make PYTHON=python3.12 ..." % v); \
	  v > (3, 13) and print("Python %d.%d is newer than those tested, 3.11 to 3.13. If the installation fails:" % v, \
	    "make PYTHON=python3.13 ..., or make CONSTRAINTS= ... for the newest packages")'
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

$(LEARN): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e .
	$(INSTALLED)
