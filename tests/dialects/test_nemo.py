"""NeMo 2, NeMo 1 and Megatron-Bridge read from YAML: what it says, what it leaves open, and what trials get."""

from __future__ import annotations

import pytest
import yaml
from config_lab import Trials, changed, launch, questions
from dialect_cases import cases, stored_for

from meshtune.runners.documents import read_value
from meshtune.runners.programs.dialects.base import CannotRead, Imported
from meshtune.runners.programs.dialects.omegaconf import overridden
from meshtune.runners.programs.log_patterns import Patterns
from meshtune.runners.programs.nemo.reader import (
    is_file,
    is_log,
    is_program,
    read_file_text,
    read_launch,
    read_log,
)
from meshtune.runners.programs.nemo.special import TABLE
from meshtune.search_spaces.model import ModelSpec

GIVEN = stored_for(__name__)["given"]

# Written in the manner of nemo_run/core/serialization/yaml.py: arguments of each call, and its _target_.
RECIPE = GIVEN["recipe"]
CONF = GIVEN["conf"]
DUMP = GIVEN["dump"]
TEXTS = {"RECIPE": RECIPE, "CONF": CONF, "DUMP": DUMP}
NEMO_LENGTH = {
    "trainer.max_steps": (1168251, 15),
    "trainer.val_check_interval": (2000, 15),
    "trainer.limit_val_batches": (32, 0),
    "trainer.log_every_n_steps": (10, 1),
    "trainer.enable_checkpointing": (..., False),
}


def paths(imported: Imported) -> list[str]:
    return [question.path for question in imported.questions]


def answered(imported: Imported, **space) -> Trials:
    return Trials(imported, workload__command=["run", "{directory}/nemo.yaml"], **({"space": space} if space else {}))


def with_words(text: str, *words: str) -> Imported:
    return read_file_text("a.yaml", yaml.safe_dump(overridden(yaml.safe_load(text), words, "here")[0]))


def test_a_recipe_says_model_plan_and_batch(stored):
    assert is_file("a.yaml", RECIPE)
    imported = read_file_text("a.yaml", RECIPE)
    assert imported.model == stored["model"]
    assert imported.plan == stored["plan"]
    assert (imported.global_batch_size, imported.nodes, imported.devices_per_node) == (512, 2, 8)
    assert (imported.workload["dtype"], imported.workload["framework"]) == ("bfloat16", "megatron-core-bfloat16")
    assert paths(imported) == ["workload.command"]


def test_the_baseline_of_a_recipe_is_the_users_and_a_plan_changes_its_keys_alone():
    trials = answered(read_file_text("a.yaml", RECIPE), cp=[1, 2], recompute=["none", "full"], context=["ring"])
    own = yaml.safe_load(RECIPE)
    found = changed(own, trials.config("nemo.yaml"))
    # Recomputation is told to recipes that do not say it, by null as its default is.
    unsaid = {f"model.config.recompute_{part}": (..., None) for part in ("granularity", "method", "num_layers")}
    assert found == NEMO_LENGTH | unsaid | {"log.ckpt": (own["log"]["ckpt"], ...)}
    other = next(plan for plan in trials.space if (plan.tp, plan.pp, plan.cp, plan.recompute) == (1, 4, 2, "full"))
    after = changed(own, trials.config("nemo.yaml", other))
    plans = {key: value for key, value in after.items() if key not in found}
    assert {**plans, "data": None} == {
        "trainer.strategy.tensor_model_parallel_size": (4, 1),
        "trainer.strategy.pipeline_model_parallel_size": (2, 4),
        "trainer.strategy.context_parallel_size": (1, 2),
        "trainer.strategy.sequence_parallel": (True, False),
        **({"data.micro_batch_size": (1, other.micro_batch_size)} if other.micro_batch_size > 1 else {}),
        "data": None,
    }
    assert [after[key][1] for key in unsaid] == ["full", "uniform", 1]
    assert {plan.zero_stage for plan in trials.space if plan.dp * plan.cp > 1} == {1}
    assert {plan.context for plan in trials.space if plan.cp > 1} == {"ring"}


