# Commands people type. Everything runs in .venv, made from requirements/run.lock; tests add extras.lock and test.lock.
VENV := .venv
export Q RELEASE MODEL PORT WORKERS LOG RECIPE STAGES STUDENT DATA DATASET UNLABELLED RELEVANCE TEST_FROM SIMULATED SINCE UNTIL TABLE ONLY SEEDS TO
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY := 1
export DVC_NO_ANALYTICS := true
export MLFLOW_DISABLE_TELEMETRY := true
export ORT_DISABLE_TELEMETRY := 1

.PHONY: help help-bench setup setup-all demo run search serve test-fast test test-slow test-nightly test-faults test-integration test-dags lint docs promote rollback deploy bench-release bench-gate bench-mine bench-serving bench-teacher-export bench-distill-speed bench-distill bench-teachers bench-collapse bench-gpu bench-migrate bench-endpoint bench-engines bench-given-vectors bench-moves bench-scaling bench-replay bench-any-corpus mlflow airflow images sbom licences lock clean
.DEFAULT_GOAL := help

# What was typed, `make search Q='costs $5'`, means what it says: make would take a `$` for the start of a name of its own
TYPED := $(filter-out PYTHON VENV %_FLAGS,$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name))))
$(foreach name,$(TYPED),$(eval override $(name) := $$(value $(name)))$(eval export $(name)))

# A target's group and its text stand behind ##; ;; begins a line
help: SHOWN := start=Start here,data=Your data,operate=Operate,develop=Develop
help: MORE := make help-bench lists the benchmarks
help-bench: SHOWN := bench=Benchmarks
help help-bench:
	@awk -v shown="$(SHOWN)" -v more="$(MORE)" '/^[a-z-]+:.* ##[a-z]+ / { \
			name = $$0; sub(/:.*/, "", name); text = $$0; sub(/^.* ##/, "", text); group = text; sub(/ .*/, "", group); \
			sub(/^[a-z]+ /, "", text); gsub(/;; */, sprintf("\n%23s", ""), text); \
			lines[group] = lines[group] sprintf("  %-20s %s\n", name, text) } \
		END { count = split(shown, groups, ","); for (at = 1; at <= count; at++) { \
			split(groups[at], pair, "="); printf "%s\n%s\n", pair[2], lines[pair[1]] } print more }' $(MAKEFILE_LIST)

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

# What else was typed, `make run UNLABELED=x`: the command refuses a name that no recipe reads
OTHERS = $(filter-out RECIPE STAGES,$(TYPED))

run: setup ##data the pipeline on your data; the file of a recipe says what DATA holds:;; make run RECIPE=recipes/beir.yaml DATA=<folder> [STAGES=embed]
	@python -m pipeline.recipe "$$RECIPE" DATA="$$DATA" DATASET="$$DATASET" UNLABELLED="$$UNLABELLED" RELEVANCE="$$RELEVANCE" PARTS="$$PARTS" \
		TEST_FROM="$$TEST_FROM" SIMULATED="$$SIMULATED" SINCE="$$SINCE" UNTIL="$$UNTIL" \
		MODEL="$$MODEL" BASE_URL="$$BASE_URL" OLD="$$OLD" NEW="$$NEW" EPOCHS="$$EPOCHS" TRIPLETS="$$TRIPLETS" TEXTS="$$TEXTS" SCORERS="$$SCORERS" LAYERS="$$LAYERS" \
		SET="$$SET" LATE="$$LATE" CROSS="$$CROSS" $(foreach name,$(OTHERS),$(name)="$$$(name)") $$STAGES

search: setup ##start ten hits of a student: make search Q="draw a histogram";; [STUDENT=static] [RECIPE=recipes/x.yaml | RELEASE=<folder>]
	@python -m slimtower search --student "$$STUDENT" --recipe "$$RECIPE" --release "$$RELEASE" -- "$$Q"

serve: setup ##start search page and API at http://localhost:8000 (docs/serving.md);; [RECIPE=recipes/x.yaml | RELEASE=<folder> | MODEL=slimtower@champion];; [PORT=8000] [WORKERS=1] [LOG=<folder>]
	@python -m slimtower serve --release "$$RELEASE" --recipe "$$RECIPE" --model "$$MODEL" --port "$${PORT:-8000}" --workers "$${WORKERS:-1}" --log "$$LOG" $(SERVE_FLAGS)

