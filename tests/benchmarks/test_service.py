"""The benchmark of the service prints every table, small, each of a real service."""

from __future__ import annotations

import pytest
import service

KINDS = ["sqlite"]
SLOW, LONG = pytest.mark.slow, pytest.mark.long


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("table", "arguments", "words"),
    [
        pytest.param(service.print_latencies, (2, 20, 4, 20), ["CPU ms"], marks=SLOW, id="latencies"),
        pytest.param(service.print_sizes, ([20, 40], 20), ["best, again ms"], marks=LONG, id="sizes"),
        pytest.param(service.print_ticks, (5, 1.0, "random"), ["longest <= s"], marks=LONG, id="ticks"),
        pytest.param(service.print_idle, (2, 0.5), ["active campaigns"], marks=LONG, id="idle"),
        pytest.param(service.print_streams, (2, 1), ["events"], marks=LONG, id="streams"),
        pytest.param(
            service.print_soak, (2.0, 0.5), ["trials that ended", "growth since minute"], marks=LONG, id="soak"
        ),
    ],
)
def test_every_table_of_the_benchmark_is_printed(table, arguments, words, capfd) -> None:
    table(KINDS, *arguments)
    printed = capfd.readouterr().out
    assert all(word in printed for word in words), printed
