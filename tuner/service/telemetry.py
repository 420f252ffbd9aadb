"""The log of a process (lines of text or JSON; events and troubles of campaigns as lines) and its Prometheus metrics.

Masked wherever they stand, in messages, fields and tracebacks: tokens of ours, Authorization headers, and passwords
in database URLs and settings. The metrics belong to no registry; `api.routes.metrics` adds them to its own, with those
of the store.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from pythonjsonlogger.json import JsonFormatter

from meshtune.runners.base import RunnerError
from meshtune.tuner.campaign.campaign import Event
from meshtune.tuner.service.clocks import Skews
from meshtune.tuner.service.trouble import Trouble

# Ours speak at the level that was asked for; libraries only when something is wrong.
OURS = ("meshtune", "uvicorn")
# Of the request that is being answered, empty elsewhere.
request_id: ContextVar[str] = ContextVar("request_id", default="")
MASK = "***"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bmt_[A-Za-z0-9_-]{8,}"), f"mt_{MASK}"),
    (
        re.compile(
            r"(?i)\b(authorization['\"]?\s*[:,=]\s*(?:b?['\"])?(?:(?:bearer|basic|digest|token)\s+)?)[^\s'\",;)\]}]+"
        ),
        rf"\g<1>{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)(?!mt_\*)[A-Za-z0-9._~+/=-]{8,}"), rf"\g<1>{MASK}"),
    # Up to the last @ of the word: a password may hold any character, also those that it should not.
    (re.compile(r"(\w://[^\s:/@]*:)\S*@"), rf"\g<1>{MASK}@"),
    (re.compile(r"(?i)\b((?:pg)?password['\"]?\s*[=:]\s*)('[^']*'|\"[^\"]*\"|[^\s,;&)\]}]+)"), rf"\g<1>{MASK}"),
)
_NUMBERS = re.compile(r"\d+")
_log = logging.getLogger(__name__)
_SECRET_FIELDS = ("authorization", "password")
# Bounds of the histograms: from a tick that finds nothing to do to a search that takes a minute.
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0)
# Else each counter has one more series, the time of its start; the process's start time is a metric of its own.
disable_created_metrics()  # type: ignore[no-untyped-call]


def mask(text: str) -> str:
    """The text without its secrets."""
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text


def set_up_logging(*, as_json: bool, level: str, stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (by default stderr), and nowhere else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logging.root.handlers = [handler]
    logging.root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())


def log_events(events: Sequence[Event]) -> None:
    """A line for each event; those of single trials at the level DEBUG."""
    for event in events:
        level = logging.DEBUG if event.kind.startswith("trial.") else logging.INFO
        fields = {"campaign": event.campaign_id, "event": event.kind, "event_id": event.id, "data": event.data}
        reason = f": {event.data['reason']}" if event.data.get("reason") else ""
        _log.log(level, "%s %s%s", event.campaign_id, event.kind, reason, extra=fields)


class TroubleLog:
    """Logs the troubles of campaigns when they begin, change and end. A changed number alone, such as of seconds
    waited, is no change."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}

    def update(self, troubles: Mapping[str, Trouble]) -> None:
        now = {campaign: str(trouble) for campaign, trouble in dict(troubles).items()}
        for campaign, trouble in now.items():
            if _NUMBERS.sub("#", trouble) != _NUMBERS.sub("#", self._logged.get(campaign, "")):
                _log.warning("%s: %s", campaign, trouble, extra={"campaign": campaign, "trouble": trouble})
        for campaign in self._logged.keys() - now.keys():
            _log.info("%s: the trouble is over", campaign, extra={"campaign": campaign})
        self._logged = now


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return mask(super().format(record))


class _Json(JsonFormatter):
    """time (RFC 3339, UTC), level, logger, message, request_id, the fields that the line was given, exc_info."""

    def __init__(self) -> None:
        super().__init__("%(message)s")

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        log_data |= {"time": at, "level": record.levelname.lower(), "logger": record.name}
        super().add_fields(log_data, record, message_dict)
        log_data.pop("color_message", None)  # of uvicorn, for terminals
        if request := request_id.get():
            log_data.setdefault("request_id", request)

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        # Before they become JSON: a mask must not eat the quotes.
        masked: dict[str, Any] = _masked(super().process_log_record(log_data))
        return masked


