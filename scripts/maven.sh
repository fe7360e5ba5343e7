#!/bin/sh
# Prints the path of Maven, which brings the servers' jars: EVERLOG_MVN, else the one on PATH, else from apt.
set -eu
. "$(dirname "$0")/apt.sh"

find_maven() {
    command -v "${EVERLOG_MVN:-mvn}"
}

if find_maven; then exit 0; fi
if [ -z "${EVERLOG_MVN:-}" ] && apt_install maven && find_maven; then exit 0; fi
fail "Kafka and Cassandra come with Maven: install maven, or set EVERLOG_MVN to the path of mvn."
