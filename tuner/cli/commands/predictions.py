"""The commands that judge a spec before anything runs: `spaces`, `estimate` and `project`. They start nothing and store
nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn

from meshtune.runners.documents import plain
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.spec import CampaignSpec
from meshtune.tuner.campaign.trial import Trial
from meshtune.tuner.campaign.units import seconds
from meshtune.tuner.cli import commands
from meshtune.tuner.cli.common import Refused, console, errors, print_found, require_home
from meshtune.tuner.cli.render import display
from meshtune.tuner.cli.render.knobs import knobs_table
from meshtune.tuner.cli.render.predictions import exact_memory_parts, explanation_parts, projection_parts, quote_parts
from meshtune.tuner.cli.spec_file import plan_fields, read_spec_file, stored_basis
from meshtune.tuner.cli.usage.options import Place
from meshtune.tuner.prediction.knob_counts import count_with_knobs
from meshtune.tuner.prediction.predict import ExactMemory, check_same, estimate_exactly, learn
from meshtune.tuner.prediction.projection import layout_of, node_counts
from meshtune.tuner.prediction.quote import Explanation, explain, make_quote
from meshtune.tuner.prediction.scaling import make_projection

# What names a spec, where a campaign may stand as well.
SPEC_SUFFIXES = (".yaml", ".yml", ".json")
# Plans that are listed at the most: a second's work.
MAX_LISTED = 100_000
# In a log, on a pipe.
TELL_EVERY_S = 10.0


def spaces(spec: Path, *, cluster: Path | None, why: str, plans: bool, knobs: bool) -> None:
    _, _, space = read_spec_file(spec, None, cluster)
    if why:
        plan = space.complete(**plan_fields("--why", why, space.knobs))
        broken = space.explain(plan)
        console.print(f"{plan.key}: {'illegal' if broken else 'legal'}", soft_wrap=True)
        for violation in broken:
            console.print(f"  {violation.constraint}: {violation.message}; {violation.reason}", soft_wrap=True)
        return
    console.print(display.space_text(space), soft_wrap=True)
    console.print(display.space_table(space))
    if knobs:
        if not space.knobs:
            raise Refused("--knobs: the spec has no knobs; `meshtune knobs` lists catalogs of them")
        console.print(knobs_table(space, count_with_knobs(space)))
    if plans:
        listed = space.listing(MAX_LISTED)
        if listed is None:
            raise Refused(f"--list: {space.plans} plans are more than {MAX_LISTED}")
        for index, codes in zip(*listed, strict=True):
            console.print(space.plan(int(index), codes.tolist()).key, soft_wrap=True)


def estimate(
    spec: Path,
    place: Place,
    *,
    cluster: Path | None,
    model: str = "",
    exact: bool,
    plan: str,
    ranks: Sequence[int],
    calibrate: str,
    as_json: bool,
) -> None:
    if place.server and not (exact or plan or ranks or calibrate):
        quote = commands.remote.estimate(spec, place, cluster=cluster, model=model)
        print_found(plain(quote), quote_parts(quote), as_json)
        return
    if calibrate:
        require_home(place, "estimate --calibrate")
    home, db = place.home, place.db
    document, campaign_spec, space = read_spec_file(spec, None, cluster, model)
    fields = plan_fields("--plan", plan, space.knobs) if plan else {}
    chosen = space.complete(**fields) if plan else None
    if exact and calibrate:
        raise Refused("--calibrate goes with predictions, and --exact predicts nothing")
    if ranks and not exact:
        raise Refused("--rank goes with --exact")
    if exact:
        found = _estimated_exactly(campaign_spec, chosen, ranks)
        print_found(plain(found), exact_memory_parts(found), as_json)
        return
    if place.server:
        _print_explanation(commands.remote.why(document, fields, place), as_json)
        return
    basis = stored_basis(campaign_spec, home, db)
    if calibrate:
        record = commands.results.recorded(place, calibrate)
        check_same(record.campaign.spec, campaign_spec)
        start = stored_basis(campaign_spec, home, db, but=record.campaign.id)
        basis = learn(record.campaign.label, record.campaign.spec, record.trials, start)
    if chosen is not None:
        _print_explanation(explain(campaign_spec, space, chosen, basis), as_json)
    else:
        quote = make_quote(campaign_spec, space, basis)
        print_found(plain(quote), quote_parts(quote), as_json)


def _print_explanation(found: Explanation, as_json: bool) -> None:
    document = plain(found)
    # No campaign is asked, and the violations have another name than over REST.
    del document["trial"]
    print_found({"broken": document.pop("violations"), **document}, explanation_parts(found), as_json)


def _estimated_exactly(spec: CampaignSpec, plan: Plan | None, ranks: Sequence[int]) -> ExactMemory:
    """With its duration told before it starts; then a bar on a terminal, and a line now and then elsewhere."""
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    clock = _Clock()
    with (
        Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar,
        _told_now_and_then(clock, wanted=not errors.is_terminal),
    ):
        task = bar.add_task("")

        def show(done: float, total: float) -> None:
            if not done:
                errors.print(f"this takes about {seconds(total)}, judged by one layer; Ctrl-C ends it", soft_wrap=True)
            clock.done(done, total)
            bar.update(task, completed=done, total=total)

        return estimate_exactly(spec, plan, ranks, show)


class _Clock:
    """How long it takes in all, first as it was judged, then at the pace that is seen."""

    def __init__(self) -> None:
        self.begun, self.expected_s = time.monotonic(), 0.0

    def done(self, done: float, total: float) -> None:
        if not done:
            self.begun, self.expected_s = time.monotonic(), total
        else:
            self.expected_s = (time.monotonic() - self.begun) * total / done

    def line(self) -> str:
        passed_s = time.monotonic() - self.begun
        if not self.expected_s:
            return f"{seconds(passed_s)}: PyTorch is loaded, and one layer timed"
        return f"{seconds(passed_s)} of about {seconds(max(passed_s, self.expected_s))}"


@contextmanager
def _told_now_and_then(clock: _Clock, *, wanted: bool) -> Iterator[None]:
    """By a thread: one part of the work may take minutes."""
    ended = Event()

    def tell() -> None:
        while not ended.wait(TELL_EVERY_S):
            errors.print(clock.line(), soft_wrap=True)

    thread = Thread(target=tell, daemon=True)
    if wanted:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if wanted:
            thread.join()


def project(
    source: str, place: Place, *, nodes: str, plan: str, wall: float, tokens: float | None, as_json: bool
) -> None:
    if tokens is not None and not 0 < tokens < float("inf"):
        raise Refused(f"--tokens: must be positive, not {tokens:g}")
    if place.server:
        found = commands.remote.project(source, place, nodes=nodes, plan=plan, wall=wall, tokens=tokens)
        print_found(plain(found), projection_parts(found), as_json)
        return
    home, db = place.home, place.db
    trials: Sequence[Trial] = ()
    if source.endswith(SPEC_SUFFIXES):
        _, spec, _ = read_spec_file(Path(source), None)
        basis = stored_basis(spec, home, db)
    else:
        record = commands.results.recorded(place, source)
        campaign, trials, spec = record.campaign, record.trials, record.campaign.spec
        basis = learn(campaign.label, spec, trials, stored_basis(spec, home, db, but=campaign.id))
    counts = node_counts(nodes, spec.cluster.nodes)
    found = make_projection(
        spec, basis, counts, least_efficiency=wall, tokens=tokens, trials=trials, plan=layout_of(plan)
    )
    print_found(plain(found), projection_parts(found), as_json)
