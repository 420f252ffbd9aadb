"""What torchtitan's files, flags, starts and logs become: values where they were read, else questions."""

from __future__ import annotations

import json
import re

import pytest
from dialect_cases import cases, stored_for
from torchtitan_lab import read_text

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported, Launch
from meshtune.runners.programs.torchtitan.configuration import KEYS_0_2, OLD, RENAMED
from meshtune.runners.programs.torchtitan.options import TABLE
from meshtune.runners.programs.torchtitan.reader import (
    is_file,
    is_log,
    is_program,
    read_file_text,
    read_launch,
    read_log,
)
from meshtune.runners.programs.torchtitan.special import shapes_of, stage_sizes
from meshtune.search_spaces.model import ModelSpec

MODELS = TABLE.lists["models"]
GIVEN = stored_for(__name__)["given"]

UNKNOWN = "\x01$LBS\x02"
LLAMA = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'


def launch(script: str, *words: str, files: dict[str, str] | None = None, nodes: int | None = 2, **env: str) -> Launch:
    return Launch(
        script=script,
        words=words,
        place="line 9",
        nodes=nodes,
        devices_per_node=8,
        directory="/opt/titan",
        env=env,
        files=files or {},
    )


def asked(imported: Imported) -> list[str]:
    return [str(question) for question in imported.questions]


def start(toml: str, *words: str, **more) -> Imported:
    return read_launch(
        launch("-m torchtitan.train", "--job.config_file", "a.toml", *words, files={"a.toml": toml}, **more)
    )


@cases
def test_a_start_is_recognised_by_program_and_arguments(script, words, whether):
    assert is_program(launch(script, *words)) is whether


@pytest.mark.parametrize(
    ("name", "text", "whether"),
    [
        ("a.toml", LLAMA, True),
        ("a.toml", "[training]\nbatch_size = 1\n[experimental]\npipeline_parallel_degree = 2\n", True),
        ("pyproject.toml", '[project]\nname = "x"\n', False),
        ("a.yaml", LLAMA, False),
        ("a.toml", "[parallelism\n[parallelism]\n", True),
    ],
)
def test_a_file_is_recognised_by_its_sections(name, text, whether):
    assert is_file(name, text) is whether


def test_flags_lie_over_the_file_and_the_devices_resolve_what_is_left(stored):
    imported = start(
        LLAMA + "steps = 1000\n[metrics]\nlog_freq = 10\n",
        *("--training.local-batch-size", "4", "--parallelism.tensor_parallel_degree=8", "--compile.enable"),
        *("--metrics.log_freq", "5"),
    )
    assert dict(imported.plan) == stored["plan"]
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (8, 2, 8)
    assert (imported.model["layers"], imported.model["vocab"], imported.model["seq_len"]) == (32, 128256, 8192)
    assert imported.workload == stored["workload"]
    assert asked(imported) == []
    assert any("compile.enable" in note and "torch.compile" in note for note in imported.notes)


def test_a_value_that_is_not_known_is_left_empty_and_asked_for():
    words = ("--training.local_batch_size", UNKNOWN, "--parallelism.tensor_parallel_degree", UNKNOWN)
    imported = start(LLAMA, *words, "--training.dataset", UNKNOWN)
    assert asked(imported) == [
        "baseline.tp: parallelism.tensor_parallel_degree $LBS: what it holds is not known here; fill it in",
        "baseline.micro_batch_size: training.local_batch_size $LBS: what it holds is not known here; fill it in",
        "training.dataset $LBS: fill in what it holds in the workload's settings",
    ]
    assert not {"tp", "dp", "micro_batch_size"} & imported.plan.keys()


