"""Deletes what is over: a campaign's rows in one transaction, then its jobs' folders.

The folder goes by a rename first: a process that dies while it deletes leaves a part of a folder in the bin, which the
next deletion empties, and never one in its old place that looks whole.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress

from meshtune.tuner.campaign.home import Home
from meshtune.tuner.store import Store


def delete_campaign(store: Store, home: Home, campaign_id: str) -> None:
    """Raises NotFound, and IllegalMove for a campaign that is not over: then nothing was deleted. Raises OSError where
    the rows are gone and the folder stays."""
    store.remove_campaign(campaign_id)
    home.bin.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # it never had a job, or somebody pruned it
        home.campaign(campaign_id).rename(home.bin / f"{campaign_id}-{uuid.uuid4().hex}")
    for thrown in home.bin.iterdir():
        # Another deletion may be at it.
        shutil.rmtree(thrown, ignore_errors=True)