def _masked(value: Any) -> Any:
    match value:
        case str():
            return mask(value)
        case Mapping():
            return {key: MASK if str(key).lower() in _SECRET_FIELDS else _masked(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_masked(entry) for entry in value]
        case None | bool() | int() | float():
            return value
    return mask(str(value))


def gauge(name: str, words: str, label: str, values: Mapping[Any, float]) -> GaugeMetricFamily:
    """values: by the label's."""
    family = GaugeMetricFamily(f"meshtune_{name}", words, labels=(label,))
    for value, count in values.items():
        family.add_metric((value,), count)
    return family


class Heartbeat:
    """When a thread last showed that it works, and at what. One thread beats; any may ask. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: tuple[float, str] | None = None

    def beat(self, task: str = "") -> None:
        """The thread is alive, and begins with this now."""
        self._last = (self._clock(), task)

    def trouble(self, thread: str, limit_s: float) -> str:
        """What is wrong where the last beat is longer ago than that, or there was none; else empty."""
        if self._last is None:
            return f"{thread} has made no turn yet"
        at, task = self._last
        age_s = self._clock() - at
        busy = f": {task}" if task else ""
        return f"{thread} has made no turn for {age_s:.0f} s{busy}" if age_s > limit_s else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerHealth:
    """One kind of runner, as this process polled it."""

    poll_errors: int = 0
    # Epoch seconds of the last answer; None before the first.
    answered_at: float | None = None
    # Why the last poll failed; empty after one that did not.
    trouble: str = ""


class ServiceMetrics:
    """lease_changes, skews: of the service's `Holder`. clock: epoch seconds. Methods may be called from several
    threads."""

    def __init__(self, lease_changes: Counter, skews: Skews, clock: Callable[[], float]) -> None:
        self.skews = skews
        self.tick_s = Histogram("meshtune_tick_seconds", "One step of one campaign.", buckets=SECONDS, registry=None)
        self.ask_s = Histogram("meshtune_ask_seconds", "One question to a search.", buckets=SECONDS, registry=None)
        self.polls = Counter("meshtune_polls", "Looks at running jobs.", ("runner",), registry=None)
        self.poll_errors = Counter("meshtune_poll_errors", "Looks without an answer.", ("runner",), registry=None)
        self.lost = Counter("meshtune_lost_attempts", "Jobs that were lost.", ("runner", "cause"), registry=None)
        self.refusals = Counter("meshtune_refusals", "Jobs that a scheduler refused.", ("runner",), registry=None)
        self.repeats = Counter("meshtune_repeated_trials", "Trials that were run again.", ("runner",), registry=None)
        ours = (self.tick_s, self.ask_s, self.polls, self.poll_errors, self.lost, self.refusals, self.repeats)
        self.collectors = (*ours, lease_changes, skews.gauge)
        self._clock = clock
        self._lock = threading.Lock()
        self._runners: dict[str, RunnerHealth] = {}

    def runners(self) -> Mapping[str, RunnerHealth]:
        """By kind, those that were polled."""
        with self._lock:
            return dict(self._runners)

    @contextmanager
    def polling(self, kind: str, age_s: Callable[[], float] = lambda: 0.0) -> Iterator[None]:
        """Counts the poll in its body, unless it was answered by an earlier one, of another campaign's. Only a
        RunnerError counts as the runner's; every error is raised again.

        age_s: how old the answer is, once it is there."""
        begun = time.monotonic()
        try:
            yield
        except RunnerError as error:
            self._count(kind, str(error), 0.0, polled=True)
            raise
        self._count(kind, "", age_s(), polled=age_s() <= time.monotonic() - begun)

    def _count(self, kind: str, trouble: str, age_s: float, *, polled: bool) -> None:
        self.polls.labels(kind).inc(polled)
        self.poll_errors.labels(kind).inc(bool(trouble))
        for counter in (self.refusals, self.repeats):  # from 0 on, so that the first one is an increase
            counter.labels(kind).inc(0)
        with self._lock:
            known = self._runners.get(kind, RunnerHealth())
            answered_at = known.answered_at if trouble else self._clock() - age_s
            errors = known.poll_errors + bool(trouble)
            self._runners[kind] = replace(known, poll_errors=errors, answered_at=answered_at, trouble=trouble)
