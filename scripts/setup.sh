#!/bin/sh
# Makes .venv: locked dependencies and this checkout, editable. `scripts/setup.sh bench` adds what benchmarks need.
# Costs nothing when nothing changed: stamps in .venv hold digests of the files that it was made from.
set -eu
cd "$(dirname "$0")/.."
. scripts/apt.sh

python=.venv/bin/python
install="$python -m pip --disable-pip-version-check --quiet install"
# A lock names everything, so nothing is resolved: pip would look at newer releases of what has extras, and refuse them.
locked="$install --require-hashes --no-deps"

# `is_current NAME FILE…`: are these files the ones that step NAME was last done with? `done_with` notes that they are.
is_current() {
    [ -f ".venv/stamp-$1" ] && [ "$(cat ".venv/stamp-$1")" = "$(digest "$@")" ]
}
done_with() {
    digest "$@" >".venv/stamp-$1"
}
digest() {
    shift
    cat "$@" | sha256sum
}

# The first Python >= 3.11 that can make an environment; failing that, the first Python >= 3.11.
find_python() {
    fallback=
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
        fallback=${fallback:-$candidate}
    done
    echo "$fallback"
}

make_environment() {
    base=$(find_python)
    [ -n "$base" ] || fail "Everlog needs Python 3.11 or newer: install it, or name it with PYTHON=/path/to/python3."
    if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
        package=$("$base" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        apt_install "$package" || fail "$base cannot make virtual environments: install the package $package."
    fi
    echo "setup: .venv with $("$base" --version)" >&2
    "$base" -m venv --clear .venv
    pwd >.venv/folder
}

# The environment behind a link belongs to another folder, and making one here would empty it.
[ ! -L .venv ] || fail ".venv is a link: remove it, and an environment is made in this folder."

# One set-up at a time, where the system can tell.
if command -v flock >/dev/null; then
    exec 9>.setup.lock
    flock 9
fi

# An environment does not survive being moved, nor its Python being removed.
if ! { [ -x "$python" ] && [ "$(cat .venv/folder 2>/dev/null)" = "$(pwd)" ]; }; then
    make_environment
fi

if ! is_current locks requirements-build.lock requirements.lock; then
    echo "setup: installing locked dependencies (the first time: about 500 MB, a few minutes)" >&2
    $locked --only-binary :all: -r requirements-build.lock
    $locked --no-build-isolation --use-pep517 -r requirements.lock
    done_with locks requirements-build.lock requirements.lock
fi

if ! is_current package pyproject.toml everlog/version.py; then
    $install --no-deps --no-build-isolation --editable .
    done_with package pyproject.toml everlog/version.py
fi

if [ "${1:-}" = bench ] && ! is_current bench requirements-bench.lock; then
    $locked -r requirements-bench.lock
    done_with bench requirements-bench.lock
fi