@pytest.mark.parametrize("words", [(UNKNOWN, "--compile.enable"), ("--compile.enable", "true")])
def test_words_that_may_hold_flags_are_asked(words):
    """$EXTRA beside the file, or before the first flag, changed nothing and was not asked."""
    words = (*words, "--job.config_file", "a.toml", *((UNKNOWN,) if words[0] != UNKNOWN else ()))
    (question,) = read_launch(launch("-m torchtitan.train", *words, files={"a.toml": LLAMA})).questions
    assert (question.path, "line 9: $LBS is not known here and may hold further flags" in question.text) == ("", True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--job.config_file", "b.toml"),
            r"configured by b\.toml, which cannot be read here .*where the file is: meshtune import b\.toml",
        ),
        (("--job.config_file", UNKNOWN), r"configured by \$LBS, which is not known here\. Next: "),
        (("--training.steps", "5"), r"without --job\.config_file .* next: meshtune import its \.toml file, or the log"),
    ],
)
def test_a_start_without_its_file_is_refused_with_the_next_command(words, told):
    with pytest.raises(CannotRead, match=f"^line 9: torchtitan is .*{told}"):
        read_launch(launch("-m torchtitan.train", *words))


def test_torchtitans_own_shell_script_is_read_by_its_environment():
    file = launch("./run_train.sh", files={"a.toml": LLAMA}, nodes=None, CONFIG_FILE="a.toml", NGPU="4", X="1")
    imported = read_launch(file)
    assert (imported.nodes, imported.plan["dp"], imported.workload["env"]) == (1, 8, {"X": "1"})
    function = launch("run_train.sh", "--parallelism.tensor_parallel_degree", "2", MODULE="llama3", CONFIG="llama3_8b")
    assert read_launch(function).plan["dp"] == 8


def test_flags_of_0_3_lie_over_its_configuration_function(stored):
    words = (
        "--module",
        "llama3",
        "--config",
        "llama3_70b",
        "--training.local_batch_size",
        "2",
        "activation-checkpoint:none",
    )
    imported = read_launch(launch("-m torchtitan.train", *words))
    assert dict(imported.plan) == stored["plan"]
    assert imported.workload["arguments"] == ["--module llama3", "--config llama3_70b"]
    assert (imported.workload["release"], imported.model["layers"], asked(imported)) == ("v0.3", 80, [])


def test_what_a_function_of_the_users_sets_is_asked_for():
    words = ("--module", "mine", "--config", "big", "--parallelism.tensor_parallel_degree", "2")
    imported = read_launch(launch("-m torchtitan.train", *words))
    assert dict(imported.plan) == {"tp": 2}
    degrees = ("pipeline_parallel_degree 1", "data_parallel_shard_degree 4")
    flags = ["--module mine", "--config big", "--training.local_batch_size 2", *(f"--parallelism.{d}" for d in degrees)]
    sized = read_text("\n".join(flags))
    # The function may set the global batch.
    assert (sized.global_batch_size, sized.plan["micro_batch_size"]) == (None, 2)
    assert "baseline.micro_batch_size" in asked(imported)[-1]
    assert "the model is not said: fill in its shapes" in asked(imported)
    assert imported.workload.get("dtype") is None


# In the manner of train_configs/llama3_70b.toml of October 2024, all of the old names that plans need.
OLD_FILE = GIVEN["old_file"]


def test_a_file_of_2024_is_read_by_its_own_names_and_written_in_those_of_0_2(stored):
    imported = start(OLD_FILE)
    assert dict(imported.plan) == stored["plan"]
    config = imported.workload["config"]
    assert (config["lr_scheduler"], config["compile"], config["checkpoint"]) == (
        *({"warmup_steps": 200}, {"enable": True}, {"enable": False}),
    )
    assert config["model"]["converters"] == ["float8"]
    assert not {"experimental", "float8", "job", "training"} & config.keys()
    # Which torchtitan runs the trials is the user's to say.
    assert [question.path for question in imported.questions] == ["workload.release"]
    assert "release" not in imported.workload


def test_a_batch_that_the_ranks_do_not_divide_is_asked_with_both_numbers():
    batch = "[training]\nlocal_batch_size = 4\nglobal_batch_size = 9\n"
    imported = read_file_text("", f"{batch}[parallelism]\ndata_parallel_shard_degree = 2\n")
    (question,) = imported.questions
    assert question.path == "global_batch_size"
    assert "micro_batch_size(4) * dp(2) does not divide global_batch_size(9)" in question.text
    assert imported.global_batch_size is None


