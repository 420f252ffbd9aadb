"""Arguments and options that several commands share."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from meshtune.tuner.access.tokens import database_url

SpecFile = Annotated[Path, typer.Argument(help="Campaign spec, YAML.", show_default=False)]
ClusterFileOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="The cluster in this file, as `cluster probe -o` writes it."),
]
CampaignId = Annotated[str, typer.Argument(help="Campaign id, or `last` for the newest.", show_default=False)]
HomeOption = Annotated[
    Path, typer.Option("--home", envvar="MESHTUNE_HOME", help="Folder with the database and the jobs' files.")
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="MESHTUNE_DB",
        callback=database_url,
        help="Database URL, or in a file that MESHTUNE_DB_FILE names; default: SQLite in the home folder.",
    ),
]
ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="MESHTUNE_SERVER",
        help="The campaigns of this service, in place of a home's; its token: MESHTUNE_TOKEN.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
TrialsOption = Annotated[int | None, typer.Option("--trials", min=1, help="The budget of trials, all together.")]
WallTimeOption = Annotated[
    float | None, typer.Option("--wall-time-s", min=0, help="The budget of seconds of work, all together.")
]
DeviceHoursOption = Annotated[
    float | None, typer.Option("--device-hours", min=0, help="The budget of device-hours, all together.")
]
DEFAULT_HOME = Path(".meshtune")
# Below which `project` says that scaling does not pay, where nothing else is said.
LEAST_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a budget; None: as it is."""

    trials: int | None = None
    wall_time_s: float | None = None
    device_hours: float | None = None

    @property
    def given(self) -> dict[str, float]:
        """Those that are changed, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command's campaigns are: in a home folder and its database, or at the service `server`."""

    home: Path
    db: str
    server: str = ""

    @property
    def option(self) -> str:
        """What a command that a message names needs to find this place, with a space before it."""
        return f" --server {shlex.quote(self.server)}" if self.server else home_option(self.home)


def home_option(home: Path) -> str:
    """What a command that a message names needs to find this home, with a space before it."""
    return "" if home.absolute() == DEFAULT_HOME.absolute() else f" --home {shlex.quote(str(home))}"