def test_a_configuration_of_nemo_1_is_read_with_its_references(stored):
    imported = read_file_text("megatron_gpt_config.yaml", CONF)
    assert imported.model == stored["model"]
    expected = {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "zero_stage": 1, "recompute": "selective"}
    assert expected.items() <= imported.plan.items()
    trials = answered(imported)
    assert changed(yaml.safe_load(CONF), trials.config("nemo.yaml")) == {
        "trainer.max_steps": (100000, 15),
        "trainer.val_check_interval": (100, 15),
        "trainer.limit_val_batches": (50, 0),
        "trainer.log_every_n_steps": (..., 1),
        "exp_manager.create_checkpoint_callback": (True, False),
        "exp_manager.resume_if_exists": (True, False),
        "model.activations_checkpoint_num_layers": (..., None),
    }
    assert "lr: 2e-4\n" in trials.job().files["nemo.yaml"]


def test_a_start_of_nemo_1_lays_its_words_over_the_file():
    path = "examples/nlp/language_modeling/conf/megatron_gpt_config.yaml"
    script = "examples/nlp/language_modeling/megatron_gpt_pretraining.py"
    words = (
        "trainer.num_nodes=4",
        "model.tensor_model_parallel_size=8",
        "+model.fp8=false",
        "model.sequence_parallel=True",
    )
    start = launch(script, *words, files={path: CONF})
    assert is_program(start)
    imported = read_launch(start)
    assert questions(imported) == []
    assert (imported.nodes, imported.plan["tp"], imported.plan["dp"]) == (4, 8, 4)
    job = Trials(imported, cluster={"preset": "dgx-h100", "nodes": 4}).job()
    assert job.command[-6:] == ("python", script, "--config-path", "/jobs/x", "--config-name", "nemo")
    named = launch(script, "--config-path=/c", "--config-name", "mine", *words, files={"/c/mine.yaml": CONF})
    assert read_launch(named).plan == imported.plan
    with pytest.raises(CannotRead, match=r"the start reads .*megatron_gpt_config\.yaml, which cannot be read here"):
        read_launch(launch(script, *words))


def test_a_configuration_of_megatron_bridge_is_read(stored):
    imported = with_words(DUMP)
    assert imported.model["vocab"] == 128256
    assert imported.model["kv_heads"] == 8
    assert imported.plan == stored["plan"]
    assert paths(imported) == ["workload.command"]
    trials = answered(imported)
    own = yaml.safe_load(DUMP)
    assert changed(own, trials.config("nemo.yaml")) == {
        "train.train_iters": (1000, 15),
        "logger.log_interval": (10, 1),
        "checkpoint.save": ("/ckpt", ...),
        "checkpoint.load": (None, ...),
    }
    other = next(plan for plan in trials.space if plan.tp == 2 and plan.zero_stage == 1 and plan.recompute == "none")
    after = changed(own, trials.config("nemo.yaml", other))
    assert after["optimizer.use_distributed_optimizer"] == after["ddp.use_distributed_optimizer"] == (False, True)
    assert after["model.recompute_granularity"] == ("full", None)
    assert after["model.recompute_method"] == ("uniform", None)
    assert {(plan.pp, plan.vpp, plan.schedule) for plan in trials.space} == {(2, 4, "interleaved")}


@cases
def test_what_pads_the_vocabulary_is_read(text, words, vocab, multiple):
    imported = with_words(TEXTS[text], *words)
    assert (imported.model["vocab"], imported.model.get("vocab_multiple", 0)) == (vocab, multiple)
    told = any("nothing pads the vocabulary" in note for note in imported.notes)
    assert told == (multiple == 1)


