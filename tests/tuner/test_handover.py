"""A setting in another program than the one that measured it: what is said, and the campaign that confirms it there."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import toy
import yaml
from command_lab import run_meshtune

from meshtune.runners.outcome import Verdict
from meshtune.runners.programs.dialects.base import CannotExpress
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.spec import Backend
from meshtune.tuner.campaign.trial import Origin
from meshtune.tuner.cli.spec_file import read_document
from meshtune.tuner.results.export import FORMATS, export_files, export_of, handover_of
from meshtune.tuner.results.handover import check_handover, measured_with, rival_of
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.specs.confirming import confirming_document
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import read_spec

ROOT = Path(__file__).parents[2]
SLOW, FAST = Plan(dp=4, zero_stage=1, grad_accum_steps=2), Plan(dp=4, micro_batch_size=2)
OTHER = Plan(tp=2, dp=2, micro_batch_size=2, grad_accum_steps=2)
DIALECTS = {"megatron": {}, "deepspeed": {"script": "/x/train.py"}, "torchtitan": {}, "accelerate": {}}


def with_workload(campaign, kind, **options):
    return replace(campaign, spec=replace(campaign.spec, workload=Backend(kind=kind, options=options)))


@pytest.fixture
def export(lab, make, tmp_path):
    """The export of a plan that this workload measured. software: of the measurement."""

    def build(kind="torch", software=None, asked=None, **options):
        campaign = with_workload(make.campaign(lab.spec(), CampaignState.COMPLETED), kind, **options)
        measurement = make.measurement(1.0, software=software or {"torch": "2.13.0", "python": "3.11.7"})
        (entry,) = rank(campaign, [make.trial(0, measurement, plan=FAST)])
        return export_of(campaign, entry, tmp_path, asked)

    return build


def test_the_formats_of_programs_are_those_tried_here():
    assert {name for name, format in FORMATS.items() if format.program} == set(DIALECTS)


def test_the_program_of_a_measurement_is_told_with_its_versions_and_its_device(export):
    assert export().measured_with.words == "the built-in trainer (torch 2.13.0, cpu)"
    assert export().setting["measured_with"]["software"] == {"torch": "2.13.0", "python": "3.11.7"}
    assert export("megatron", {"megatron": "0.15"}).measured_with.words == "Megatron (megatron 0.15, cpu)"


def test_a_measurement_from_outside_is_of_no_program_of_ours(lab, make):
    spec = replace(lab.spec(), runner=Backend(kind="external"))
    measurement = make.measurement(1.0, software={"torch": "2.13.0"})
    assert measured_with(spec, measurement).words == "a program outside meshtune (torch 2.13.0, cpu)"


@pytest.mark.parametrize(("format", "options"), DIALECTS.items())
def test_an_export_to_another_program_carries_a_warning_and_the_offer(export, format, options):
    handed = export(asked=options)
    handover = handover_of(handed, format)
    assert handover.program == FORMATS[format].program
    assert handover.warning.startswith(
        f"measured with the built-in trainer (torch 2.13.0, cpu), not measured with {handover.program}, "
    )
    assert handover.differs == ()
    assert handover.confirm == "meshtune confirm c --trial 0 --with SPEC.yaml"
    for name, text in export_files(handed, format).items():
        told = f"\n#     {handover.confirm}\n" in text and "# Warning: measured with the built-in trainer" in text
        assert told == name.endswith((".sh", ".toml", ".yaml")), name


@pytest.mark.parametrize(("format", "options"), DIALECTS.items())
def test_the_comment_changes_nothing_of_what_is_said(export, format, options):
    handed = export(asked=options)
    plain = FORMATS[format].render(handed)
    for name, text in export_files(handed, format).items():
        if name.endswith(".yaml"):
            assert yaml.safe_load(text) == yaml.safe_load(plain[name])
        told = [line for line in text.splitlines() if not line.startswith("#")]
        assert told == [line for line in plain[name].splitlines() if not line.startswith("#")]
        assert text.startswith("#!") == plain[name].startswith("#!")


def test_what_differs_is_the_format_that_was_asked_for(export):
    assert handover_of(export(asked={"dtype": "float16"}), "megatron").differs == (
        "number format float32 there, float16 here",
    )
    assert handover_of(export(), "megatron").differs == ()


def dtype_in(format, files):
    """The number format that the program is told."""
    if format == "megatron":
        words = files["megatron-args.txt"].split()
        return "bfloat16" if "--bf16" in words else "float16" if "--fp16" in words else "float32"
    if format == "deepspeed":
        config = json.loads(files["ds_config.json"])
        given = [name for key, name in (("bf16", "bfloat16"), ("fp16", "float16")) if config[key]["enabled"]]
        return given[0] if given else "float32"
    if format == "torchtitan":
        return re.search(r"--training.mixed_precision_param (\w+)", files["torchtitan.args"])[1]
    mixed = {"bf16": "bfloat16", "fp16": "float16", "no": "float32"}
    return mixed[yaml.safe_load(files["accelerate.yaml"])["mixed_precision"]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("format", "options"), DIALECTS.items())
def test_every_format_has_the_number_format_that_was_measured_or_is_refused(export, format, options, dtype):
    handed = export(dtype=dtype, asked=options)
    assert handed.setting["measured_with"]["dtype"] == dtype
    if (format, dtype) == ("torchtitan", "float16"):
        with pytest.raises(CannotExpress, match="number format: is float16; the format has float32 and bfloat16 alone"):
            export_files(handed, format)
        handed = export(dtype=dtype, asked={"dtype": "bfloat16"})
        assert dtype_in(format, export_files(handed, format)) == "bfloat16"
        assert handover_of(handed, format).differs == ("number format float16 there, bfloat16 here",)
        return
    assert dtype_in(format, export_files(handed, format)) == dtype
    assert handover_of(handed, format).differs == ()


@pytest.mark.parametrize("format", DIALECTS)
def test_a_script_whose_number_format_nobody_said_is_exported_with_a_warning_of_it(export, format):
    words = ["train.py", *(f"{{{name}}}" for name in ("tp", "pp", "dp", "micro_batch_size", "grad_accum_steps"))]
    handed = export("command", command=words, asked=DIALECTS[format])
    assert handed.setting["measured_with"]["dtype"] is None
    told = "bfloat16 here, as the spec does not say which number format it had there (workload.dtype)"
    assert handover_of(handed, format).differs == (told,)
    said = export("command", command=words, dtype="float32", asked=DIALECTS[format])
    assert handover_of(said, format).differs == ()
    assert dtype_in(format, export_files(said, format)) == "float32"


@pytest.mark.parametrize("format", [name for name, format in FORMATS.items() if not format.program])
def test_a_format_for_the_program_that_measured_or_for_none_says_nothing(export, format):
    handed = export(asked={"image": "example.org/x"} if format in ("jobset", "trainjob") else None)
    assert handover_of(handed, format) is None
    assert not any("# Warning" in text for text in export_files(handed, format).values())


def test_the_same_program_says_nothing(export):
    handed = export("megatron")
    assert handover_of(handed, "megatron") is None
    assert "Warning" not in export_files(handed, "megatron")["launch.sh"]
    assert handover_of(handed, "torchtitan") is not None


# The two trials


@pytest.fixture
def source(lab, make):
    """A campaign of the built-in trainer, and its trials: the winner is 2.00 times as fast as its baseline."""
    campaign = with_workload(make.campaign(lab.spec(), CampaignState.COMPLETED), "torch")
    trials = [
        make.trial(0, make.measurement(1.0), plan=SLOW, origin=Origin.BASELINE),
        make.trial(1, make.measurement(0.5), plan=FAST),
        make.trial(2, make.measurement(0.8), plan=OTHER),
    ]
    return campaign, trials


def test_a_winner_is_compared_with_the_baseline_else_with_the_best_other_plan(source):
    campaign, trials = source
    winner = rank(campaign, trials)[0]
    assert rival_of(campaign, trials, winner).trial.plan == SLOW
    assert rival_of(campaign, trials[1:], rank(campaign, trials[1:])[0]).trial.plan == OTHER
    assert rival_of(campaign, trials[1:2], winner) is None
    baseline = rank(campaign, trials)[-1]
    assert rival_of(campaign, trials, baseline).trial.plan == FAST


OOM = "it was oom"
UNMEASURED = f"was not measured: oom: {OOM}"


def test_a_baseline_that_differs_in_knobs_or_size_alone_is_no_rival_and_the_best_other_layout_is(source, make):
    campaign, trials = source
    for alike in (replace(FAST, knobs={"threads": 2}), replace(OTHER, dp=1)):
        told = [make.trial(0, make.measurement(1.0), plan=alike, origin=Origin.BASELINE), *trials[1:]]
        winner = rank(campaign, told)[0]
        assert (winner.trial.plan, rival_of(campaign, told, winner).trial.plan) == (FAST, OTHER)
        assert rival_of(campaign, told[:2], winner) is None


@pytest.mark.parametrize(
    ("baseline", "winner", "confirmed", "words"),
    [
        (1.0, 0.8, True, "1.25 times (1.25 to 1.25) the baseline with Megatron"),
        (1.0, 1.0, False, "1.00 times (1.00 to 1.00) the baseline with Megatron: not beyond the noise"),
        (1.0, 2.0, False, "0.50 times (0.50 to 0.50) the baseline with Megatron: slower"),
        (1.0, "oom", False, f"with Megatron the plan was not measured: oom: {OOM}"),
        ("oom", 1.0, False, f"with Megatron the plan runs at 1,024 tokens/s, but the baseline {UNMEASURED}"),
        (1.0, None, False, "with Megatron the plan was not measured: no time left"),
    ],
)
def test_the_finding_names_both_ratios_or_what_failed(source, make, baseline, winner, confirmed, words):
    campaign, trials = source

    def run(number, result, **more):
        outcome = Verdict.OOM if result == "oom" else make.measurement(result)
        return make.trial(number, outcome, **more)

    there = replace(with_workload(campaign, "megatron"), id="there", reason="no time left")
    runs = [run(0, baseline, plan=SLOW, origin=Origin.BASELINE)]
    runs += [] if winner is None else [run(1, winner, plan=FAST)]
    first, rival = rank(campaign, trials)[0], rank(campaign, trials)[-1]
    assert not check_handover(campaign, first, rival, there, runs).confirmed, "by one run each"
    found = check_handover(campaign, first, rival, there, make.thrice(runs))
    assert found.confirmed is confirmed
    said = "confirmed" if confirmed else "not confirmed"
    earlier = "2.00 times (2.00 to 2.00), first run, not confirmed"
    assert found.words == f"{said}: {words}; measured with the built-in trainer: {earlier}"
    assert (found.by, found.against_key, found.plan_key) == ("there", SLOW.key, FAST.key)


def test_a_setting_that_trains_otherwise_there_is_not_confirmed(source, make):
    campaign, trials = source
    there = with_workload(campaign, "megatron")
    runs = [
        make.trial(0, make.measurement(1.0, first_losses=(9.0,)), plan=SLOW, origin=Origin.BASELINE),
        make.trial(1, make.measurement(0.5, first_losses=(8.0,)), plan=FAST),
    ]
    ranking = rank(campaign, trials)
    found = check_handover(campaign, ranking[0], ranking[-1], there, runs)
    assert not found.confirmed
    differ = "does not train the same: the losses of step 0 differ by 1 from the baseline's"
    assert f"with Megatron, where it {differ}; " in found.words


@pytest.fixture
def confirming(lab, make):
    """The confirming document for two plans of the lab's spec."""

    def build(document, winner=FAST, rival=SLOW, **over):
        source = replace(lab.spec(**over), workload=Backend(kind="torch"))
        return confirming_document({"runner": "fake"} | document, source, winner, rival, lab.home)

    return build


