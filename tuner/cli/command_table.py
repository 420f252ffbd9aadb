"""Every command by its name, with its line of `meshtune --help` and the module that declares it, which is imported when
the command is called: the page of `meshtune --help` is made of the table alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

USAGE = "meshtune.tuner.cli.usage"


@dataclass(frozen=True, slots=True)
class Entry:
    # Has an `app` with the command.
    module: str
    # For the page of all commands.
    line: str


# By panels of the page.
PANELS: Mapping[str, Mapping[str, Entry]] = {
    "Before a campaign": {
        "doctor": Entry(f"{USAGE}.machine", "Look at this machine or allocation, and test the tuner on it."),
        "examples": Entry(f"{USAGE}.catalogs", "List specs to begin with, or write one here."),
        "sites": Entry(f"{USAGE}.catalogs", "List the machines whose runner section is known, or show one."),
        "import": Entry("meshtune.tuner.cli.commands.spec", "Make a spec of a launch script or configuration."),
        "cluster": Entry(f"{USAGE}.machine", "Measure a machine as a spec's `cluster` section."),
        "spaces": Entry(f"{USAGE}.predictions", "Count the legal plans of a spec; say why one is not legal."),
        "knobs": Entry(f"{USAGE}.catalogs", "List the catalogs of knobs that a spec may name, or show one."),
        "calibrate": Entry(f"{USAGE}.predictions", "Measure the physics' constants on one node, for all sizes."),
        "estimate": Entry(f"{USAGE}.predictions", "Predict what a campaign will find and cost; exact memory."),
        "project": Entry(f"{USAGE}.predictions", "Predict speed and efficiency at other node counts."),
    },
    "Campaigns": {
        "run": Entry(f"{USAGE}.campaign", "Create a campaign from a spec, and work on it until it is done."),
        "resume": Entry(f"{USAGE}.campaign", "Go on with a campaign that was interrupted or paused."),
        "pause": Entry(f"{USAGE}.campaign", "Start no more trials; running ones are measured to their end."),
        "cancel": Entry(f"{USAGE}.campaign", "End a campaign and its jobs; what was measured stays."),
        "edit": Entry(f"{USAGE}.campaign", "Change its name, tags, notes or budget; extend one that ended."),
        "enqueue": Entry(f"{USAGE}.campaign", "Put a plan in by hand, before the search's next choice."),
        "show": Entry(f"{USAGE}.campaign", "Show all campaigns, one with its trials, or one trial."),
    },
    "Results": {
        "best": Entry(f"{USAGE}.campaign", "Print the best settings and the gain over the baseline."),
        "export": Entry(f"{USAGE}.results", "Write a setting in the words of a program or scheduler."),
        "analyze": Entry(f"{USAGE}.results", "Say what the trials teach: knobs, failures, why the best win."),
        "confirm": Entry(f"{USAGE}.results", "Measure the winner and the baseline with another program."),
        "report": Entry(f"{USAGE}.results", "Write campaigns as one HTML file with figures, for print."),
        "export-data": Entry(f"{USAGE}.results", "Write every trial as CSV, Parquet or JSON."),
        "rerun": Entry(f"{USAGE}.results", "Measure settings again: does their order hold?"),
        "revalidate": Entry(f"{USAGE}.results", "Measure the optimum again: does it still stand?"),
        "recommend": Entry(f"{USAGE}.results", "Print the best known plan for a model on some nodes."),
        "sbatch": Entry(f"{USAGE}.sbatch", "Submit a Slurm script with the best known plan."),
    },
    "Studies": {
        "study": Entry(f"{USAGE}.catalogs", "Repeat published work, and print its figures beside ours."),
    },
    "Service": {
        "serve": Entry(f"{USAGE}.service", "Serve the REST API and the dashboard, and drive campaigns."),
        "open": Entry(f"{USAGE}.service", "Open the dashboard in a browser, signed in."),
        "token": Entry(f"{USAGE}.service", "Make, list and revoke tokens for the service."),
        "db": Entry(f"{USAGE}.service", "Upgrade, copy and check the database."),
    },
}
TABLE = {name: entry for panel in PANELS.values() for name, entry in panel.items()}


class _Commands(Mapping[str, Any]):
    """The commands by name, each loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return get_group(import_module(TABLE[name].module).app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(TABLE)

    def __len__(self) -> int:
        return len(TABLE)


class CommandTable(TyperGroup):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _Commands()  # type: ignore[assignment]  # Typer only reads it

    def list_commands(self, ctx: Any) -> list[str]:
        return list(TABLE)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        listed: dict[str, Any] = {
            name: TyperCommand(name, help=entry.line, rich_help_panel=panel)
            for panel, entries in PANELS.items()
            for name, entry in entries.items()
        }
        TyperGroup(name=self.name, commands=listed, params=self.params, help=self.help).format_help(ctx, formatter)