# Tests run side by side, one process a core: each with one thread (tests/conftest.py)
PYTEST := python -m pytest tests -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder
REST := not integration and not gpu

test-fast: setup-all ##develop units alone, for while you write: a minute
	@$(PYTEST) -m "$(REST) and not medium and not slow"

test: setup-all lint ##develop lint, units, and every stage on small data: what a change must pass first
	@$(PYTEST) -m "$(REST) and not slow"

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

bench-release: setup ##bench what the forms of a release lose, after `make demo`: 20 minutes
	@python -m bench.release_forms

bench-gate: setup ##bench error rates of the promotion gate, after `make demo`: 2 minutes
	@python -m bench.gate --retrain

bench-mine: setup ##bench time and memory of mining made-up logs of up to 10 million queries:;; half an hour, 20 GB of disk
	@python -m bench.mining

bench-serving: setup ##bench speed of encoders, indexes and both, after `make demo`:;; a quarter of an hour, 4 GB of disk
	@python -m bench.serving

bench-teacher-export: setup ##bench the teacher itself in ONNX and int8, after `make demo`: a minute;; [RUN=runs/beir]
	@python -m bench.teacher_export --run "$${RUN:-.}"

bench-distill-speed: setup ##bench beside sentence-transformers' trainer, after `make demo`: 7 minutes
	@python -m bench.distill_speed

bench-distill: setup ##bench a table of distilled students, after;; make run RECIPE=recipes/scifact_medquad.yaml DATA=<folder> STAGES=embed:;; TABLE=ladder [RUN=runs/scifact_medquad] [ONLY=direct,distil] [SEEDS=1,2,3]
	@python -m bench.distillation "$$TABLE" --run "$$RUN" --only "$$ONLY" --seeds "$$SEEDS"

bench-teachers: setup ##bench a table of teachers by what trains them, hours on two cores:;; TABLE=demo, or TABLE=medquad or scifact with DATA=<folder>;; [ONLY=clicks,judged] [SEEDS=1,2,3]
	@python -m bench.teachers "$$TABLE" --only "$$ONLY" --seeds "$$SEEDS"

bench-collapse: setup ##bench do embeddings of cross encoders collapse, five minutes, after;; make run RECIPE=recipes/cross_encoder_teacher.yaml DATA=<folder> STAGES=teach;; [TEACHERS=cls,dual] [RUN=runs/cross_encoder_teacher]
	@python -m bench.collapse "$${TEACHERS:-cls,dual}" --run "$${RUN:-runs/cross_encoder_teacher}"

bench-gpu: setup ##bench what the kinds of teachers cost on a GPU, minutes, after;; make run RECIPE=recipes/llm_teacher.yaml DATA=<folder> STAGES=mine@relevance;; [RUN=runs/llm_teacher] [SIZES=0.5B,1.5B]
	@python -m bench.gpu --run "$${RUN:-runs/llm_teacher}" --sizes "$${SIZES:-0.5B,1.5B}"

bench-migrate: setup ##bench a new model over an old index beside embedding all anew, after;; make run RECIPE=recipes/migrate.yaml DATA=<folder>;; [RUN=runs/migrate] [DOCUMENTS=20000]: the judged ones and so many others
	@python -m bench.migrate "$${RUN:-runs/migrate}" --documents "$${DOCUMENTS:-0}"

bench-endpoint: setup ##bench the demo with its teacher behind a server: a quarter of an hour
	@python -m bench.endpoint

bench-engines: setup-all ##bench Milvus Lite, pgvector and Qdrant: text to hits, and what each loses,;; after `make demo`: a minute
	@python -m bench.engines

bench-given-vectors: setup ##bench the student from stored document vectors is the same, 5 minutes, after;; make run RECIPE=recipes/scifact.yaml DATA=<folder> STAGES=distill@static;; [RUN=runs/scifact]
	@python -m bench.given_vectors "$${RUN:-runs/scifact}"

