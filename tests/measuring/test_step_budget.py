"""How many steps a job says it will take agrees with how the trainer takes them."""

from __future__ import annotations

from pathlib import Path

from meshtune.runners.base import JobSpec
from meshtune.runners.measuring import step_counts
from meshtune.runners.trainer.job import Job, Measuring, render_job
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import model_presets


def counts(**measuring):
    shapes = {name: value for name, value in model_presets()["gpt-micro"].items() if name != "source"}
    text = render_job(Job(name="j", model=ModelSpec(**shapes), plan=Plan(), measuring=Measuring(**measuring)))
    return step_counts(_spec({"job.json": text}))


def _spec(files):
    return JobSpec(
        name="j", command=("true",), directory=Path(), nodes=1, devices_per_node=1, time_limit_s=1.0, files=files
    )


def test_the_fewest_steps_are_those_without_warmup():
    assert counts(min_steps=10, max_steps=30, profile_steps=5).least == 2 + 10 + 5


def test_a_window_of_steps_is_timed_before_warmup_is_known_to_be_over():
    assert counts(min_steps=1, max_steps=30, profile_steps=0).least == 2 + 6
    assert counts(min_steps=1, max_steps=3, profile_steps=0).least == 2 + 3


def test_the_most_steps_depend_on_how_long_one_takes():
    found = counts(max_warmup_steps=10, min_steps=6, max_steps=30, max_seconds=60, profile_steps=5)
    assert found.most(0.001) == 2 + 10 + 30 + 5
    assert found.most(6.0) == 2 + 10 + 10 + 5
    assert found.most(1000.0) == 2 + 10 + 6 + 5


def test_a_job_that_does_not_say_has_no_counts():
    assert step_counts(_spec({})) is None
    assert step_counts(_spec({"job.json": "{}"})) is None