def test_experts_may_take_tensor_ranks_and_the_shapes_are_those_of_the_name():
    degrees = "[parallelism]\ntensor_parallel_degree = 2\nexpert_parallel_degree = 8\n"
    file = f'[model]\nname = "qwen3"\nflavor = "30B-A3B"\n{degrees}'
    imported = read_file_text("", file)
    assert (imported.model["experts"], imported.model["top_k"], imported.model["head_dim"]) == (128, 8, 128)
    assert (imported.plan["ep"], imported.plan["etp"], imported.questions) == (8, 1, ())
    flags = read_text(
        "--module qwen3\n--config qwen3_30b_a3b\n"
        + "".join(f"--parallelism.{name}\n" for name in ("tensor_parallel_degree 2", "expert_parallel_degree 8"))
    )
    assert (flags.plan["ep"], flags.plan["etp"]) == (8, 1)
    cut = read_file_text("", f"{file}expert_tensor_parallel_degree = 2\n")
    assert (cut.plan["ep"], "etp" in cut.plan, cut.questions) == (8, False, ())


@cases
def test_old_names_say_what_they_said(old, plan):
    assert plan.items() <= read_file_text("a.toml", old).plan.items()


def test_no_old_name_is_one_of_0_2_and_every_new_name_is():
    assert not OLD & KEYS_0_2
    assert set(RENAMED.values()) - KEYS_0_2 == {
        *(f"parallelism.pipeline_parallel_{name}" for name in ("microbatches", "split_points")),
    }


@cases
def test_what_is_not_understood_is_a_question(text, path, told):
    imported = read_file_text("a.toml", f"{LLAMA}[parallelism]\n{text}\n")
    (question,) = imported.questions
    assert question.path == path
    assert told.replace("\\", "") in question.text
    section, _, key = path.partition(".")
    assert key not in {"baseline": imported.plan, "workload": imported.workload}.get(section, {})


def test_equal_stages_by_the_rule_of_torchtitan_are_no_question():
    # (32 + 1 + 1) / 2 = 17 for each of two stages, one of them embedding or head.
    assert stage_sizes(2, 32, 1, 1) == [16, 16]
    assert asked(read_file_text("", f"{LLAMA}[parallelism]\npipeline_parallel_degree = 2\n")) == []
    chunks = "pipeline_parallel_schedule = 'Interleaved1F1B'\npipeline_parallel_layers_per_stage = 4\n"
    ends = "".join(f"pipeline_parallel_{end}_stage_less_layers = 0\n" for end in ("first", "last"))
    imported = read_file_text("", f"{LLAMA}[parallelism]\npipeline_parallel_degree = 4\n{chunks}{ends}")
    assert (imported.plan["vpp"], asked(imported)) == (2, [])


@cases
def test_what_stays_as_it_is_and_predictions_do_not_know_is_a_note(text, told):
    imported = read_file_text("", f"{text}\n")
    assert asked(imported) == []
    assert any(told in note for note in imported.notes)


def test_torchtitans_defaults_are_those_of_its_release():
    """The baseline said no recomputation where torchtitan recomputes every second layer."""
    plan = read_file_text("", LLAMA).plan
    assert (plan["recompute"], plan["recompute_interval"]) == ("full", 2)
    function = read_text("--module llama3\n--config llama3_8b\n")
    assert (function.plan["recompute"], function.plan["micro_batch_size"], function.model["seq_len"]) == (
        "selective",
        1,
        8192,
    )


def test_models_that_are_no_language_models_are_refused_and_others_asked_for():
    with pytest.raises(CannotRead, match=r"^torchtitan's flux is an image model"):
        read_file_text("", '[model]\nname = "flux"\n')
    imported = read_file_text("", '[model]\nname = "qwen3_5"\nflavor = "16B"\n')
    assert "linear attention" in asked(imported)[0]
    assert dict(imported.model) == {"seq_len": 2048}


@pytest.mark.parametrize(("model", "flavor"), [(model, flavor) for model, known in MODELS.items() for flavor in known])
def test_the_shapes_of_each_flavor_make_a_model(model, flavor):
    sizes = read_value(ModelSpec, {**shapes_of(model, flavor), "seq_len": 4096})
    assert sizes.mtp_layers == 0
    # 8B, 1.7B, 30B-A3B, 671B: what is called so has about as many weights.
    said = re.match(r"([\d.]+)b", flavor.lower())
    assert said is None or sizes.parameters == pytest.approx(float(said[1]) * 1e9, rel=0.3)


