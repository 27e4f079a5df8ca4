#!/bin/sh
# Resolve pyproject.toml anew and write the locks of requirements/: `make lock`.
#
# run.lock is what running needs. extras.lock is what Spark, ir_datasets, LoRA, OpenAI's client and vector engines add to
# it, test.lock what tests, lint and MLflow's login add to both. The three come from one installation, by the lowest
# Python. Their torch has no local version, so that any build of it satisfies the lock. uv then checks every lock for the
# other Pythons: each pin must have a wheel there, and nothing may be missing.
# gpu.lock holds the pins of run.lock and what CUDA adds on x86-64 Linux, from the registry's metadata alone: no machine with
# a GPU is needed. Its `torch===` refuses a CPU build, which `==` would prefer. Images are built from it without a GPU
# (bench/gpu_images.py); on a GPU it was not tried. A build fails where torch has no CUDA.
# tracking.lock is what the tracking server's image installs, at the versions of run.lock and test.lock.
# hashes.txt holds the pins of the five with digests; requirements/install.sh and images take their lines from there.
# sbom.lock, with digests, is the tool of `make sbom`, kept out of the images.
# airflow.lock, with digests, is an environment of its own: Airflow, the providers that dags/ uses, and pytest for
# tests/dags.
# kubeflow.lock, with digests, is another one: Kubeflow Pipelines' compiler and its local runner.
set -eu
python=${PYTHON:-python3.11}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
pip="$folder/venv/bin/pip"
"$pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} torch==2.13.0
"$pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} ".[pipeline]"
frozen() {
	"$pip" freeze --all --exclude slimtower --exclude pip --exclude wheel # setuptools too, which torch needs
}
names() {
	frozen | sed 's/==.*/==/'
}
names >"$folder/run.names"
"$pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} ".[pipeline,endpoint,engines,ir-datasets,lora,spark]"
names >"$folder/extras.names"
"$pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} ".[dev]"
frozen | grep -v '^nvidia-\|^cuda-\|^triton' | sed 's/+cpu//' >"$folder/all"
"$folder/venv/bin/python" - "$folder" <<'END'
import sys
from pathlib import Path

folder = Path(sys.argv[1])
running, more = (set((folder / f"{name}.names").read_text().split()) for name in ("run", "extras"))
locks = {"run": [], "extras": [], "test": []}
for line in (folder / "all").read_text().splitlines():
    name = line.split("==")[0] + "=="
    locks["run" if name in running else "extras" if name in more else "test"].append(line)
for name, lines in locks.items():
    (folder / f"{name}.lock").write_text("".join(f"{line}\n" for line in lines))
END

"$pip" install --quiet uv
resolve() {
	"$folder/venv/bin/uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
		--no-header --no-annotate --no-emit-package faiss-cpu --constraints "$folder/known" "$@"
}
# The pins of "resolved" as "known" spells them, by name.
spelled() {
	"$folder/venv/bin/python" - "$folder" <<-'END'
	import re
	import sys
	from pathlib import Path


	def pins(file):
	    """Lines of a lock by normalised name."""
	    lines = Path(sys.argv[1], file).read_text().split()
	    return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line for line in lines}


	known = pins("known")
	lines = [known.get(name, line) for name, line in pins("resolved").items()]
	print("\n".join(sorted(lines, key=lambda line: line.split("=")[0].lower())))
	END
}
# What each Python needs besides the pins of a file, as pins with a marker; uv fails if a pin has no wheel there. The three
# of SOURCES in hashes.py that are pure Python need nothing that is not pinned.
besides() {
	printf '%s ; sys_platform == "win32"\n' antlr4-python3-runtime kfp-server-api pyspark >"$folder/sources"
	for version in 3.11 3.12 3.13 3.14; do
		"$folder/venv/bin/uv" pip compile --quiet --python-version "$version" --python-platform x86_64-manylinux_2_28 \
			--override "$folder/sources" --only-binary :all: --no-header --no-annotate "$1" >"$folder/resolved"
		awk -v version="$version" -F == '
			{ name = tolower($1); gsub(/[-_.]+/, "-", name) }
			NR == FNR { pinned[name]; next }
			!(name in pinned) && name !~ /^(nvidia|cuda|triton)/ { print $0 " ; python_version == \"" version "\"" }
		' "$1" "$folder/resolved"
	done
}
grep -v '^faiss-cpu==' "$folder/run.lock" >"$folder/known"
resolve --extra pipeline --extra gpu pyproject.toml >"$folder/resolved"
spelled | sed 's/^torch==/torch===/' >"$folder/gpu.lock"
cat "$folder/run.lock" "$folder/test.lock" >"$folder/known"
printf 'mlflow[auth]\nboto3\npsycopg2-binary==2.9.13\n' | resolve - >"$folder/resolved"
spelled >"$folder/tracking.lock"
: >"$folder/known"
echo cyclonedx-bom | resolve --generate-hashes - | sed -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ba' -e '}' >"$folder/sbom.lock"
for file in all gpu.lock tracking.lock sbom.lock; do
	besides "$folder/$file" >"$folder/more"
	[ ! -s "$folder/more" ] || {
		echo "lock: $file lacks these; name them in pyproject.toml: $(tr '\n' ',' <"$folder/more")" >&2
		exit 1
	}
done

"$python" -m venv "$folder/airflow"
"$folder/airflow/bin/pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} apache-airflow==3.3.2 pytest \
	psycopg2-binary==2.9.13 asyncpg==0.32.0 \
	apache-airflow-providers-docker==4.6.1 apache-airflow-providers-cncf-kubernetes apache-airflow-providers-standard
"$folder/airflow/bin/pip" freeze >"$folder/airflow.pins"
besides "$folder/airflow.pins" >"$folder/more"
cat "$folder/more" >>"$folder/airflow.pins"
"$python" -m venv "$folder/kubeflow"
"$folder/kubeflow/bin/pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} "kfp[kubernetes]==2.17.3" docker pydantic
"$folder/kubeflow/bin/pip" freeze >"$folder/kubeflow.pins"
besides "$folder/kubeflow.pins" >"$folder/more"
cat "$folder/more" >>"$folder/kubeflow.pins"
for name in run extras test gpu tracking sbom; do mv "$folder/$name.lock" requirements/; done

"$folder/venv/bin/python" requirements/hashes.py requirements/hashes.txt requirements/run.lock requirements/extras.lock \
	requirements/test.lock requirements/gpu.lock requirements/tracking.lock
"$folder/venv/bin/python" requirements/hashes.py requirements/airflow.lock "$folder/airflow.pins"
"$folder/venv/bin/python" requirements/hashes.py requirements/kubeflow.lock "$folder/kubeflow.pins"
