"""A Slurm lab with accounting: mariadbd and slurmdbd of its own, in the lab's folder, for sacct and QOS limits.

    with AccountedSlurmLab(nodes=2) as lab:
        lab.account("add", "qos", "small")            # sacctmgr

Needs what the lab needs, and Debian's slurmdbd, slurm-wlm-mysql-plugin and mariadb-server.
"""

from __future__ import annotations

import shutil
import subprocess

from slurm_lab import SlurmLab, free_ports, wait_for

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr", "sacct")
# DenyOnLimit and other limits need all of it.
_ENFORCED = "associations,limits,qos"


class AccountedSlurmLab(SlurmLab):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        (self._port,) = free_ports(1)
        self.accounting = (
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\n"
            # Else slurmctld ends for want of TRES.
            f"AccountingStoragePass={self.folder}/munge.sock\nAccountingStoragePort={self._port}\n"
            f"AccountingStorageEnforce={_ENFORCED}\nAccountingStoreFlags=job_comment\nTrackWCKey=yes"
        )

    def account(self, *words: str) -> str:
        """What sacctmgr says; it asks nothing."""
        return self.run("sacctmgr", "--immediate", "--noheader", "--parsable2", *words)

    def start_accounting(self) -> None:
        data, socket = self.folder / "mysql", self.folder / "mysql.sock"
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", "--skip-test-db",
             "--auth-root-authentication-method=normal"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        self._start(
            "mysql.pid", "mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={socket}",
            "--skip-networking", f"--pid-file={self.folder}/mysql.pid", "--innodb-buffer-pool-size=64M",
            "--innodb-flush-log-at-trx-commit=0",
        )  # fmt: skip
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={self.folder}/munge.sock\nDbdHost=localhost\nDbdPort={self._port}\n"
            f"SlurmUser=root\nLogFile={self.folder}/slurmdbd.log\nPidFile={self.folder}/slurmdbd.pid\n"
            "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\nStorageLoc=accounts\n"
            "TrackWCKey=yes\n"
        )
        conf.chmod(0o600)
        self._start("slurmdbd.pid", "slurmdbd", "-D", environment={**self.environment, "MYSQL_UNIX_PORT": str(socket)})
        wait_for(lambda: self._daemons["slurmdbd.pid"].poll() is None and self._is_up(), "slurmdbd does not answer")
        for words in (("cluster", "lab"), ("account", "physics"), ("user", "root", "account=physics")):
            self.account("add", *words)

    def stop_accounting(self) -> None:
        self._stop("slurmdbd.pid")
        self._stop("mysql.pid")

    def _is_up(self) -> bool:
        try:
            self.account("show", "cluster")
        except AssertionError:
            return False
        return True


def why_no_accounting() -> str | None:
    """Why there can be no such lab here; None where there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"no accounting: {', '.join(missing)} not on PATH" if missing else None
