#!/bin/sh
# Writes the hash-locked requirements-*.lock and requirements.lock anew. `make lock ARGS=--upgrade` takes newer versions.
set -eu
cd "$(dirname "$0")/.."

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"${PYTHON:-python3}" -m venv "$tools"
"$tools/bin/pip" install --quiet uv==0.13.7

compile() {
    output=$1
    shift
    "$tools/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
        --custom-compile-command "make lock" --output-file "$output" "$@"
}

# Each lock is bound to the one before it: the three can share one environment.
compile requirements-build.lock requirements-build.in "$@"
compile requirements.lock pyproject.toml requirements.in --extra all --constraint requirements-build.lock "$@"
compile requirements-bench.lock requirements-bench.in --constraint requirements.lock "$@"
