"""The program that measured a plan, and what becomes of the plan in another one; and an exported
plan as one archive: a folder with all files of its format and a README of how it is started and what to beware of.

Speeds are those of the program that measured them. A plan that is handed to another program carries a warning and
the command that confirms it there: a campaign of two plans, the plan and the one that it is compared with.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from textwrap import wrap

from meshtune.runners.outcome import Measurement
from meshtune.runners.programs.dialects.base import Files
from meshtune.runners.registry import EXTERNAL, SIMULATED, WORKLOADS
from meshtune.runners.untrusted_text import visible
from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import Estimate, number, times_text
from meshtune.tuner.results.ranking import NOT_CONFIRMED, Ranked, rank
from meshtune.tuner.search.warm_start import IDLE_SOFTWARE

README = "README.txt"
WIDTH = 110
# Files in which `#` begins a comment.
COMMENTED = (".sh", ".toml", ".yaml")
_PLAIN, _PROGRAM = 0o644, 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWith:
    """The program behind a measurement. workload: its kind. program: its name for people. dtype: the number format that
    it computes in; null where the spec does not say. software: versions by name, empty where unknown. device: the kind
    of device. words: all of it but the format, such as "the built-in trainer (torch 2.13.0, cpu)"."""

    workload: str
    program: str
    dtype: str | None
    software: Mapping[str, str]
    device: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A plan that goes to a program that did not measure it. differs: known differences. untold: the knobs with
    their values that are not in its files, for the user to add. warning, offer: sentences for people. confirm: the
    command that measures it there; SPEC.yaml is the user's, with the program as its workload."""

    program: str
    differs: tuple[str, ...]
    untold: tuple[str, ...]
    warning: str
    offer: str
    confirm: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverCheck:
    """What a campaign of two plans with another program says of a setting. by: that campaign. against: what the plan
    is compared with, the baseline or the runner-up. before, there: the ratio of the two speeds, measured with the first
    program and with the other one; null where not both plans were measured. confirmed: the plan is worth it there
    too, by second runs in turns, and trains the same."""

    campaign: str
    trial: int
    plan_key: str
    against: str
    against_key: str
    measured_with: MeasuredWith
    by: str
    program: str
    confirmed: bool
    words: str
    before: Estimate
    there: Estimate | None


def measured_with(spec: CampaignSpec, measurement: Measurement) -> MeasuredWith:
    kind, device = spec.workload.kind, str(spec.cluster.device.kind)
    versions = [f"{name} {version}" for name, version in measurement.software.items() if name not in IDLE_SOFTWARE]
    program = program_of(spec)
    return MeasuredWith(
        workload=kind,
        program=program,
        dtype=dtype_of(spec),
        software=measurement.software,
        device=device,
        words=f"{program} ({', '.join([*versions, device])})",
    )


def dtype_of(spec: CampaignSpec) -> str | None:
    """The number format of what the spec measures; None where nobody said it."""
    workload = workload_of(spec)
    return workload.dtype if workload.knows_dtype else None


def program_of(spec: CampaignSpec) -> str:
    """The name of what runs the spec's jobs, for people."""
    kind = spec.workload.kind
    if spec.runner.kind == EXTERNAL:
        return "a program outside meshtune"
    return WORKLOADS[kind].words if kind in WORKLOADS else kind


def origin_verb(measured: MeasuredWith) -> str:
    """What stands before the program: numbers of a simulation are not measured."""
    return "simulated by" if measured.workload == SIMULATED else "measured with"


def rival_of(campaign: Campaign, trials: Sequence[Trial], winner: Ranked) -> Ranked | None:
    """The plan that a winner is compared with in another program, which is told the layout alone: the baseline, else
    the best other plan that may be used. None where nothing was measured of the winner's size and another layout."""
    own = winner.trial.plan
    plans = ((entry, entry.trial.plan) for entry in rank(campaign, trials))
    others = [one for one, plan in plans if plan.layout != own.layout and plan.world_size == own.world_size]
    baseline = [entry for entry in others if entry.trial.origin is Origin.BASELINE]
    return next(iter([*baseline, *(entry for entry in others if entry.usable)]), None)


