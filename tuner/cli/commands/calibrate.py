"""`meshtune calibrate`: a campaign that measures the physics' constants on one node, and the calibrations it leaves."""

from __future__ import annotations

from pathlib import Path

from meshtune.runners.documents import plain
from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.cli.commands.campaign import dry_run_lines
from meshtune.tuner.cli.common import Refused, console, errors, print_found, print_json, print_page
from meshtune.tuner.cli.following import work_on
from meshtune.tuner.cli.opening import open_service
from meshtune.tuner.cli.render.predictions import calibration_parts, calibrations_table
from meshtune.tuner.cli.spec_file import read_spec_file
from meshtune.tuner.prediction.predict import Basis
from meshtune.tuner.results.calibrations import calibration_view
from meshtune.tuner.service.calibrations import known_basis
from meshtune.tuner.specs.calibrating import CalibrationSetup, calibration_setup
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.store import StoreError


def calibrate(
    spec: Path | None,
    home: Path,
    db: str,
    *,
    nodes: int | None,
    devices: int | None,
    trials: int,
    cluster: Path | None,
    dry_run: bool,
    listed: bool,
    delete: str,
    as_json: bool,
) -> None:
    if sum((spec is not None, listed, bool(delete))) != 1:
        raise Refused("calibrate: give one of SPEC, --list and --delete CAMPAIGN")
    if listed:
        with open_service(home, db) as service:
            found = [calibration_view(one) for one in service.store.calibrations.newest_first()]
        print_found({"calibrations": plain(found)}, [calibrations_table(found)], as_json)
    elif delete:
        with open_service(home, db) as service:
            service.store.calibrations.remove(delete)
        console.print(f"the calibration {delete} is deleted; its campaign stays", soft_wrap=True)
    elif spec is not None:
        # The runner need not have the whole cluster.
        _, campaign_spec, _ = read_spec_file(spec, None, cluster)
        try:
            setup = calibration_setup(campaign_spec, Home(home.absolute()), nodes=nodes, devices=devices, trials=trials)
        except InvalidSpec as error:
            raise Refused(f"{spec}: cannot be calibrated: {error}") from None
        if not as_json:
            console.print(f"calibrating {'; '.join(setup.notes)}", soft_wrap=True)
        if dry_run:
            print_page(dry_run_lines(setup.spec, setup.space, home, Basis()))
        else:
            _measure(setup, home, db, as_json=as_json)


def read_basis(spec: CampaignSpec, home: Path, db: str, *, but: str = "") -> Basis:
    """As `known_basis`, from the database that is there; a database that cannot be read is told, and predictions do
    without."""
    try:
        with open_service(home, db) as service:
            return known_basis(service.store, spec, but=but)
    except StoreError as error:
        errors.print(f"meshtune: no calibration was looked for: {error}", style="yellow", soft_wrap=True)
        return Basis()


def _measure(setup: CalibrationSetup, home: Path, db: str, *, as_json: bool) -> None:
    """Exits with 1 where it stores nothing."""
    with open_service(home, db, create=True) as service:
        ended = work_on(service, service.add(setup.spec, setup.space.totals, drives=True), quiet=as_json)
        stored = next((one for one in service.store.calibrations.newest_first() if one.campaign == ended.id), None)
        if stored is None:
            # A paused one may be resumed, one that has failed says why.
            raise Refused(f"{ended.id} is {ended.state}: {ended.reason}")
        view = calibration_view(stored)
        if as_json:
            print_json(plain(view))
        else:
            console.print(f"{ended.id} is {ended.state}: {ended.reason}", soft_wrap=True)
            print_page(calibration_parts(view))
