#!/bin/sh
# Installs what is needed beside Python packages, on Debian and its kin: the packages named, or
# what the tests need: a browser for the dashboard, a C compiler for the stand-in of NVIDIA's
# library, Postgres, tc for slow links, and Slurm, whose daemons tests start themselves. Where it may
# not install, it says what to do.
set -eu
missing="$*"
if [ $# = 0 ]; then
    PATH="$PATH:/usr/sbin:/sbin" # of daemons, which users need not have there
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    command -v tc >/dev/null 2>&1 || missing="$missing iproute2"
    command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
    if ! command -v pg_ctl >/dev/null 2>&1; then
        ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || missing="$missing postgresql"
    fi
    command -v sbatch >/dev/null 2>&1 || missing="$missing slurm-client"
    command -v slurmctld >/dev/null 2>&1 || missing="$missing slurmctld"
    command -v slurmd >/dev/null 2>&1 || missing="$missing slurmd"
    command -v munged >/dev/null 2>&1 || missing="$missing munge"
fi
[ -z "$missing" ] && exit 0
# Debian's package makes and starts a cluster of its own unless it is told not to.
clusters=/etc/postgresql-common/createcluster.d/radt.conf
no_cluster="mkdir -p ${clusters%/*} && echo 'create_main_cluster = false' >$clusters"
case "$missing" in *postgresql*) ;; *) no_cluster=true ;; esac
install="apt-get install --yes --no-install-recommends $missing"
if [ "$(id -u)" = 0 ]; then
    sh -c "$no_cluster"
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive $install --quiet=2 >/dev/null
elif sudo -n true 2>/dev/null; then
    sudo sh -c "$no_cluster"
    sudo apt-get update --quiet=2
    # shellcheck disable=SC2086 # a list of words
    sudo DEBIAN_FRONTEND=noninteractive $install --quiet=2 >/dev/null
else
    echo "These Debian packages are needed: $missing. Please run: sudo $install" >&2
    exit 1
fi
