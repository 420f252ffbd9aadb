"""Plans that do not train as the baseline: told when the first one ends, never recommended, never measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_lab import run_campaign, run_meshtune

from meshtune.runners.outcome import Outcome, Verdict
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.eligibility import TrainingCheck, check_norms, ground_of, noted, training_words
from meshtune.tuner.campaign.second_runs import next_turn
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.recommendation import comparable_text, recommend

ROOT = Path(__file__).parents[2]
BASELINE = Plan(dp=4, micro_batch_size=2, grad_accum_steps=1)
CUT = Plan(dp=4, micro_batch_size=1, grad_accum_steps=2)
SEQUENTIAL = Plan(dp=1, micro_batch_size=1, grad_accum_steps=8)


@pytest.fixture
def spec(lab):
    return replace(lab.spec(baseline={"tp": 1}), baseline=BASELINE, confirm=3)


@pytest.fixture
def trials(make):
    """Of plans with their seconds, first losses and gradient norms, the first one the baseline's."""

    def build(*entries: tuple[Plan, float, tuple[float, ...], tuple[float, ...]]) -> list[Any]:
        return [
            make.trial(
                number,
                make.measurement(seconds, first_losses=losses, first_gradient_norms=norms),
                plan=plan,
                origin=Origin.SEARCH if number else Origin.BASELINE,
            )
            for number, (plan, seconds, losses, norms) in enumerate(entries)
        ]

    return build


@pytest.mark.parametrize(
    ("norms", "base", "found"),
    [
        ((1.0, 2.0), (1.0, 2.0005), TrainingCheck(True, 1, ratio=2.0 / 2.0005)),
        ((0.35, 2.0), (1.0, 2.0), TrainingCheck(False, 0, ratio=0.35)),
        # Printed with three digits, they are no finer than that; those of full length are.
        ((0.051, 0.053), (0.052, 0.053), TrainingCheck(True, 0, ratio=0.051 / 0.052)),
        ((0.0510001, 0.053), (0.0520001, 0.053), TrainingCheck(False, 0, ratio=0.0510001 / 0.0520001)),
        # Megatron prints zeros where nothing is clipped.
        ((0.0, 0.0), (0.0, 0.0), TrainingCheck(None)),
        ((), (1.0,), TrainingCheck(None)),
    ],
)
def test_gradient_norms_are_compared_by_their_ratio(norms, base, found):
    assert check_norms(norms, base, 1e-3) == found


def test_a_wrong_gradient_behind_right_losses_is_never_recommended(spec, make, trials):
    campaign = make.campaign(spec)
    untold = make.thrice(trials((BASELINE, 1.0, (2.0,), ()), (CUT, 0.5, (2.0,), ())))
    assert recommend(campaign, untold).choice.trial.number == 1
    told = make.thrice(trials((BASELINE, 1.0, (2.0,), (1.0,)), (CUT, 0.5, (2.0,), (0.35,))))
    found = recommend(campaign, told)
    assert (found.choice.trial.number, found.better) == (0, False)
    words = "does not train the same: the gradient norm of step 0 is 0.35 times the baseline's"
    assert words in found.reason
    assert rank(campaign, told)[-1].trains_as_baseline == words


def test_norms_alone_tell_that_it_trains_the_same(spec, make, trials):
    same = trials((BASELINE, 1.0, (), (1.0,)), (CUT, 0.5, (), (1.0,)))
    assert [entry.trains_as_baseline for entry in rank(make.campaign(spec), same)] == [True, True]


MUST = "the loss that a job tells must be the mean over the global batch of a step, 8 x 128 tokens"


HALF = ": the first one is 0.5 times the baseline's, as of one of the micro-batches (2 here, 1 in the baseline)"
TWICE = ": the first one is 2 times the baseline's, as of a sum over micro-batches (2 here, 1 in the baseline)"
QUARTER = ": the first one is 0.25 times the baseline's, as of a sum over replicas (1 here, 4 in the baseline)"