bench-moves: setup ##bench the service while its champion moves, after `make demo`: 2 minutes
	@python -m bench.moves

bench-scaling: setup ##bench scaling laws of dual encoders, of a run in which `mine` is done:;; two hours on two cores [RUN=runs/scifact]
	@python -m bench.scaling --run "$${RUN:-.}"

bench-replay: setup ##bench two releases over a query log, judged by a cross encoder or a table:;; BEFORE=<release> AFTER=<release> QUERIES=<log>;; JUDGE=<model> | JUDGEMENTS=<table> [RUN=runs/ubi]
	@python -m bench.replay "$$BEFORE" "$$AFTER" --queries "$$QUERIES" --run "$${RUN:-.}" \
		$(if $(JUDGEMENTS),--judgements "$$JUDGEMENTS",--judge "$$JUDGE")

bench-any-corpus: setup ##bench one set of defaults on the corpora of bench/corpora.yaml: hours;; LABEL=after DATA=<folder> [UNLABELLED=<tsv>] [ONLY=scifact_500];; [STUDENTS=static] [SEEDS=1,2,3] [AGAINST=<label>]
	@python -m bench.any_corpus "$$LABEL" --only "$$ONLY" --students "$$STUDENTS" --seeds "$$SEEDS" --against "$$AGAINST"

test-integration: setup-all .airflow-venv/.done ##develop containers, S3, MLflow and Airflow end to end (docs/operations.md);; needs DOCKER_HOST, AWS_ENDPOINT_URL and its credentials
	@docker compose version >/dev/null 2>&1 || python -m pip install --quiet --disable-pip-version-check podman-compose==1.6.0
	@python -m pytest tests -m integration --exitfirst

mlflow: setup ##operate MLflow's pages on the tracked runs [PORT=5000]
	@python -m pipeline.pages --port "$${PORT:-5000}"

airflow: setup .airflow-venv/.done ##operate Airflow on this machine with the project's DAGs (docs/scheduling.md);; [AIRFLOW_PORT=8080]
	@.airflow-venv/bin/python dags/slimtower_dags/standalone.py

test-dags: setup-all .airflow-venv/.done ##develop tests of the DAGs, those that need Airflow too
	@python -m pytest tests/dags

.airflow-venv/.done: requirements/airflow.lock
	@echo "airflow: installing the locked packages into .airflow-venv (a minute)"
	@python=$$(requirements/find_python.sh) && "$$python" -m venv .airflow-venv
	@.airflow-venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/airflow.lock
	@touch $@

images: setup ##operate a container image for every step;; [STEPS="mine teach"] [LOCK=gpu] [CONTAINER_ENGINE=podman]
	@python -m pipeline.images --packages "$${LOCK:-cpu}" --base "$$BASE" --prefix "$$PREFIX" --tag "$${TAG:-latest}" \
		--flags="$$BUILD_FLAGS" --build $$STEPS

sbom: .cache/sbom/.done ##develop what the images install, as CycloneDX files in reports/sbom
	@mkdir -p reports/sbom
	@for lock in run gpu extras; do \
		.cache/sbom/bin/python -W ignore -m cyclonedx_py requirements requirements/$$lock.lock \
			--pyproject pyproject.toml --output-reproducible --output-file reports/sbom/$$lock.cdx.json || exit; \
		echo "sbom: reports/sbom/$$lock.cdx.json"; \
	done

licences: setup ##develop the licence of every installed package, as a table
	@python -W ignore -m pipeline.licences

.cache/sbom/.done: requirements/sbom.lock
	@python=$$(requirements/find_python.sh) && "$$python" -m venv .cache/sbom
	@.cache/sbom/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/sbom.lock
	@touch $@

lock: ##develop resolve pyproject.toml anew into the files of requirements/
	@requirements/lock.sh

clean: ##operate remove outputs, caches, runs and the local MLflow; keeps .venv;; paid answers of an API are in the caches
	@test ! -d data || find data -mindepth 1 -maxdepth 1 ! -name rank ! -name score -exec rm -rf {} +
	@for kept in data/rank data/score; do test ! -d $$kept || find $$kept -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} + ; done
	@rm -rf models reports runs site .cache mlflow.db mlartifacts
