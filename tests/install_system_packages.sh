#!/bin/sh
# Installs the programs that some tests need, where that may be done without asking: as root, with apt.
# Elsewhere those tests are skipped and say why.
set -eu

has_postgres() {
    command -v initdb >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

if has_postgres; then
    exit 0
fi
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "the PostgreSQL server is missing and cannot be installed here; its tests will be skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq -y --no-install-recommends postgresql >/dev/null
