#!/bin/sh
# Prints the home folder of a JDK 17 or 21: JAVA_HOME, else the one on PATH, else an installed one, else from apt.
set -eu
. "$(dirname "$0")/apt.sh"

# Prints the home of the given `java` if Spark can run on it. The JVM itself is asked: `java` may be a link or a shim.
usable_home() {
    [ -x "$1" ] || return 1
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(echo "$settings" | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    case $version in
        17 | 21) ;;
        *) return 1 ;;
    esac
    home=$(echo "$settings" | sed -n 's/^ *java\.home = //p')
    echo "${home:-$(dirname "$(dirname "$(readlink -f "$1")")")}"
}

find_home() {
    for java in "${JAVA_HOME:-}/bin/java" "$(command -v java)" /usr/lib/jvm/*/bin/java; do
        usable_home "$java" && return 0
    done
    return 1
}

if find_home; then exit 0; fi
if apt_install openjdk-17-jre-headless openjdk-21-jre-headless && find_home; then exit 0; fi
fail "Everlog needs Java 17 or 21: install openjdk-17-jre-headless (or -21-), or set JAVA_HOME to a JDK of that version."