def test_the_two_plans_are_all_that_the_new_campaign_measures(lab, confirming):
    document = confirming({"workload": "fake", "space": {"tp": [4]}, "budget": {"wall_time_s": 60}}, winner=OTHER)
    spec, space = read_spec(document, lab.home)
    assert (list(space), spec.baseline) == ([OTHER], SLOW)
    assert (spec.budget.trials, spec.budget.wall_time_s, spec.confirm) == (2, 60, 1)
    id = lab.service.create(document).id
    lab.run(id)
    assert [(trial.plan, trial.origin) for trial in lab.trials(id)] == [(SLOW, Origin.BASELINE), (OTHER, Origin.SEARCH)]


def test_plans_of_two_batches_are_compared_where_the_batch_was_free(lab, confirming):
    rival = replace(SLOW, grad_accum_steps=4)
    document = confirming({"workload": "fake"}, rival=rival, global_batch_size="free")
    spec, space = read_spec(document, lab.home)
    assert (list(space), spec.baseline, spec.global_batch_size) == ([FAST], rival, None)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "workload: is missing"),
        ({"workload": "fake", "model": "llama3-8b"}, "model: is not that of the campaign, gpt-micro; leave it out"),
        ({"workload": "fake", "cluster": {"preset": "local-cpu", "nodes": 2}}, "cluster: has other devices"),
        ({"workload": "fake", "global_batch_size": 16}, "global_batch_size: is 16, the campaign's is 8; leave it out"),
        ({"workload": "fake", "budget": 5}, "budget: must be a mapping of keys, not 5"),
        ({"workload": {"kind": "torchtitan"}}, "baseline: zero_stage(1)"),
    ],
)
def test_another_question_and_a_plan_without_words_are_refused(confirming, document, words):
    with pytest.raises(InvalidSpec) as refused:
        confirming(document)
    assert words in str(refused.value)