@pytest.mark.parametrize(
    ("plan", "losses", "end"),
    [
        (CUT, (5.0,), HALF),
        (CUT, (20.0,), TWICE),
        (SEQUENTIAL, (2.5,), QUARTER),
        (CUT, (3.0,), ": the first one is 0.3 times the baseline's"),
        (CUT, (10.1,), ""),
        (CUT, (float("inf"),), ""),
    ],
)
def test_what_a_loss_must_be_is_said_and_what_it_seems_to_be_where_that_is_plain(spec, trials, plan, losses, end):
    known = trials((BASELINE, 1.0, (10.0,), ()), (plan, 0.5, losses, ()))
    words = training_words(ground_of(spec, known), plan, known[1].measurement)
    assert words.startswith("does not train the same: the losses of step 0 differ by ")
    assert words.endswith(f"{MUST}{end}")


def test_the_outcome_says_so_and_a_baselines_of_those_that_ended_before_it(spec, trials):
    base, *others = trials(
        *((plan, 1.0, (loss,), ()) for plan, loss in ((BASELINE, 8.0), (CUT, 4.0), (SEQUENTIAL, 1.0)))
    )
    assert MUST in noted(spec, [base], others[0], others[0].outcome).reason
    assert noted(spec, others, others[0], others[0].outcome).reason == ""
    assert noted(spec, [base, *others], base, base.outcome).reason.startswith("trial 1 does not train the same")
    failed = Outcome(verdict=Verdict.CRASHED)
    assert noted(spec, [base], others[0], failed) == failed


def second_runs(spec, make, known, loss):
    """How many there are. loss: of a plan's second run."""
    trials = list(known)
    while (turn := next_turn(spec, trials)) is not None:
        plan = turn.missing[0]
        seconds = 1.0 + 0.1 * (len(trials) % 4)  # which tells no plan from another
        measured = make.measurement(seconds, first_losses=(loss(plan),))
        trials.append(make.trial(len(trials), measured, origin=Origin.CONFIRMATION, plan=plan, round=turn.round))
    return trials[len(known) :]


def test_a_plan_whose_second_run_trains_otherwise_runs_no_more(spec, make, trials):
    known = trials(*((plan, 1.0, (8.0,), ()) for plan in (BASELINE, CUT, SEQUENTIAL)))
    assert len(second_runs(spec, make, known, lambda plan: 8.0)) > 6
    runs = second_runs(spec, make, known, lambda plan: 4.0 if plan == CUT else 8.0)
    assert [trial.plan for trial in runs].count(CUT) == 1


def test_what_decided_the_rounds_recommends_whatever_else_ran_in_them(spec, make, trials):
    known = trials(*((plan, 1.0, (8.0,), ()) for plan in (BASELINE, CUT, SEQUENTIAL)))
    runs = [(BASELINE, 1.0, 8.0), (CUT, 0.8, 8.0), (SEQUENTIAL, 0.9, 4.0)]

    def sure(runs):
        again = [
            make.trial(
                number,
                make.measurement(seconds, first_losses=(loss,)),
                origin=Origin.CONFIRMATION,
                plan=plan,
                round=1,
            )
            for number, (plan, seconds, loss) in enumerate(runs, start=len(known))
        ]
        return next(one for one in rank(make.campaign(spec), [*known, *again]) if one.trial.plan == CUT).gain.sure

    assert sure(runs) == sure(runs[:2])


def test_a_program_without_a_seed_takes_one_round_and_is_named(spec, make, trials):
    known = trials(*((plan, 1.0, (8.0,), ()) for plan in (BASELINE, CUT, SEQUENTIAL)))
    losses = iter((8.1, 8.2, 8.3, 8.4, 8.5, 8.6))
    runs = second_runs(spec, make, known, lambda plan: next(losses))
    assert len(runs) == 3
    again = next(trial for trial in runs if trial.plan == BASELINE)
    said = noted(spec, known, again, again.outcome).reason
    assert said.startswith("a run of the baseline does not train the same: the losses of step 0 differ by 0.")
    assert said.endswith("runs of this program are not alike, so set its seed")


