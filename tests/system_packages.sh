#!/bin/sh
# Installs what is needed beside Python packages, on Debian and its kin: the packages named, or
# what the tests need: a browser for the dashboard and a C compiler for the stand-in of NVIDIA's
# library. Where it may not install, it says what to do.
set -eu
missing="$*"
if [ $# = 0 ]; then
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
fi
[ -z "$missing" ] && exit 0
install="apt-get install --yes --no-install-recommends $missing"
if [ "$(id -u)" = 0 ]; then
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive $install --quiet=2 >/dev/null
elif sudo -n true 2>/dev/null; then
    sudo apt-get update --quiet=2
    # shellcheck disable=SC2086 # a list of words
    sudo DEBIAN_FRONTEND=noninteractive $install --quiet=2 >/dev/null
else
    echo "These Debian packages are needed: $missing. Please run: sudo $install" >&2
    exit 1
fi
