"""The Megatron example is a spec whose trials can be written down anywhere, and what its launch script imports as."""

from __future__ import annotations

from pathlib import Path

from meshtune.runners.base import Start
from meshtune.runners.dialects.megatron.dialect import parse
from meshtune.runners.workloads.base import CONTEXT_FILE
from meshtune.search_spaces.model import ModelSpec
from meshtune.search_spaces.plan import Plan
from meshtune.search_spaces.presets import model_presets
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

FOLDER = Path(__file__).parents[2] / "examples" / "megatron"


def example():
    return read_spec(parse_yaml((FOLDER / "campaign.yaml").read_text(encoding="utf-8")), None)


def test_the_example_is_a_spec_with_a_space_and_its_baseline_in_it():
    spec, space = example()
    assert len(space) > (spec.budget.trials or 0) > 0
    assert spec.baseline in space
    assert {plan.vpp for plan in space} == {1, 2, 4}
    assert {str(plan.context) for plan in space if plan.cp > 1} == {"all_gather", "ring"}


def test_the_example_explains_what_megatron_cannot():
    _, space = example()
    broken = space.explain(space.complete(tp=2, pp=4, vpp=2, schedule="interleaved", micro_batch_size=1, zero_stage=3))
    assert {violation.constraint for violation in broken} == {"bounds", "zero"}


def test_a_trial_of_the_example_is_a_script_that_needs_no_more(tmp_path):
    spec, _ = example()
    workload = workload_of(spec)
    job = workload.materialize("t", spec.model, spec.baseline, spec.cluster, tmp_path, seed=0, time_limit_s=900)
    assert (job.nodes, job.devices_per_node, job.processes, job.start) == (4, 8, 32, Start.DEVICE)
    assert set(job.files) == {"launch.sh", "megatron-args.txt", CONTEXT_FILE}
    script = job.files["launch.sh"]
    head = ["module load cuda/12.8", "source /opt/venvs/megatron/bin/activate", "cd /opt/Megatron-LM", "ARGS=("]
    assert "\n".join(head) in script
    assert "--tensor-model-parallel-size 2\n" in script
    assert "--train-iters 25\n" in script


def test_the_launch_script_imports_as_the_example():
    spec, space = example()
    imported = parse((FOLDER / "launch.sh").read_text(encoding="utf-8"))
    assert imported.notes == ()
    assert Plan(**imported.plan) == spec.baseline
    assert space.explain(Plan(**imported.plan)) == []
    preset = {name: value for name, value in model_presets()["llama3-8b"].items() if name != "source"}
    assert ModelSpec(name="m", **imported.model) == ModelSpec(**{**preset, "name": "m"})
    assert (imported.nodes, imported.devices_per_node) == (spec.cluster.nodes, spec.cluster.devices_per_node)
    assert imported.global_batch_size == spec.global_batch_size
    options = spec.workload.options
    for name in ("directory", "dtype", "setup", "env"):
        assert imported.workload[name] == options[name]
    assert set(options["arguments"]) < set(imported.workload["arguments"])
