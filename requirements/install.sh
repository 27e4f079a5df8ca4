#!/bin/sh
# Install locks into .venv: `make setup` runs `requirements/install.sh run`, `make setup-all` `... run extras test`.
#
# What makes it quick: only what the steps import is byte-compiled (a third of all), nothing is resolved (a lock is
# whole; `pip check` says if another platform needs more), a pip of today (Python 3.11's own takes twice as long), uv
# where it is installed. docs/operations.md, "Installing", has the figures. Every file must have a
# digest that hashes.txt names, but torch's and what this platform needs besides the locks, which is said.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- run
for name in "$@"; do
	[ -f "requirements/$name.lock" ] || {
		echo "setup: there is no requirements/$name.lock; give run, or run extras test" >&2
		exit 2
	}
done
locks=$(printf "requirements/%s.lock " "$@")
cpu_index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
python=.venv/bin/python

say() {
	echo "setup: $*"
}

pip() {
	"$python" -m pip --disable-pip-version-check --quiet "$@"
}

# A `python -m venv` that failed, as on Debian without python3-venv, leaves an interpreter without pip.
has_pip() {
	"$python" -m pip --version >/dev/null 2>&1
}

# A virtual environment with a pip of today if there is one. Nothing that lies there is deleted.
make_venv() {
	first=$(requirements/find_python.sh)
	"$first" -m venv .venv
	has_pip || {
		echo "setup: .venv has no pip, though it was made just now; delete .venv, then run it again" >&2
		exit 1
	}
	pip install "pip>=26" || say "pip stays as it is"
}

# Does pip find torch's CPU build, with these further flags? Asks briefly: an index may be out of reach.
finds_cpu_torch() {
	"$python" -m pip index versions --timeout 10 --retries 0 "$@" torch 2>/dev/null | grep -qF "$torch+cpu"
}

# PyPI's torch for Linux carries CUDA. Where there is no such GPU, take the CPU build of the same version.
install_torch() {
	set -- # the index to add
	if [ "$(uname -s)" != Linux ]; then
		say "torch $torch, as pip finds it"
		return # with the rest
	elif command -v nvidia-smi >/dev/null 2>&1; then
		say "torch $torch, pip's own build, for CUDA, as this machine has nvidia-smi (3 GB to download)"
		return
	elif finds_cpu_torch; then
		say "torch $torch, CPU build, from where pip is told to look (0.2 GB to download)"
	elif finds_cpu_torch --extra-index-url "$cpu_index"; then
		say "torch $torch, CPU build, from $cpu_index (0.2 GB to download)"
		set -- --extra-index-url "$cpu_index"
	else
		say "torch $torch, pip's own build, which carries CUDA (3 GB to download): $cpu_index is not in reach"
		return
	fi
	pip install --no-compile --no-deps "$@" "torch===$torch+cpu"
}

# The lock without what this machine has no use for.
wanted() {
	if command -v java >/dev/null 2>&1 || [ -n "${JAVA_HOME:-}" ]; then
		cat $locks
	else
		cat $locks | grep -v '^pyspark==\|^py4j=='
	fi
}

install_packages() {
	if command -v uv >/dev/null 2>&1; then
		uv pip install --quiet --python "$python" --no-deps --requirement "$1" && return
		say "uv could not; pip goes on"
	fi
	pip install --no-compile --no-deps --requirement "$1"
}

# Compile what the commands load: import every module of the steps once, then the packages that are loaded piecemeal.
compile_used() {
	PYTHONDONTWRITEBYTECODE='' "$python" -W ignore - <<-'END' || say "not all of steps/ can be imported, as said above"
		import importlib, pkgutil, steps
		for module in pkgutil.walk_packages(steps.__path__, "steps."):
		    if not module.name.endswith("__main__"):
		        importlib.import_module(module.name)
	END
	(
		cd .venv/lib/python3*/site-packages
		../../../bin/python -m compileall -qq -j 0 dvc* scmrepo dulwich networkx hydra omegaconf antlr4 ruamel \
			mlflow sqlalchemy alembic ibis sqlglot pygments anyio _pytest hypothesis
	) >/dev/null 2>&1 || true # tests and lint are not in every lock
}

began=$(date +%s)
version=$("$python" -c "import sys; print(sys.version.split()[0])" 2>/dev/null || true)
case $version in
"" | 3.1[1-4].*) ;;
*)
	echo "setup: needs Python 3.11 to 3.14, $python is $version; delete .venv, then run it again" >&2
	exit 1
	;;
esac
has_pip || make_venv
wanted >.venv/wanted.txt
torch=$(sed -n 's/^torch==//p' .venv/wanted.txt)
case $("$python" -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null) in
"$torch" | "$torch"+*) ;;
*) install_torch ;;
esac
[ "$(cat $locks | wc -l)" = "$(wc -l <.venv/wanted.txt)" ] || say "without pyspark (0.4 GB), which needs Java; the test of Spark skips itself"
say "$(grep -c == .venv/wanted.txt) packages of ${locks% }, a minute or two"
awk 'NR == FNR { wanted[$1]; next } $1 in wanted' .venv/wanted.txt requirements/hashes.txt >.venv/hashed.txt
install_packages .venv/hashed.txt
# What this platform needs besides: pip's own torch with its libraries, packages of another system or Python.
if ! "$python" -m pip --disable-pip-version-check check >.venv/missing.txt; then
	say "without digests:$(awk '/ which is not installed/ { sub(",", "", $4); if (!seen[$4]++) printf " %s", $4 }' .venv/missing.txt)"
	pip install --no-compile --requirement .venv/wanted.txt
fi
compile_used
say "done in $(($(date +%s) - began)) s; .venv has $(du -sm .venv | cut -f1) MB"
