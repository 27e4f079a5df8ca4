#!/bin/sh
# Resolve pyproject.toml anew and write requirements/cpu.lock: `make lock`.
# torch comes without its local version, so that any build of it satisfies the lock.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} torch==2.13.0
"$folder/venv/bin/pip" install --quiet ${CONSTRAINTS:+-c "$CONSTRAINTS"} ".[dev]"
"$folder/venv/bin/pip" freeze --exclude slimtower | grep -v '^nvidia-\|^cuda-\|^triton' | sed 's/+cpu//' >"$folder/cpu.lock"
mv "$folder/cpu.lock" requirements/cpu.lock
