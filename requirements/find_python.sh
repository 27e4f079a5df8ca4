#!/bin/sh
# Print a Python of 3.11 to 3.14 that can make a virtual environment: PYTHON if it is set, else the first on the PATH,
# else one that uv installs. If there is none, one line says what to install.
set -eu

# Prints "fits", "is 3.9.2" or "has no ensurepip". Prints nothing if the command is missing or fails, as a shim of a
# version manager does whose Python is not installed.
verdict() {
	"$1" -c "import sys
if not (3, 11) <= sys.version_info < (3, 15):
    sys.exit(print('is', sys.version.split()[0]))
try:
    import ensurepip, venv
    print('fits')
except ImportError:
    print('has no ensurepip')" 2>/dev/null || true
}

fail() {
	echo "setup: $*" >&2
	exit 1
}

if [ -n "${PYTHON:-}" ]; then
	set -- "$PYTHON"
else
	# The system's own choice first, as its updates and packages are for that one. Then 3.13 and what is older, as all
	# tests ran on 3.13 and on 3.11; 3.14 last, as the quick ones alone ran on it.
	set -- python3 python3.13 python3.12 python3.11 python3.14
fi
problem=
for candidate in "$@"; do
	found=$(verdict "$candidate")
	case $found in
	fits)
		echo "$candidate"
		exit
		;;
	"has no ensurepip")
		[ -n "$problem" ] || problem="$candidate cannot make a virtual environment; run: apt install ${candidate##*/}-venv"
		;;
	esac
done
if [ -n "${PYTHON:-}" ]; then
	fail "${problem:-needs Python 3.11 to 3.14; PYTHON=$PYTHON ${found:-does not run}}"
fi
if command -v uv >/dev/null 2>&1; then
	found=$(uv python find '>=3.11,<3.15' 2>/dev/null || true)
	if [ "$(verdict "$found")" != fits ] && uv python install --quiet 3.13 >&2; then
		found=$(uv python find 3.13)
	fi
	if [ "$(verdict "$found")" = fits ]; then
		echo "$found"
		exit
	fi
fi
found=$(verdict python3)
fail "${problem:-needs Python 3.11 to 3.14, python3 ${found:-does not run}; install one (Debian and Ubuntu: apt install\
 python3-venv or python3.11-venv; Fedora: dnf install python3.13; Homebrew: brew install python@3.13) or uv}"
