#!/bin/sh
# Prints the home folder of a Java of the given versions (17 or 21, which Spark runs on, if none is given): JAVA_HOME,
# else the one on PATH, else an installed one, else from apt.
set -eu
. "$(dirname "$0")/apt.sh"
versions=${*:-17 21}

# Prints the home of the given `java` if it is of one of these versions. The JVM itself is asked: `java` may be a link or a shim.
usable_home() {
    [ -x "$1" ] || return 1
    settings=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(echo "$settings" | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
    case " $versions " in
        *" $version "*) ;;
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
# shellcheck disable=SC2046 # one word per package
if apt_install $(printf 'openjdk-%s-jre-headless ' $versions) && find_home; then exit 0; fi
choice=$(echo "$versions" | sed 's/ / or /')
fail "Everlog needs Java $choice: install openjdk-17-jre-headless, or set JAVA_HOME to a Java of that version."