def test_how_many_compare_and_why_the_others_do_not(spec, make, trials):
    alike = trials((BASELINE, 1.0, (8.0,), ()), (CUT, 0.5, (8.0,), ()))
    assert comparable_text(rank(make.campaign(spec), alike)) == ""
    one = trials((BASELINE, 1.0, (8.0,), ()), (CUT, 0.5, (4.0,), ()))
    assert comparable_text(rank(make.campaign(spec), one)) == "2 measured, 1 comparable: 1 do not train the same"
    plans = [Plan(tp=tp, micro_batch_size=8) for tp in (1, 2, 4)]
    odd = trials((BASELINE, 1.0, (8.0,), ()), *((plan, 0.5, (4.0,), ()) for plan in plans))
    said = "4 measured, 1 comparable: 3 do not train the same"
    ranking = rank(make.campaign(spec), odd)
    assert (
        comparable_text(ranking) == f"{said}; 3 of those train the same as one another: the baseline may be the odd one"
    )
    assert said in recommend(make.campaign(spec), odd).reason
    apart = trials((BASELINE, 1.0, (8.0,), ()), *((plan, 0.5, (float(n),), ()) for n, plan in enumerate(plans, 1)))
    assert comparable_text(rank(make.campaign(spec), apart)) == said


# Prints the loss of its last micro-batch, divided for the sum of gradients.
PLAIN = """
import sys, time
micro, accumulate, steps = map(int, sys.argv[1:])
for step in range(1, steps + 1):
    time.sleep(0.01 * accumulate)
    print(f"iter {step} | loss {9 / accumulate:.6f} | {10 * accumulate} ms/it", flush=True)
"""


@pytest.mark.slow
def test_a_new_users_wrong_loss_is_told_when_the_first_trial_ends_and_takes_no_second_runs(tmp_path):
    document = yaml.safe_load((ROOT / "examples" / "bring-your-own" / "campaign.yaml").read_text(encoding="utf-8"))
    document |= {
        "runner": {"kind": "local", "idle_s": 0.5},
        "search": "grid",
        "space": {"micro_batch_size": [1, 2, 4, 8]},
        "baseline": {"micro_batch_size": 2},
        "budget": {"trials": 4},
        "workload": {
            "kind": "command",
            "command": "exec {python} plain.py {micro_batch_size} {grad_accum_steps} {steps}",
            "files": {"plain.py": PLAIN.replace("{", "{{").replace("}", "}}")},
            "start": "job",
            "steps": 8,
            "warmup_steps": 2,
            "log": {"step": r"iter (\d+)", "step_time_ms": r"([\d.]+) ms/it", "loss": r"loss ([\d.]+)"},
        },
    }
    finished, campaign, trials = run_campaign(tmp_path, document, ROOT)
    assert finished.code == 0, finished.out + finished.err
    assert [trial.origin for trial in trials].count(Origin.CONFIRMATION) == 0
    first = next(trial for trial in trials if trial.origin is not Origin.BASELINE)
    said = (
        "the loss that a job tells must be the mean over the global batch of a step, 16 x 64 tokens: the first one is"
    )
    assert said in first.outcome.reason
    assert finished.err.count(said) == 1
    assert f"! trial {first.number} does not train the same: the losses of step 0 differ by" in finished.err
    few = "4 measured, 1 comparable: 3 do not train the same"
    assert few in finished.out
    home = tmp_path / "home"
    for command in (("analyze", campaign.id), ("best", campaign.id)):
        assert few in " ".join(run_meshtune(tmp_path, *command, "--home", home).out.split())
    shown = run_meshtune(tmp_path, "show", campaign.id, "--trial", str(first.number), "--home", home).out
    assert "must be the mean over the global batch" in " ".join(shown.split())
