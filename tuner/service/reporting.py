"""The report of campaigns as a file, each with the text of its spec."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from meshtune.tuner.campaign.campaign import Campaign
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.results.report.campaigns import Told, report
from meshtune.tuner.service.views.campaigns import spec_document


def render_report(entries: Sequence[tuple[Campaign, Sequence[Trial]]]) -> bytes:
    """The HTML file of at least one campaign with its trials."""
    told = [Told(campaign=campaign, trials=trials, spec=_spec_text(campaign)) for campaign, trials in entries]
    return report(told).encode()


def report_of(campaign: Campaign, trials: Sequence[Trial]) -> bytes:
    """The same of one campaign, for another process."""
    return render_report([(campaign, trials)])


def _spec_text(campaign: Campaign) -> str:
    """Complete: presets written out, defaults filled in."""
    return yaml.safe_dump(spec_document(campaign.spec), sort_keys=False, width=100)
