"""Every store test runs on SQLite in memory, on a SQLite file and on a PostgreSQL server that this file starts."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import psycopg
import pytest

from runners.outcome import Measurement, Outcome, Verdict
from search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from search_spaces.model import Activation, ModelSpec, Norm
from search_spaces.plan import Plan, Recompute, Schedule
from search_spaces.space import Bounds
from tuner.campaign import Campaign, CampaignState
from tuner.expectation import Expectation
from tuner.search.base import Choice
from tuner.spec import Backend, Budget, CampaignSpec, Objective, TrialLimits
from tuner.store import Store
from tuner.trial import Origin

START_LIMIT_S = 30
INITDB_OPTIONS = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")


@dataclass
class Server:
    """A PostgreSQL server on a Unix socket in `folder`."""

    folder: Path

    def url(self, database: str) -> str:
        return f"postgresql://meshtune@/{database}?host={self.folder}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        return psycopg.connect(host=str(self.folder), user="meshtune", dbname=database, autocommit=True)


def _server_programs() -> Path | None:
    """The folder with initdb and postgres."""
    found = [Path(path).resolve().parent for name in ("postgres", "initdb") if (path := shutil.which(name))]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if config := shutil.which("pg_config"):
        found.append(Path(subprocess.run([config, "--bindir"], capture_output=True, text=True).stdout.strip()))
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def _unprivileged() -> dict[str, object]:
    """What Popen needs to leave root, which PostgreSQL refuses to run as."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise AssertionError("root, but there is neither a user postgres nor nobody")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    programs = _server_programs()
    if programs is None:
        reason = "no PostgreSQL server programs: initdb and postgres are neither on PATH nor in /usr/lib/postgresql"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    # A socket's path has at most 107 bytes; pytest's own temporary folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="mt-pg-", dir="/tmp"))
    user = _unprivileged()
    if user:
        os.chown(folder, user["user"], user["group"])
    common = {"cwd": folder, "stdin": subprocess.DEVNULL, **user}
    try:
        made = subprocess.run(
            [programs / "initdb", "-D", folder / "data", "-U", "meshtune", *INITDB_OPTIONS],
            capture_output=True,
            text=True,
            timeout=120,
            **common,
        )
        assert made.returncode == 0, made.stderr
        settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
        arguments = [f"--{name}={value}" for name, value in settings.items()]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", folder / "data", *arguments],
                stdout=log,
                stderr=log,
                **common,
            )
        try:
            _await(Server(folder), process, folder / "log")
            yield Server(folder)
        finally:
            process.send_signal(signal.SIGINT)  # "fast shutdown": ends sessions, then itself
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _await(server: Server, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PostgreSQL did not start:\n{log.read_text()}") from None
            time.sleep(0.05)


_numbers = count()


@pytest.fixture
def postgres_url(server: Server) -> Iterator[str]:
    name = f"test{next(_numbers)}"
    with server.connect() as admin:
        admin.execute(f"CREATE DATABASE {name}")
    yield server.url(name)
    with server.connect() as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


ON_DISK = ["file", pytest.param("postgres", marks=pytest.mark.postgres)]


def _url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "memory":
        return "sqlite://"
    if kind == "file":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=["memory", *ON_DISK])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    return _url(request.param, request)


@pytest.fixture(params=ON_DISK)
def shared_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind that several processes can open."""
    return _url(request.param, request)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as store:
        yield store


class Make:
    """Values for tests."""

    spec = CampaignSpec(
        name="Llama auf 8 Ger\u00e4ten",
        model=ModelSpec(
            name="tiny",
            layers=4,
            hidden=64,
            heads=4,
            kv_heads=2,
            ffn=256,
            vocab=1000,
            seq_len=128,
            norm=Norm.LAYERNORM,
            activation=Activation.GELU,
        ),
        cluster=ClusterSpec(
            name="lab",
            nodes=2,
            devices_per_node=4,
            device=DeviceSpec(
                name="H200", kind=DeviceKind.CUDA, memory_bytes=141 * 10**9, peak_flops={"bfloat16": 989e12}
            ),
            network_link=LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=0.1 + 0.2),
        ),
        workload=Backend(
            kind="command",
            options={
                "argv": ["python", "train.py"],
                "env": {"A": "1", "b": None},
                "nested": [{"x": 1.0, "y": 1}],
                "z": True,
            },
        ),
        global_batch_size=512,
        space=Bounds(tp=(1, 2, 4), recompute=(Recompute.FULL, Recompute.NONE), schedule=(Schedule.GPIPE,)),
        baseline=Plan(tp=2, dp=4, recompute=Recompute.SELECTIVE, schedule=Schedule.ZERO_BUBBLE, vpp=2),
        objective=Objective.MFU,
        search=Backend(kind="physics", options={"kappa": 1e-300, "big": 2**60}),
        runner=Backend(kind="slurm"),
        budget=Budget(trials=20, device_hours=1.5),
        trial=TrialLimits(attempts=2),
        parallel=2,
        seed=7,
    )

    def campaign(self, id: str = "c1", *, created_at: float = 100.0, name: str | None = None) -> Campaign:
        return Campaign(
            id=id,
            spec=self.spec if name is None else replace(self.spec, name=name),
            state=CampaignState.RUNNING,
            created_at=created_at,
            updated_at=created_at,
            running_since=created_at,
            combinations=10**7,
            legal=123,
        )

    origin = Origin.SEARCH
    expectation = Expectation(
        step_time_s=0.1 + 0.2,
        step_time_low_s=1 / 7,
        step_time_high_s=1 / 3,
        p_fits=0.9,
        gain=1e-300,
        peak_bytes=2.0**40 / 3,
    )

    def choices(self, n: int, *, first: int = 1) -> list[Choice]:
        """n plans, all different, of which nobody expects anything."""
        return [Choice(Plan(tp=tp, schedule=Schedule.GPIPE)) for tp in range(first, first + n)]

    def ok(self, *, steps: int = 6, first_s: float = 0.1) -> Outcome:
        return Outcome(
            verdict=Verdict.OK,
            measurement=Measurement(
                step_times_s=tuple(first_s + number / 3 for number in range(steps)),
                tokens_per_step=2**33,
                devices=8,
                model_flops_per_token=1e9 / 3,
                warmup_times_s=(9.87654321, 0.5),
                first_losses=(10.5, 1 / 3),
                peak_memory_bytes=(10**11, 10**11 + 1),
            ),
        )

    def failed(self, verdict: Verdict) -> Outcome:
        return Outcome(verdict=verdict, reason=f"it ended {verdict}", failed_rank=3, phase="backward", log_tail="a\nb")

    def outcome(self, verdict: Verdict) -> Outcome:
        return self.ok() if verdict is Verdict.OK else self.failed(verdict)

    def running(self, store: Store, id: str = "c1", *, trials: int = 1) -> None:
        """A campaign with so many trials, all planned."""
        store.create_campaign(self.campaign(id))
        store.plan_trials(id, self.choices(trials), Origin.SEARCH, now=101.0)


@pytest.fixture
def make() -> Make:
    return Make()
