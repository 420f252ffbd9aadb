"""`meshtune import` on launch files in the manner of the public ones: nothing silently wrong, most of them whole, every
refusal with a next step. What a case is stands in tests/laboratories/import_cases.py; table.py prints the verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from import_cases import Case, Judged, Verdict, cases, judge

CORPUS = cases()
_LEAST = 60
_SHARE_WHOLE = 0.75
# Megatron, DeepSpeed and torchtitan need minutes until their first step.
_LEAST_START_S = 300

# One worker of pytest-xdist, which imports each case once.
pytestmark = pytest.mark.xdist_group("import corpus")


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Judged]:
    """What an import of a case came to, each made once."""
    found: dict[str, Judged] = {}

    def of(case: Case) -> Judged:
        if case.name not in found:
            found[case.name] = judge(case, tmp_path_factory.mktemp("corpus"))
        return found[case.name]

    return of


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_an_import_is_what_a_careful_engineer_reads(case, verdict):
    found = verdict(case)
    assert found.as_expected, "\n  ".join([f"{case.name}: {found.verdict}", *found.faults])


def test_nothing_is_silently_wrong_and_most_is_imported_whole(verdict):
    found = [verdict(case) for case in CORPUS]
    assert len(found) >= _LEAST
    assert [one.case.name for one in found if one.verdict is Verdict.WRONG] == []
    assert [one.case.name for one in found if one.verdict is Verdict.VAGUE] == []
    whole = Counter(one.verdict for one in found if one.case.wanted is Verdict.FULL)
    assert whole[Verdict.FULL] >= _SHARE_WHOLE * whole.total(), whole


def test_programs_get_minutes_to_start(verdict):
    starts = {
        found.case.name: (found.document.get("trial") or {}).get("start_s", 0)
        for found in map(verdict, CORPUS)
        # Of a script that is watched nothing is known; its baseline tells.
        if found.document is not None and not found.document["workload"].get("watch")
    }
    assert {name: start for name, start in starts.items() if start < _LEAST_START_S} == {}


def test_what_is_expected_could_run():
    """Devices and batches of the cases, as far as one value is expected of each."""
    for case in CORPUS:
        plan = {"tp": 1, "pp": 1, "cp": 1} | dict(case.expected.get("baseline", {}))
        numbers = [case.expected.get(key) for key in ("nodes", "devices_per_node", "global_batch_size")]
        numbers += [plan.get("micro_batch_size"), plan["tp"], plan["pp"], plan["cp"]]
        if all(isinstance(number, int) for number in numbers):
            nodes, devices, batch, micro, tp, pp, cp = numbers
            assert nodes * devices % (tp * pp * cp) == 0, case.name
            assert batch % (micro * (nodes * devices // (tp * pp * cp))) == 0, case.name


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        ({"baseline": {"tp": 2}}, Verdict.FULL),
        ({"baseline": {"tp": [2, None]}}, Verdict.FULL),
        ({"baseline": {"tp": 4}}, Verdict.WRONG),
        ({"baseline": {"tp": None}}, Verdict.WRONG),
        ({"baseline": {"vpp": 2}}, Verdict.WRONG),
        ({"dtype": "float32"}, Verdict.WRONG),
        ({"questions": ["baseline.tp"]}, Verdict.WRONG),
        ({"mentions": ["a word that nobody says"]}, Verdict.WRONG),
        ({"absent": ["pretrain_gpt"]}, Verdict.WRONG),
        ({"refused": ["bert"]}, Verdict.WRONG),
        ({"model": {"vocab": 32000}}, Verdict.SHORT),
    ],
)
def test_the_judge_sees_what_is_wrong(expected, verdict, tmp_path):
    (case,) = (case for case in CORPUS if case.name == "mds-llama2-heredoc-static")
    kept = {key: case.expected[key] for key in ("about", "family", "source")}
    assert judge(replace(case, expected=kept | expected), tmp_path).verdict is verdict
