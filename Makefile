# Each verb sets up what it needs. Settings: VENV=folder of the environment, PYTHON=interpreter that makes it,
# ARGS=more arguments for the tool behind the verb, PIP_ARGS=more arguments for pip, CONSTRAINTS=file with the versions
# to install (CONSTRAINTS= for none: what an environment already has stays, and what it lacks comes as the newest).
include tools/handout/setup.mk
DEV = $(VENV)/.llama-notebooks-dev
KIT = $(VENV)/.llama-notebooks-teaching
FOUR = $(VENV)-transformers-4
NBVAL = --nbval
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
	$(NBVAL) --nbval-current-env --nbval-cell-timeout=1800

.PHONY: help lab setup test test-teaching test-all test-rounding test-oldest constraints notebooks student reset update grade tiny-llama site coverage style bench
.DEFAULT_GOAL := help
$(call ask,student,FOLDER,../handout)
$(call ask,grade,FOLDER,../handed-in)
$(call ask,update,FROM,../old)
$(call ask,reset,NOTEBOOK,notebooks/02_rope.ipynb)
$(call ask,tiny-llama,FOLDER,runs/mine)

help: ## list the verbs
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## /\t/' | expand -t 14

lab: $(LEARN) ## set up, then open JupyterLab on the first notebook (ARGS="--port 9000 --no-browser")
	$(BIN)/python -m tools.lab notebooks/00_start_here.ipynb $(ARGS)

setup: $(LEARN) ## make the environment, without opening anything

test: $(DEV) ## every notebook, and all tests that are quick (ARGS="tests/checks")
	$(PYTEST) -m "not slow" $(ARGS)

test-teaching: $(DEV) $(KIT) ## the tests of the teaching kit: grading in a sandbox, the website in a browser
	$(PYTEST) -o testpaths=teaching/tests $(ARGS)

test-all: $(DEV) $(KIT) $(FOUR)/.ready ## both, and those too that open a browser, kill and fuzz
	$(PYTEST) -o testpaths="notebooks tests helpers explorers beyond checks teaching/tests" $(ARGS)

SEEDS ?= 1 2 3
SETTINGS ?= ATEN_CPU_CAPABILITY=avx2 ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE MKL_ENABLE_INSTRUCTIONS=AVX2
ROUNDED = notebooks tests/checks tests/helpers/test_parity.py tests/helpers/test_model.py tests/beyond/test_relatives.py

test-rounding: $(DEV) ## notebooks and the tests of the maths as on other processors: the last bit is noise (SEEDS="1 2" SETTINGS=)
	for kind in $(SEEDS:%=COURSE_ROUNDING=%) $(SETTINGS); do \
		echo "with $$kind"; env $$kind $(PYTEST) -m "not slow" $(ROUNDED) $(ARGS) || exit 1; done

test-oldest: ## test-all with the oldest packages that pyproject.toml allows, in .venv-oldest
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet uv
	.venv-oldest/bin/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct -e '.[dev,teaching]'
	$(MAKE) test-all VENV=.venv-oldest CONSTRAINTS= NBVAL=--nbval-lax # they print otherwise

constraints: | $(BIN)/python ## write constraints.txt: the newest versions that every system can install; then make test-all
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) uv
	mkdir -p build # each build of torch brings the left-out ones in versions of its own
	$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --universal --python-version 3.11 --no-annotate \
		--no-header --output-file build/newest.txt --upgrade
	(grep '^#' constraints.txt; grep -vE '^(nvidia|cuda|triton)' build/newest.txt) > build/constraints.txt
	mv build/constraints.txt constraints.txt

notebooks: $(DEV) ## execute the notebooks that git sees changed (ARGS="04 06": these; ARGS=--all; ARGS=--text: only clean them)
	$(BIN)/python -m tools.notebooks $(ARGS)

student: $(LEARN) ## write a folder to hand out, without solutions (FOLDER=../handout ARGS="--only 01 02")
	$(BIN)/python -m tools.hand_out student "$(FOLDER)" $(ARGS)

reset: $(LEARN) ## a fresh copy of a notebook; yours is kept (NOTEBOOK=notebooks/02_rope.ipynb)
	$(BIN)/python -m tools.hand_out reset "$(NOTEBOOK)"

update: $(LEARN) ## put what you answered in an older folder into these notebooks (FROM=../old)
	$(BIN)/python -m tools.update --from "$(FROM)"

grade: $(LEARN) ## grade a folder of submissions (FOLDER=../handed-in ARGS="--only 01 --jobs 2")
	$(BIN)/python -m teaching.classroom.grade "$(FOLDER)" $(ARGS)

tiny-llama: $(LEARN) ## train a small LLaMA on the reference or your text (FOLDER=runs/mine ARGS="--text notes.txt")
	$(BIN)/python -m tools.tiny_llama --out "$(FOLDER)" $(ARGS)

site: $(KIT) ## build the website into build/site
	OMP_NUM_THREADS=1 $(BIN)/python -m teaching.website.build $(ARGS)

coverage: $(DEV) ## tests and notebooks under coverage.py; fails below 98 %
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n 2 --dist loadfile --nbval --nbval-current-env \
		--nbval-cell-timeout=1800 --ignore=tests/browser --ignore=tests/tools $(ARGS)
	$(BIN)/python -m coverage combine
	$(BIN)/python -m coverage report

style: $(DEV) ## format and lint Python files and notebooks
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(DEV) ## measure speed against transformers, half an hour with nothing else running (ARGS=--quick: two minutes)
	PYTHONPATH=. $(BIN)/python benchmarks/speed.py $(ARGS)

$(KIT): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e '.[teaching]'
	$(INSTALLED)

$(DEV): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	$(INSTALLED) $(LEARN)

# For one test: the last transformers 4, which shares all other packages. A path in a .pth comes last.
$(FOUR)/.ready: | $(DEV)
	$(BIN)/python -m venv $(FOUR)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$(echo $(FOUR)/lib/python*/site-packages)/shared.pth"
	$(FOUR)/bin/python -m pip install --quiet --no-deps $(PIP_ARGS) \
		transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2
	@touch $@
