# Commands people type. Everything runs in .venv, made from requirements/run.lock; tests add extras.lock and test.lock.
PYTHON  ?= python3
VENV    := .venv
export Q RELEASE MODEL PORT WORKERS LOG RECIPE STAGES STUDENT DATA DATASET UNLABELLED RELEVANCE TEST_FROM SIMULATED SINCE UNTIL TABLE ONLY SEEDS TO
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := true
export MLFLOW_DISABLE_TELEMETRY := true
export ORT_DISABLE_TELEMETRY := 1

.PHONY: help setup setup-all demo run search serve test-fast test test-slow test-nightly test-faults test-integration test-dags lint docs promote rollback deploy bench-release bench-gate bench-mine bench-serving bench-teacher-export bench-distill-speed bench-distill bench-teachers bench-collapse bench-gpu bench-migrate bench-endpoint bench-engines bench-given-vectors bench-moves bench-scaling bench-replay bench-any-corpus mlflow airflow images sbom licences lock clean
.DEFAULT_GOAL := help

# What was typed, `make search Q='costs $5'`, means what it says: make would take a `$` for the start of a name of its own
TYPED := $(filter-out PYTHON VENV %_FLAGS,$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
$(foreach name,$(TYPED),$(eval override $(name) := $$(value $(name)))$(eval export $(name)))

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(VENV)/.done ## install what running needs, requirements/run.lock, into .venv (0.6 GB to download, 2 GB on disk)

$(VENV)/.done: requirements/run.lock requirements/install.sh
	@PYTHON="$(PYTHON)" requirements/install.sh run
	@touch $@

# Java is in the stamp's name: once it is installed, so is pyspark
ALL := $(VENV)/.all$(if $(JAVA_HOME)$(shell command -v java 2>/dev/null),-java)

setup-all: $(ALL) ## tests, lint, Spark, ir_datasets and LoRA besides: extras.lock and test.lock

$(ALL): requirements/run.lock requirements/extras.lock requirements/test.lock requirements/install.sh
	@PYTHON="$(PYTHON)" requirements/install.sh run extras test
	@touch $(VENV)/.done $@

demo: setup ## the whole pipeline on the embedded data, then its results
	@python -m pipeline
	@python -m steps.evaluate --table
	@echo "make serve: search with these students at http://localhost:8000"

# What else was typed, `make run UNLABELED=x`: the command refuses a name that no recipe reads
OTHERS = $(filter-out RECIPE STAGES,$(TYPED))

run: setup ## the pipeline with an overlay: make run RECIPE=recipes/scifact.yaml DATA=<folder> [STAGES=embed]
	@python -m pipeline.recipe "$$RECIPE" DATA="$$DATA" DATASET="$$DATASET" UNLABELLED="$$UNLABELLED" RELEVANCE="$$RELEVANCE" PARTS="$$PARTS" \
		TEST_FROM="$$TEST_FROM" SIMULATED="$$SIMULATED" SINCE="$$SINCE" UNTIL="$$UNTIL" \
		MODEL="$$MODEL" BASE_URL="$$BASE_URL" OLD="$$OLD" NEW="$$NEW" EPOCHS="$$EPOCHS" TRIPLETS="$$TRIPLETS" TEXTS="$$TEXTS" SCORERS="$$SCORERS" LAYERS="$$LAYERS" \
		SET="$$SET" LATE="$$LATE" CROSS="$$CROSS" $(foreach name,$(OTHERS),$(name)="$$$(name)") $$STAGES

search: setup ## top hits: make search Q="draw a histogram" [STUDENT=static] [RECIPE=recipes/x.yaml | RELEASE=<folder>]
	@python -m steps.search --student "$$STUDENT" --recipe "$$RECIPE" --release "$$RELEASE" -- "$$Q"

serve: setup ## search page and API at localhost:8000: make serve [RELEASE=models/release/4l | RECIPE=recipes/x.yaml | MODEL=slimtower@champion] [PORT=8000] [WORKERS=1] [LOG=<folder>] (docs/serving.md)
	@python -m steps.serve --release "$$RELEASE" --recipe "$$RECIPE" --model "$$MODEL" --port "$${PORT:-8000}" --workers "$${WORKERS:-1}" --log "$$LOG" $(SERVE_FLAGS)

# Tests run side by side, one process a core: each with one thread (tests/conftest.py)
PYTEST := python -m pytest tests -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
REST := not integration and not gpu

test-fast: setup-all ## units alone, for while you write: a minute
	@$(PYTEST) -m "$(REST) and not medium and not slow"

test: setup-all lint ## lint, units, and every stage on small data: what a change must pass first
	@$(PYTEST) -m "$(REST) and not slow"

test-slow: setup-all ## pipelines, killed runs, two processes, exports (a quarter of an hour)
	@$(PYTEST) -m "$(REST) and slow and not nightly"

test-nightly: setup-all ## further cases of what the others show of one: whole recipes, every precision, kills at every step
	@$(PYTEST) -m nightly

test-faults: setup-all ## what nights bring, counted in bench/results/faults.json: kills of whole runs (FAULTS=100 of them), bad input, servers away, load, memory (four hours)
	@FAULTS="$${FAULTS:-100}" python -m pytest tests -m faults

lint: setup-all ## ruff, mypy, import-linter
	@ruff check --no-cache .
	@ruff format --check .
	@mypy
	@lint-imports

docs: setup-all ## README and docs/ as a site with search, in site/; a broken link fails
	@python -m pipeline.docs_site

promote: setup ## make a release the champion if it is no worse: make promote [STUDENT=4l] [RECIPE=recipes/x.yaml] [PROMOTE_FLAGS=--name=my-search] (docs/tracking.md)
	@python -m pipeline.in_run "$$RECIPE" steps.promote --student "$$STUDENT" $(PROMOTE_FLAGS)

rollback: setup ## let the previous champion serve again, encoder and index together: make rollback [RECIPE=recipes/x.yaml] [PROMOTE_FLAGS=--name=my-search]
	@python -m pipeline.in_run "$$RECIPE" steps.promote --rollback $(PROMOTE_FLAGS)

deploy: setup ## a release in a vector engine: make deploy TO=postgresql://... [STUDENT=4l] [RECIPE=recipes/x.yaml] [DEPLOY_FLAGS=--rollback] (docs/engines.md)
	@python -m pipeline.in_run "$$RECIPE" steps.deploy --to "$${TO:-models/engine.db}" --student "$$STUDENT" $(DEPLOY_FLAGS)

bench-release: setup ## what the forms of released encoders lose, five seeds, after `make demo` (20 minutes)
	@python -m bench.release_forms

bench-gate: setup ## error rates of the promotion gate on the demo's per-query differences, after `make demo` (2 minutes)
	@python -m bench.gate --retrain

bench-mine: setup ## time and memory of mining made-up logs of 100 thousand to 10 million queries (half an hour, 20 GB of disk)
	@python -m bench.mining

bench-serving: setup ## speed of encoders, indexes and both, after `make demo` (a quarter of an hour, 4 GB of disk)
	@python -m bench.serving

bench-teacher-export: setup ## the teacher itself in ONNX and int8 beside the students, after `make demo`: make bench-teacher-export [RUN=runs/beir] (a minute)
	@python -m bench.teacher_export --run "$${RUN:-.}"

bench-distill-speed: setup ## texts per second of distillation beside sentence-transformers' trainer, after `make demo` (7 minutes)
	@python -m bench.distill_speed

bench-distill: setup ## a table of distilled students: make bench-distill TABLE=ladder [RUN=runs/scifact_medquad] [ONLY=direct,distil] [SEEDS=1,2,3], after `make run RECIPE=recipes/scifact_medquad.yaml DATA=<folder> STAGES=embed`
	@python -m bench.distillation "$$TABLE" --run "$$RUN" --only "$$ONLY" --seeds "$$SEEDS"

bench-teachers: setup ## a table of teachers by what they are trained on: make bench-teachers TABLE=demo [ONLY=clicks,judged] [SEEDS=1,2,3]; TABLE=medquad and TABLE=scifact need DATA=<folder> (hours on two cores)
	@python -m bench.teachers "$$TABLE" --only "$$ONLY" --seeds "$$SEEDS"

bench-collapse: setup ## do embeddings of cross encoders collapse: make bench-collapse [TEACHERS=cls,dual] [RUN=runs/cross_encoder_teacher], after `make run RECIPE=recipes/cross_encoder_teacher.yaml DATA=<folder> STAGES=teach` (five minutes)
	@python -m bench.collapse "$${TEACHERS:-cls,dual}" --run "$${RUN:-runs/cross_encoder_teacher}"

bench-gpu: setup ## what the kinds of teachers cost on a GPU: make bench-gpu [RUN=runs/llm_teacher] [SIZES=0.5B,1.5B], after `make run RECIPE=recipes/llm_teacher.yaml DATA=<folder> STAGES=mine@relevance` (minutes)
	@python -m bench.gpu --run "$${RUN:-runs/llm_teacher}" --sizes "$${SIZES:-0.5B,1.5B}"

bench-migrate: setup ## a new model over an old index beside embedding all anew: make bench-migrate [RUN=runs/migrate] [DOCUMENTS=20000] (the judged ones and so many others, else all are embedded), after `make run RECIPE=recipes/migrate.yaml DATA=<folder>`
	@python -m bench.migrate "$${RUN:-runs/migrate}" --documents "$${DOCUMENTS:-0}"

bench-endpoint: setup ## the demo with its teacher behind a published server, beside the same teacher here (a quarter of an hour on two cores)
	@python -m bench.endpoint

bench-engines: setup-all ## text to hits in Milvus Lite, pgvector and Qdrant's local mode, and what each costs a student, after `make demo` (a minute)
	@python -m bench.engines

bench-given-vectors: setup ## the student from stored document vectors is the same: make bench-given-vectors [RUN=runs/scifact], after `make run RECIPE=recipes/scifact.yaml DATA=<folder> STAGES=distill@static` (5 minutes)
	@python -m bench.given_vectors "$${RUN:-runs/scifact}"

bench-moves: setup ## the service while its champion moves, 50 clients at once, after `make demo` (two minutes)
	@python -m bench.moves

bench-scaling: setup ## scaling laws of dual encoders, four sizes and four numbers of triplets: make bench-scaling [RUN=runs/scifact], of a run in which `mine` is done (two hours on two cores, half of them for the held-out tower)
	@python -m bench.scaling --run "$${RUN:-.}"

bench-replay: setup ## two releases over a query log, judged by a cross encoder or a table: make bench-replay BEFORE=<release> AFTER=<release> QUERIES=<log> JUDGE=<model> (or JUDGEMENTS=<table>) [RUN=runs/ubi] (the judge reads 40 documents a query: minutes for a hundred queries)
	@python -m bench.replay "$$BEFORE" "$$AFTER" --queries "$$QUERIES" --run "$${RUN:-.}" \
		$(if $(JUDGEMENTS),--judgements "$$JUDGEMENTS",--judge "$$JUDGE")

bench-any-corpus: setup ## one set of defaults on the corpora of bench/corpora.yaml: make bench-any-corpus LABEL=after DATA=<folder> [UNLABELLED=<tsv>] [ONLY=scifact_500] [STUDENTS=static] [SEEDS=1,2,3] [AGAINST=<label>] (hours on two cores; what is finished is kept)
	@python -m bench.any_corpus "$$LABEL" --only "$$ONLY" --students "$$STUDENTS" --seeds "$$SEEDS" --against "$$AGAINST"

test-integration: setup-all .airflow-venv/.done ## containers, S3, MLflow and Airflow end to end; needs DOCKER_HOST, AWS_ENDPOINT_URL and its credentials (docs/operations.md)
	@docker compose version >/dev/null 2>&1 || python -m pip install --quiet --disable-pip-version-check podman-compose==1.6.0
	@python -m pytest tests -m integration --exitfirst

mlflow: setup ## MLflow's pages on the tracked runs
	@python -c 'from steps.core.tracking import client; client()'
	@mlflow ui --backend-store-uri "$${MLFLOW_TRACKING_URI:-sqlite:///mlflow.db}"

airflow: setup .airflow-venv/.done ## Airflow on this machine with the project's DAGs: make airflow [AIRFLOW_PORT=8080] (docs/scheduling.md)
	@.airflow-venv/bin/python dags/slimtower_dags/standalone.py

test-dags: setup-all .airflow-venv/.done ## tests of the DAGs, those that need Airflow too
	@python -m pytest tests/dags

.airflow-venv/.done: requirements/airflow.lock
	@echo "airflow: installing the locked packages into .airflow-venv (a minute)"
	@$(PYTHON) -m venv .airflow-venv
	@.airflow-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/airflow.lock
	@touch $@

images: setup ## a container image for every step: make images [STEPS="mine teach"] [LOCK=gpu] [CONTAINER_ENGINE=podman]
	@python -m pipeline.images --packages "$${LOCK:-cpu}" --base "$$BASE" --prefix "$$PREFIX" --tag "$${TAG:-latest}" \
		--flags="$$BUILD_FLAGS" --build $$STEPS

sbom: .cache/sbom/.done ## what the images install, as CycloneDX files in reports/sbom
	@mkdir -p reports/sbom
	@for lock in run gpu extras; do \
		.cache/sbom/bin/python -W ignore -m cyclonedx_py requirements requirements/$$lock.lock \
			--pyproject pyproject.toml --output-reproducible --output-file reports/sbom/$$lock.cdx.json || exit; \
		echo "sbom: reports/sbom/$$lock.cdx.json"; \
	done

licences: setup ## the licence of every installed package, as a table
	@python -W ignore -m pipeline.licences

.cache/sbom/.done: requirements/sbom.lock
	@$(PYTHON) -m venv .cache/sbom
	@.cache/sbom/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/sbom.lock
	@touch $@

lock: ## resolve pyproject.toml anew into the files of requirements/
	@requirements/lock.sh

clean: ## remove outputs, caches (paid answers of an API too), runs and the local MLflow with its registry; keeps .venv
	@test ! -d data || find data -mindepth 1 -maxdepth 1 ! -name rank ! -name score -exec rm -rf {} +
	@for kept in data/rank data/score; do test ! -d $$kept || find $$kept -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} + ; done
	@rm -rf models reports runs site .cache mlflow.db mlartifacts
