"""What `meshtune run --dry-run` shows: the quote, and the first trial's files and job script, as text. Starts nothing.

The first trial is the baseline's; without one it is taken to be the plan that the physics ranks first, which another
search may not choose.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from meshtune.runners.registry import SCRIPTS
from meshtune.search_spaces.space import Space
from meshtune.tuner.campaign.home import Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import job_name
from meshtune.tuner.cli.render.quote import quote_parts
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.prediction.quote import make_quote
from meshtune.tuner.results.export import job_of, job_script

# Where a campaign has its id, whose end is drawn when it is created.
CAMPAIGN = "dry-run"


def rehearsal(spec: CampaignSpec, space: Space, home: Path) -> Iterator[str]:
    """Paragraphs, from the quote to the job script."""
    quote = make_quote(spec, space, Basis())
    yield from (part.plain for part in quote_parts(quote) if isinstance(part, Text))
    plan = spec.baseline or quote.best[0].plan
    name = job_name(CAMPAIGN, 0, 1)
    job = job_of(spec, plan, name, Home(home.absolute()).job(CAMPAIGN, name))
    chosen = "the baseline" if spec.baseline else "predicted best"
    yield f"\nfirst trial: {plan.key} ({chosen}), in {job.directory}"
    for file, text in job.files.items():
        yield f"\n--- {file}\n{text.rstrip()}"
    if spec.runner.kind in SCRIPTS:
        for file, text in job_script(spec, spec.runner.kind, job, {}).items():
            yield f"\n--- {file}\n{text.rstrip()}"
    else:
        yield f"\nthe runner {spec.runner.kind} starts {job.processes} processes: {shlex.join(job.command)}"
