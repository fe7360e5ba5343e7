#!/bin/sh
# Locks the jars of `everlog cluster`: writes everlog/cluster/jars.sha256 from what the profiles of pom.xml come to.
set -eu
cd "$(dirname "$0")/.."

maven=$(scripts/maven.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for profile in kafka cassandra; do
    "$maven" -B -q -f everlog/cluster/pom.xml validate "-P$profile" "-DoutputDirectory=$scratch/$profile" >&2
    (cd "$scratch" && LC_ALL=C sha256sum "$profile"/*.jar)
done >"$scratch/list"
mv "$scratch/list" everlog/cluster/jars.sha256
