#!/bin/sh
# Installs the programs that some tests need, where that may be done without asking: as root, with apt.
# Elsewhere those tests are skipped and say why. With the argument `accounting`, those of Slurm's accounting too, which
# only long forms need (some 25 s).
set -eu

has_postgres() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

has_slurm() {
    for program in munged slurmctld slurmd sbatch srun; do
        command -v "$program" >/dev/null 2>&1 || return 1
    done
}

has_accounting() {
    command -v slurmdbd >/dev/null 2>&1 && command -v mariadbd >/dev/null 2>&1
}

has_chromium() {
    command -v chromium >/dev/null 2>&1
}

has_faketime() {
    command -v faketime >/dev/null 2>&1
}

has_nginx() {
    command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]
}

has_promtool() {
    command -v promtool >/dev/null 2>&1
}

has_modules() {
    [ -r /usr/share/lmod/lmod/init/bash ] || [ -r /usr/share/modules/init/bash ]
}

missing=""
has_postgres || missing="$missing postgresql"
has_slurm || missing="$missing slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
[ "${1-}" != accounting ] || has_accounting || missing="$missing slurmdbd slurm-wlm-mysql-plugin mariadb-server"
has_chromium || missing="$missing chromium"
has_faketime || missing="$missing faketime"
has_nginx || missing="$missing nginx-light"
has_promtool || missing="$missing prometheus"
has_modules || missing="$missing lmod"

if [ -z "$missing" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing and not to be installed here:$missing; the tests that need them will be skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive

apt() {
    apt-get -qq -o DPkg::Lock::Timeout=300 -o Acquire::Retries=5 "$@" >/dev/null
}

# shellcheck disable=SC2086  # a list of names
update_and_install() {
    apt update && apt install -y --no-install-recommends $missing
}

# On a machine that has just started another apt may be at work, and a mirror may be renewed between the two steps.
for pause_s in 10 30 60; do
    if update_and_install; then
        exit 0
    fi
    echo "apt failed; once more in $pause_s s" >&2
    sleep "$pause_s"
done
update_and_install
