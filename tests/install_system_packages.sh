#!/bin/sh
# Installs the programs that some tests need, where that may be done without asking: as root, with apt.
# Elsewhere those tests are skipped and say why.
set -eu

has_postgres() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

has_slurm() {
    for program in munged slurmctld slurmd sbatch srun; do
        command -v "$program" >/dev/null 2>&1 || return 1
    done
}

has_chromium() {
    command -v chromium >/dev/null 2>&1
}

missing=""
has_postgres || missing="$missing postgresql"
has_slurm || missing="$missing slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
has_chromium || missing="$missing chromium"

if [ -z "$missing" ]; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing and not to be installed here:$missing; the tests that need them will be skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086  # a list of names
apt-get install -qq -y --no-install-recommends $missing >/dev/null
