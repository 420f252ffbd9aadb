"""Store tests run on SQLite and on a PostgreSQL server that this file starts."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from postgres_lab import PostgresLab
from recorded_home import load

from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Measurement, Outcome, Verdict
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, DeviceSpec, LinkSpec
from meshtune.search_spaces.model import Activation, ModelSpec, Norm
from meshtune.search_spaces.plan import Plan, Recompute, Schedule
from meshtune.search_spaces.space import Bounds
from meshtune.tuner.campaign.campaign import Campaign, CampaignState, Home
from meshtune.tuner.campaign.objective import Objective
from meshtune.tuner.campaign.spec import Backend, Budget, CampaignSpec, TrialLimits
from meshtune.tuner.campaign.trial import Choice, Expectation, Origin
from meshtune.tuner.store import Store, schema


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresLab]:
    with PostgresLab() as lab:
        yield lab


_numbers = count()


@pytest.fixture
def postgres_url(server: PostgresLab) -> Iterator[str]:
    name = f"test{next(_numbers)}"
    yield server.create(name)
    server.drop(name)


# Versions that could follow the newest one: SQLite copies tables for the first, the second fills a column.
COPIES = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8998", "{newest}", None, None


def upgrade():
    with op.batch_alter_table("attempts") as attempts:
        attempts.alter_column("reason", existing_type=sa.Text(), nullable=True)
    with op.batch_alter_table("events", table_kwargs={{"sqlite_autoincrement": True}}) as events:
        events.alter_column("kind", existing_type=sa.Text(), nullable=True)
"""
FILLS = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "8999", "8998", None, None


def upgrade():
    op.add_column("trials", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
"""
# Says that it is in the middle, and stays there while it is held.
HELD = """
    from pathlib import Path
    import os, time
    with Path({folder!r}, "middle").open("a") as middle:
        middle.write(f"{{os.getpid()}}\\n")
    while Path({folder!r}, "held").exists():
        time.sleep(0.02)
"""
ON_DISK = ["file", pytest.param("postgres", marks=pytest.mark.postgres)]


def _url(kind: str, request: pytest.FixtureRequest) -> str:
    if kind == "memory":
        return "sqlite://"
    if kind == "file":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db"
    return request.getfixturevalue("postgres_url")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind; SQLite's file is the subject of `shared_url`."""
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
            network_link=LinkSpec(latency_s=5e-6, bandwidth_bytes_per_s=1.1 + 2.2),
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
        return [Choice(Plan(dp=8, micro_batch_size=size, schedule=Schedule.GPIPE)) for size in range(first, first + n)]

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
                attention_kernels=("flash", "math"),
                hardware=(
                    HardwareKind(device="H100", memory_bytes=2**36, clock_mhz=1980, driver="550.1", nodes=("n1", "n2")),
                    HardwareKind(device="A100", nodes=("n3",)),
                ),
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


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def old(shared_url: str, home: Home) -> str:
    """The URL of a database of schema 0100 with data."""
    load(shared_url, home.root)
    return shared_url


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Add two versions to those that there are; with `held` the last one can be held in the middle. Their folder."""

    def add(*, held: bool = False) -> Path:
        migrations = tmp_path / "migrations"
        shutil.copytree(schema._MIGRATIONS, migrations)
        (migrations / "versions" / "v8998_copies.py").write_text(COPIES.format(newest=schema._known()[-1]))
        more = HELD.format(folder=str(tmp_path)) if held else ""
        (migrations / "versions" / "v8999_fills.py").write_text(FILLS + more)
        monkeypatch.setattr(schema, "_MIGRATIONS", migrations)
        return migrations

    return add
