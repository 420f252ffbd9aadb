"""Arguments and options that several commands share, and the place that three of them name together."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import wraps
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from meshtune.tuner.access.tokens import database_url

if TYPE_CHECKING:
    from meshtune.tuner.cli.at_home import AtHome
    from meshtune.tuner.cli.at_service import AtService
    from meshtune.tuner.results.record import Record

Result = TypeVar("Result")
SpecFile = Annotated[Path, typer.Argument(help="Campaign spec, YAML.", show_default=False)]
ClusterFileOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="The cluster in this file, as `cluster probe -o` writes it."),
]
CampaignId = Annotated[str, typer.Argument(help="Campaign id, its beginning, or `last` for the newest.")]
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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
DEFAULT_HOME = Path(".meshtune")
# Below which `project` says that scaling does not pay, where nothing else is said.
LEAST_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True)
class HomePlace:
    home: HomeOption = DEFAULT_HOME
    db: DatabaseOption = ""


@dataclass(frozen=True, slots=True)
class Place(HomePlace):
    """Where a command's campaigns are: in a home folder and its database, or at the service `server`."""

    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="MESHTUNE_SERVER",
            help="The campaigns of this service, in place of a home's; its token: MESHTUNE_TOKEN.",
            show_default=False,
        ),
    ] = ""

    @property
    def option(self) -> str:
        """What a command that a message names needs to find this place, with a space before it."""
        return f" --server {shlex.quote(self.server)}" if self.server else home_option(self.home)

    @property
    def there(self) -> AtHome | AtService:
        """What can be done with the campaigns of this place; loaded when it is asked for."""
        if self.server:
            from meshtune.tuner.cli.at_service import AtService

            return AtService(self)
        from meshtune.tuner.cli.at_home import AtHome

        return AtHome(self)

    def record(self, campaign: str) -> Record:
        """The campaign whose id is or begins so, with `last` the newest, with its trials."""
        with self.there.opened(campaign) as chosen:
            return chosen.record()


@dataclass(frozen=True, slots=True)
class GivenLimits:
    """Limits of a budget and of a trial; None: not given."""

    trials: Annotated[int | None, typer.Option("--trials", min=1, help="The budget of trials, all together.")] = None
    wall_time_s: Annotated[
        float | None,
        typer.Option("--wall-time-s", min=0, help="The budget of seconds of work, all together; inf: no limit."),
    ] = None
    device_hours: Annotated[
        float | None,
        typer.Option("--device-hours", min=0, help="The budget of device-hours, all together; inf: no limit."),
    ] = None
    time_limit_s: Annotated[float | None, typer.Option("--time-limit-s", min=0, help="The seconds of one trial.")] = (
        None
    )

    @property
    def changes(self) -> dict[str, Any]:
        """Those that are given, by section of a spec and name."""
        given = {name: None if one == inf else one for name, one in asdict(self).items() if one is not None}
        trial = {name: given.pop(name) for name in ("time_limit_s",) if name in given}
        return {section: own for section, own in (("budget", given), ("trial", trial)) if own}


def placed(work: Callable[..., Result]) -> Callable[..., Result]:
    """The command with options in place of each parameter that is a group of them; they stand last in its help, those
    of the first group at its end."""
    signature = inspect.signature(work, eval_str=True)
    kinds = {name: one.annotation for name, one in signature.parameters.items()}
    groups = {name: kind for name, kind in kinds.items() if kind in (HomePlace, Place, GivenLimits)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one.replace(kind=keyword) for name, one in signature.parameters.items() if name not in groups]
    options = [
        inspect.Parameter(each.name, keyword, default=each.default, annotation=hints[each.name])
        for kind in reversed(groups.values())
        for hints in [get_type_hints(kind, include_extras=True)]
        for each in fields(kind)
    ]

    @wraps(work)
    def called(**given: Any) -> Result:
        made = {
            name: kind(**{each.name: given.pop(each.name) for each in fields(kind)}) for name, kind in groups.items()
        }
        return work(**made, **given)

    del called.__wrapped__  # Typer would look for the types of `work`
    called.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in (*own, *options)}
    return called


def home_option(home: Path) -> str:
    """What a command that a message names needs to find this home, with a space before it."""
    return "" if home.absolute() == DEFAULT_HOME.absolute() else f" --home {shlex.quote(str(home))}"