def check_handover(
    campaign: Campaign, winner: Ranked, rival: Ranked, there: Campaign, runs: Sequence[Trial]
) -> HandoverCheck:
    """there: the campaign that measured the two plans with the other program; its baseline is the rival."""
    against = "the baseline" if rival.trial.origin is Origin.BASELINE else "the runner-up"
    before = winner.over(rival).as_ratio()
    program = program_of(there.spec)
    # What another program is told of is the layout.
    layout = winner.trial.plan.layout
    entry = next((entry for entry in rank(there, runs) if entry.trial.plan.layout == layout), None)
    gain = None if entry is None else entry.gain
    after = None if gain is None else gain.as_ratio()
    confirmed = entry is not None and entry.usable and entry.worth_it
    measured = measured_with(campaign.spec, winner.measurement)
    if entry is None:
        text = f"with {program} the plan was not measured: {_end(there, runs, winner)}"
    elif after is None:
        speed = f"{number(entry.tokens_per_s.value)} {there.spec.model.worded('tokens/s')}"
        text = f"with {program} the plan runs at {speed}, but {against} was not measured: {_end(there, runs, rival)}"
    else:
        text = f"{times_text(after)} {against} with {program}"
        if entry.trains_otherwise:
            text += f", where it {entry.training}"
        elif not confirmed:
            text += f": {'slower' if after.high < 1 else 'not beyond the noise'}"
    return HandoverCheck(
        campaign=campaign.id,
        trial=winner.measured_by.number,
        plan_key=winner.trial.plan.key,
        against=against,
        against_key=rival.trial.plan.key,
        measured_with=measured,
        by=there.id,
        program=program,
        confirmed=confirmed,
        words=f"{'confirmed' if confirmed else 'not confirmed'}: {text}; {origin_verb(measured)} {measured.program}: "
        f"{times_text(before)}{'' if winner.pairs(rival) else f', {NOT_CONFIRMED}'}",
        before=before,
        there=after,
    )


def _end(there: Campaign, runs: Sequence[Trial], entry: Ranked) -> str:
    """Why a plan has no measurement."""
    run = next((run for run in runs if run.plan.layout == entry.trial.plan.layout), None)
    if run is None or run.outcome is None:
        return there.reason.partition("\n")[0] or str(there.state)
    return f"{run.outcome.verdict}: {run.outcome.reason}".strip(": ")


def warned(file: str, text: str, handover: Handover) -> str:
    """The text of a file with the warning as a comment where it may have one, after the line that names a shell."""
    if PurePosixPath(file).suffix not in COMMENTED:
        return text
    told = wrap(f"Warning: {handover.warning}. {handover.offer}:", WIDTH)
    comment = "".join(f"# {line}\n" for line in [*told, f"    {handover.confirm}"])
    first, rest = text.split("\n", 1) if text.startswith("#!") else ("", text)
    return f"{first}\n{comment}{rest}" if first else comment + rest


def pack(folder: str, files: Files) -> bytes:
    """A .tar.gz of the files in this folder; equal files give equal bytes. A file that begins with a line for a shell
    can be executed. Raises ValueError for a name that would leave the folder."""
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, text in sorted(files.items()):
            content, path = text.encode("utf-8"), PurePosixPath(name)
            if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
                raise ValueError(f"{name!r} is no name of a file in a folder")
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mode = len(content), _PROGRAM if text.startswith("#!") else _PLAIN
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def readme(title: str, command: str | None, note: str, handover: Handover | None, directory: str) -> str:
    """title: of the plan and where it is from. command: that starts it; None: nothing does. note: what it is not.
    directory: where the files expect to lie; empty: anywhere."""
    parts = [title]
    if note:
        parts.append(note)
    if command is not None:
        parts.append(f"Start it in {directory or 'this folder'}:\n\n    {command}")
    if handover is not None:
        parts += [f"Warning: {handover.warning}.", f"{handover.offer}:\n\n    {handover.confirm}"]
    lines = "\n\n".join(parts).split("\n")
    return visible("\n".join(line if line.startswith(" ") else "\n".join(wrap(line, WIDTH)) for line in lines) + "\n")
