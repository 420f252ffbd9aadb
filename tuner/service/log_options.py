"""How much a service logs, and in which form; the command line offers these without loading `telemetry`."""

from enum import StrEnum


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
