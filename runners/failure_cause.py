"""Why a job failed, in the field's words: what a person would look at next."""

from __future__ import annotations

from meshtune.search_spaces.checks import StrEnum


class Cause(StrEnum):
    """storage: the disk or file server of the job's folder, not the job. other_hardware: it was measured, on nodes of
    another kind than the baseline. user_bug: a failure that no plan can change, such as a missing file or
    module; trying other plans is waste. queue_limit: no failure, a job that was withdrawn because it waited too
    long."""

    OOM = "oom"
    ILLEGAL_SETTING = "illegal_setting"
    HANG = "hang"
    COMMUNICATION = "communication"
    NODE_FAULT = "node_fault"
    STORAGE = "storage"
    PREEMPTION = "preemption"
    OTHER_HARDWARE = "other_hardware"
    TIME_LIMIT = "time_limit"
    QUEUE_LIMIT = "queue_limit"
    USER_BUG = "user_bug"
    CRASH = "crash"
