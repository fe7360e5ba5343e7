# Sourced by the other scripts: say what is missing, or install it where we may.

fail() {
    echo "error: $*" >&2
    exit 1
}

# Installs the first of the named packages that the distribution has. Only as root, only with apt.
apt_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null || true # one unreachable source among many must not stop us
    for package in "$@"; do
        apt-get install -qq --simulate "$package" >/dev/null 2>&1 || continue
        echo "setup: apt-get install $package" >&2
        apt-get install -qq -y --no-install-recommends "$package" >/dev/null && return 0
    done
    return 1
}