def test_every_configuration_function_names_a_model_that_is_known():
    for settings in TABLE.lists["functions"].values():
        assert shapes_of(settings["model.name"], settings["model.flavor"])


HEAD = "[titan] 2026-11-23 10:00:00,123 - root - INFO - "
DUMP = GIVEN["dump"]
MODEL_ARGUMENTS = {"dim": 256, "n_layers": 8, "n_heads": 16, "n_kv_heads": None, "vocab_size": 2000, "multiple_of": 256}
PLAN = GIVEN["plan"]


def log(dump: str, mesh: str, model: str) -> str:
    lines = [f"Running with {dump}", mesh, f"Building llama3 debugmodel{model}", "Training starts at step 1"]
    return "".join(f"{HEAD}{line}\n" for line in lines)


# torchtitan/train.py and distributed/parallel_dims.py at v0.2.2 and v0.2.0.
NEW_LOG = log(
    f"configs: {json.dumps(DUMP, indent=2)}",
    "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1, etp=1",
    f"with {json.dumps(MODEL_ARGUMENTS, indent=2)}",
)
OLD_LOG = log(
    f"args: {DUMP}",
    "Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
    " with TransformerModelArgs(dim=256, n_layers=8, n_heads=16, n_kv_heads=None, vocab_size=2000, multiple_of=256)",
)


@pytest.mark.parametrize("text", [NEW_LOG, OLD_LOG, "".join(f"[rank0]:{line}\n" for line in NEW_LOG.splitlines())])
def test_a_log_says_what_the_run_resolved(text):
    assert is_log(text)
    imported = read_log(text)
    assert (dict(imported.plan), imported.global_batch_size, asked(imported)) == (PLAN, 16, [])
    assert (imported.model["layers"], imported.model["ffn"], imported.model["vocab"]) == (8, 768, 2000)
    assert imported.workload["config"]["model"] == {"name": "llama3", "flavor": "debugmodel"}
    assert (imported.workload["dtype"], imported.workload["release"]) == ("float32", "v0.2")


@pytest.mark.parametrize(
    ("policy", "recompute"),
    [
        (None, "none"),
        ({"early_stop": True}, "full"),
        ({"force_recompute_mm_shapes_by_fqns": []}, "selective"),
        ({"memory_budget": 0.5}, None),
    ],
)
def test_a_configuration_that_0_3_prints_names_model_and_recomputation_by_their_fields(policy, recompute):
    training = {**DUMP["training"], "disable_cuda_graphs": False}
    spec = {"name": "qwen3", "flavor": "30B-A3B", "model": {"dim": 2048}}
    dump = {"model_spec": spec, "training": training, "parallelism": {"data_parallel_shard_degree": -1}}
    imported = read_log(f"{HEAD}Running with configs: {json.dumps({**dump, 'activation_checkpoint': policy})}\n")
    assert (imported.workload["release"], imported.model["experts"], imported.plan["tp"]) == ("v0.3", 128, 1)
    assert imported.plan.get("recompute") == recompute
    paths = [question.path for question in imported.questions]
    assert paths == [*([] if recompute else ["baseline.recompute"]), "workload.arguments"]


def test_the_dumps_of_two_ranks_do_not_mix():
    lines = NEW_LOG.splitlines()
    mixed = [f"[rank{rank}]:{line}" for line in lines for rank in (1, 0)]
    assert dict(read_log("\n".join(mixed)).plan) == PLAN


def test_a_log_without_its_configuration_is_refused_with_the_next_command():
    text = NEW_LOG.partition("Running")[2].partition("Building")[2]
    text = f"{HEAD}Building{text}{HEAD}step:  1  loss:  8.0\n"
    assert is_log(text)
    with pytest.raises(CannotRead, match=r"Next: run it for a step with --job\.print_config"):
        read_log(text)
    assert not is_log("Building a house\nstep: 1")


@pytest.mark.parametrize("dump", ["configs: {", "configs: {'a': " + "[" * 100, "args: {'a': __import__('os')}\n"])
def test_a_dump_that_is_cut_off_is_told(dump):
    with pytest.raises(CannotRead, match=r"^the configuration in the log cannot be read"):
        read_log(f"{HEAD}Running with {dump}")