def test_a_setting_that_the_program_cannot_run_is_named(confirming):
    with pytest.raises(InvalidSpec, match=r"space: the plan tp1 pp1 dp4 mbs1 ga2 zero1 cannot run there: zero_stage"):
        confirming({"workload": {"kind": "torchtitan"}}, winner=SLOW, rival=Plan(dp=4, zero_stage=2))


# The commands


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a simulated campaign that is done."""
    folder = tmp_path_factory.mktemp("simulated")
    spec = toy.SPEC | {"budget": {"trials": 8}, "baseline": {"tp": 1, "pp": 1}}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    there = {"workload": "simulated", "runner": {"kind": "simulated", "seed": 2}}
    (folder / "there.yaml").write_text(yaml.safe_dump(there))
    result = run_meshtune(folder, "run", "spec.yaml")
    assert result.code == 0, result
    assert "\nsimulated by: the built-in simulator (hidden cluster 1, cuda)\n" in result.out
    return folder


def source_of(folder: Path) -> str:
    """The id of its first campaign."""
    (found,) = [path.name for path in (folder / ".meshtune" / "campaigns").iterdir() if path.name.startswith("toy-")]
    return found


def test_the_warning_of_an_export_goes_to_standard_error(simulated):
    campaign = source_of(simulated)
    handed = run_meshtune(simulated, "export", campaign, "-o", "out", "--format", "megatron", "--trial", "best")
    assert handed.code == 0
    assert all(line.startswith("wrote out/") for line in handed.out.splitlines())
    warning = "\nwarning: simulated by the built-in simulator (hidden cluster 1, cuda), not measured with Megatron"
    assert handed.err.startswith("start it in out: bash launch.sh")
    assert warning in handed.err
    assert f"    meshtune confirm {campaign} --trial " in handed.err
    assert run_meshtune(simulated, "export", campaign, "-o", "json", "--format", "json").err == ""
    home = simulated / ".meshtune"
    elsewhere = run_meshtune(home, "export", campaign, "-o", "out", "--format", "megatron", "--home", home)
    assert elsewhere.err.endswith(f" --with SPEC.yaml --home {home}\n")


def test_a_winner_is_confirmed_by_a_campaign_of_two_trials(simulated):
    campaign = source_of(simulated)
    asked = ("confirm", campaign, "--with", "there.yaml")
    told = run_meshtune(simulated, *asked)
    assert told.err == ""
    assert "of 1 combinations, search grid, runner simulated; 2 trials" in told.out
    assert told.code == 0, told.out
    assert told.out.splitlines()[-1].startswith("confirmed: ")
    found = json.loads(run_meshtune(simulated, *asked, "--json").out)
    assert (found["campaign"], found["confirmed"]) == (campaign, True)
    assert found["there"]["value"] != found["before"]["value"]
    best = json.loads(run_meshtune(simulated, "best", found["by"], "--json").out)
    assert {entry["plan_key"] for entry in best["best"]} == {found["plan_key"], found["against_key"]}


def test_mistakes_are_told_before_anything_is_started(simulated):
    (simulated / "wrong.yaml").write_text("workload: {kind: torchtitan}\nmodel: llama3-8b\n")
    campaign = source_of(simulated)
    before = run_meshtune(simulated, "show", "--all").out
    refused = run_meshtune(simulated, "confirm", campaign, "--with", "wrong.yaml")
    assert (refused.code, refused.out) == (2, "")
    assert "wrong.yaml: " in refused.err
    assert "cannot be confirmed with it:\n" in refused.err
    assert "the runner simulated cannot run the workload torchtitan" in refused.err
    assert run_meshtune(simulated, "show", "--all").out == before


TINY = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 512, "seq_len": 64}


@pytest.mark.long
def test_what_the_built_in_trainer_found_is_confirmed_with_a_script_of_ones_own(tmp_path):
    example = read_document(ROOT / "examples/bring-your-own/campaign.yaml")
    spec = {
        "model": TINY | {"activation": "gelu", "norm": "layernorm"},
        "cluster": {"preset": "local-cpu", "devices_per_node": 2},
        "global_batch_size": 16,
        "space": {"tp": [1], "pp": [1], "micro_batch_size": [8], "zero_stage": [0], "recompute": ["none"]},
        "workload": {"kind": "torch", "measuring": {"max_steps": 8, "max_seconds": 5, "profile_steps": 0}},
        "runner": {"kind": "local", "idle_s": 0.5},
        "baseline": {"micro_batch_size": 1, "zero_stage": 0},
        "search": "grid",
        "budget": {"trials": 2},
        "confirm": 0,
    }
    script = example["workload"]
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "there.yaml").write_text(yaml.safe_dump({"workload": script}))
    measured = run_meshtune(tmp_path, "run", "spec.yaml")
    assert measured.code == 0, measured
    assert "\nmeasured with: the built-in trainer (torch " in measured.out
    offered = run_meshtune(tmp_path, "export", "last", "-o", "out", "--format", "accelerate", "--trial", "best").err
    command = shlex.split(offered.splitlines()[-1].replace("SPEC.yaml", "there.yaml"))
    assert command[0] == "meshtune"
    told = run_meshtune(tmp_path, *command[1:])
    assert told.code in (0, 1), told
    # Eight times the passes cost more in both programs; how much, this machine's other work decides.
    found = next(line for line in told.out.splitlines() if "confirmed: " in line)
    assert re.search(r"confirmed: [\d.]+ times \(.*\) the baseline with the spec's own command", found), told.out
