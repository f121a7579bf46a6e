#!/bin/sh
# Installs what is needed beside Python packages, on Debian and its kin: the packages named, or
# what the tests need: a browser for the dashboard, a C compiler for the stand-in of NVIDIA's
# library, Postgres, nginx, tc for slow links, and Slurm, whose daemons tests start themselves.
# Where it may not install, it says what to do. Root also gets a Docker engine, which only root can
# start, where one can be installed: tests do without.
# --missing: only prints the packages that tests cannot do without and that are not there.
set -eu
install_docker() {
    wanted=""
    command -v dockerd >/dev/null 2>&1 || wanted=" docker.io"
    command -v debootstrap >/dev/null 2>&1 ||
        wanted="$wanted debootstrap debian-archive-keyring"
    if [ -n "$wanted" ]; then
        # shellcheck disable=SC2086 # a list of words
        { apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
            apt-get install --yes --no-install-recommends --quiet=2 $wanted >/dev/null; } || {
            echo "No Docker engine:$wanted cannot be installed."
            return
        }
    fi
    # Compose of Debian 12 is the old one; that of Debian 13 needs nothing newer than this libc.
    if ! ls /usr/l*/docker/cli-plugins/docker-compose >/dev/null 2>&1; then
        folder=$(mktemp --directory) &&
            echo "deb http://deb.debian.org/debian trixie main" >"$folder/list" &&
            mkdir --parents "$folder/state/lists" &&
            newer="-o Dir::Etc::SourceList=$folder/list -o Dir::Etc::SourceParts=/dev/null" &&
            newer="apt-get --quiet=2 $newer -o Dir::State=$folder/state -o APT::Sandbox::User=root" &&
            (cd "$folder" && $newer update && $newer download docker-compose &&
                dpkg --install ./docker-compose_*.deb) >/dev/null || echo "No Docker Compose."
        rm -rf "$folder"
    fi
}
missing="$*"
[ "$missing" != --missing ] || missing=""
if [ -z "$missing" ]; then
    PATH="$PATH:/usr/sbin:/sbin" # of daemons, which users need not have there
    command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
    command -v tc >/dev/null 2>&1 || missing="$missing iproute2"
    command -v nginx >/dev/null 2>&1 || missing="$missing nginx-light"
    command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
    if ! command -v pg_ctl >/dev/null 2>&1; then
        ls /usr/lib/postgresql/*/bin/pg_ctl >/dev/null 2>&1 || missing="$missing postgresql"
    fi
    command -v sbatch >/dev/null 2>&1 || missing="$missing slurm-client"
    command -v slurmctld >/dev/null 2>&1 || missing="$missing slurmctld"
    command -v slurmd >/dev/null 2>&1 || missing="$missing slurmd"
    command -v munged >/dev/null 2>&1 || missing="$missing munge"
    if [ "$*" = --missing ]; then
        echo "$missing"
        exit 0
    fi
    [ "$(id -u)" != 0 ] || install_docker
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
