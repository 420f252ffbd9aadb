"""Spans become parts: exclusive, complete, and waiting for a peer told from moving data."""

from __future__ import annotations

import pytest

from meshtune.runners.step_breakdown import Part
from meshtune.runners.trainer.timing.breakdown import last_arrivals, sum_parts
from meshtune.runners.trainer.timing.stopwatch import GroupCall, Span

REDUCE = ((0, 1), "", 0)
TENSOR = ((0, 1), "0>1", 0)


def test_a_call_is_waiting_until_its_last_member_has_arrived():
    spans = [
        Span(0.0, 1.0, Part.COMPUTE),
        Span(1.0, 3.0, GroupCall(REDUCE, Part.DP)),
        Span(3.0, 7.0, GroupCall(TENSOR, Part.SEND_RECEIVE)),
        Span(7.0, 8.0, Part.OPTIMIZER),
    ]
    last = last_arrivals([{REDUCE: 1.0, TENSOR: 0.0}, {REDUCE: 2.5, TENSOR: 6.0}])
    parts, waiting = sum_parts(spans, last)
    assert {part: seconds for part, seconds in parts.items() if seconds} == {
        "compute": 1.0,
        "dp": 2.0,
        "bubble": 3.0,
        "send_receive": 1.0,
        "optimizer": 1.0,
    }
    assert waiting == {"dp": 1.5}
    assert sum(parts.values()) == pytest.approx(8.0)