def test_the_configuration_is_read_from_the_log_of_megatron_bridge():
    printed = yaml.safe_dump(yaml.safe_load(DUMP))
    text = f"rank 0 starts\nFinal configuration:\n{printed}> initializing torch distributed ...\n"
    assert is_log(text)
    assert not is_log("Final configuration: none")
    assert read_log(text).plan == with_words(DUMP).plan
    with pytest.raises(CannotRead, match="without its configuration"):
        read_log("")


@cases
def test_what_is_not_understood_is_asked(text, words, part):
    imported = with_words(TEXTS[text], *words)
    asked = [question for question in questions(imported) if not question.startswith("workload.command")]
    assert [question[: len(part)] for question in asked if question.startswith(part)] == [part]
    assert len(asked) == 1
    # No value stands where an answer is asked.
    section, _, key = part.partition(":")[0].partition(".")
    parts = {"model": imported.model, "baseline": imported.plan, "workload": imported.workload}
    assert key not in parts.get(section, {})


LATENT = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128}


@pytest.mark.parametrize("queries", [1536, None])
def test_latent_attention_is_read_where_the_file_says_it(queries):
    said = [f"model.{name}={value}" for name, value in (LATENT | {"q_lora_rank": queries or "null"}).items()]
    said.append("model.kv_channels=64")
    imported = with_words(DUMP, "model.multi_latent_attention=true", "model.num_query_groups=32", *said)
    assert imported.model["latent_attention"] == {
        "q_lora_rank": queries or 0,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    assert paths(imported) == ["workload.command"]
    assert read_value(ModelSpec, {"name": "a", **imported.model}).head_dim == 192
    unused = with_words(DUMP, "model.multi_latent_attention=false", *said)
    assert unused.model == read_file_text("a.yaml", DUMP).model | {"head_dim": 64}


@pytest.mark.parametrize("degree", [1, 2])
def test_experts_have_a_degree_of_their_own_which_trials_set(degree):
    words = ["config.num_moe_experts=8", "config.moe_ffn_hidden_size=512"]
    parallel = ["expert_model_parallel_size=4", f"expert_tensor_parallel_size={degree}"]
    sizes = ["tensor_model_parallel_size=2", "pipeline_model_parallel_size=2", "context_parallel_size=1"]
    imported = with_words(
        RECIPE, *(f"model.{word}" for word in words), *(f"trainer.strategy.{word}" for word in (*parallel, *sizes))
    )
    assert (imported.plan["ep"], imported.plan.get("etp")) == (4, None if degree == 2 else 1)
    set_ = imported.workload["configs"]["nemo.yaml"]["set"]
    assert set_["trainer.strategy.expert_tensor_parallel_size"] == "{expert_tp}"


def test_megatron_bridge_cuts_no_experts_that_it_spreads_unless_it_is_said():
    experts = ["num_moe_experts=8", "moe_ffn_hidden_size=512", "expert_model_parallel_size=4"]
    words = [f"model.{word}" for word in (*experts, "tensor_model_parallel_size=2", "sequence_parallel=true")]
    own = with_words(DUMP, *words)
    assert (own.plan["ep"], own.plan["etp"]) == (4, 1)
    assert own.workload["configs"]["nemo.yaml"]["set"]["model.expert_tensor_parallel_size"] == "{expert_tp}"
    assert "etp" not in with_words(DUMP, *words, "model.expert_tensor_parallel_size=2").plan


def test_instances_of_the_optimizer_are_groups_that_are_sharded_over():
    one_stage = ["trainer.strategy.pipeline_model_parallel_size=1", "trainer.strategy.tensor_model_parallel_size=2"]
    imported = with_words(RECIPE, *one_stage, "trainer.strategy.num_distributed_optimizer_instances=2")
    assert (imported.plan["zero_stage"], imported.plan["zero_group"]) == (1, 4)
    set_ = imported.workload["configs"]["nemo.yaml"]["set"]
    assert set_["trainer.strategy.num_distributed_optimizer_instances"] == "{zero_groups}"


def test_embedding_and_loss_count_as_layers_of_the_pipeline():
    counted = [f"trainer.strategy.account_for_{part}_in_pipeline_split=true" for part in ("embedding", "loss")]
    ends = {"first_stage_less_layers": 1, "last_stage_less_layers": 1}
    four = with_words(RECIPE, *counted, "trainer.strategy.pipeline_model_parallel_size=4")
    assert ends.items() <= four.plan.items()
    assert ends.items() <= four.workload["fixed"].items()
    two = with_words(RECIPE, *counted)
    assert not ends.keys() & two.plan.keys()
    assert two.workload["fixed"]["pp"] == 2


def test_a_class_that_is_not_known_leaves_its_shapes_open():
    imported = with_words(RECIPE, "model.config._target_=nemo.collections.llm.gpt.model.nemotron.Nemotron4Config340B")
    assert set(paths(imported)) == {
        *(
            "model.layers",
            "model.hidden",
            "model.heads",
            "model.ffn",
            "model.kv_heads",
            "model.norm",
            "model.position",
            "model.activation",
            "model.tied_head",
        ),
        "workload.command",
    }
    assert imported.model == {"seq_len": 8192, "vocab": 128256, "vocab_multiple": 1}


def test_a_model_that_is_restored_has_no_shapes_in_the_configuration():
    unsaid = ("normalization", "activation", "position_embedding_type", "share_embeddings_and_output_weights")
    words = [f"model.{name}=null" for name in ("num_layers", *unsaid)]
    imported = with_words(CONF, *words, "model.restore_from_path=/m.nemo")
    asked = {"layers", "kv_heads", "norm", "position", "activation", "tied_head"}
    assert {f"model.{name}" for name in asked} <= set(paths(imported))
    assert not asked & imported.model.keys()


@cases
def test_what_cannot_be_read_is_refused_by_name(text, words, part):
    with pytest.raises(CannotRead, match=part):
        with_words(TEXTS[text], *words)


def test_starts_that_name_a_file_are_read_and_recipes_in_python_are_refused():
    words = ("--yaml", "a.yaml", "data.micro_batch_size=2", "-v")
    start = launch("task.py", *words, files={"a.yaml": RECIPE})
    assert is_program(start)
    imported = read_launch(start)
    assert imported.plan["micro_batch_size"] == 2
    assert imported.workload["command"] == ["python", "task.py", "--yaml", "{directory}/nemo.yaml", "-v"]
    recipe = launch("scripts/training/run_recipe.py", "--recipe", "llama3_8b_pretrain_config", "-tp", "2")
    assert is_program(recipe)
    with pytest.raises(CannotRead, match=r"starts a recipe in Python, which is not read. Next: print it as YAML"):
        read_launch(recipe)
    assert not is_program(launch("train.py", "--config-file", "a.yaml", files={"a.yaml": "a: 1"}))


def test_the_lines_of_their_logs_are_read():
    """Written from nemo/lightning/pytorch/callbacks/progress_printer.py, tqdm's bar and Megatron's training log."""
    nemo, bridge = (Patterns(TABLE.variant(name).lists["log"]) for name in ("nemo-2", "megatron-bridge"))
    printed = "iteration 3/14 | lr: 6e-07 | global_step: 3 | reduced_train_loss: 11.03 | train_step_timing in s: 2.351"
    bar = "20%|##| 3/14 [00:09<00:31, reduced_train_loss=11.03, global_step=3.000, train_step_timing in s=2.351]"
    for line in (printed, bar):
        assert [nemo.find(name, line).value for name in ("step", "step_time_s", "loss")] == [3, 2.351, 11.03]
    line = (
        f" [2026-01-01 00:00:00] iteration {3:8d}/{15:8d} | consumed samples: {192:12d} |"
        f" elapsed time per iteration (ms): {1234.5:.1f} | global batch size: {64:5d} | lm loss: {11.03:.6E} |"
    )
    assert [bridge.find(name, line).value for name in ("step", "step_time_ms", "loss")] == [3, 1234.5, 11.03]
