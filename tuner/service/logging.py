"""The log of a process: lines of text or JSON without secrets; events and troubles of campaigns as lines.

Masked wherever they stand, in messages, fields and tracebacks: tokens of ours, Authorization headers, and passwords
in database URLs and settings.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from meshtune.tuner.campaign.campaign import Event

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


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def mask(text: str) -> str:
    """The text without its secrets."""
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text


def set_up(form: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (by default stderr), and nowhere else."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
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

    def update(self, troubles: Mapping[str, str]) -> None:
        now = dict(troubles)
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
