#!/bin/sh
# `program.sh PROGRAM PACKAGE REASON`: prints the path of a program: on PATH, else in PostgreSQL's own folders, else from
# apt. What needs it is named by REASON.
set -eu
. "$(dirname "$0")/apt.sh"

find_program() {
    command -v "$1" && return
    for path in /usr/lib/postgresql/*/bin/"$1"; do
        [ -x "$path" ] && echo "$path" && return
    done
    return 1
}

if find_program "$1"; then exit 0; fi
if apt_install "$2" && find_program "$1"; then exit 0; fi
fail "$3 needs $1: install the package $2."
