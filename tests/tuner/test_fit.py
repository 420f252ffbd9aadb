"""`meshtune fit`: what fits is safe and the fastest, changes are true, and each form of what is asked is read."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from command_lab import run_meshtune

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.recipe import Optimizer
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.cli.render.fit import prediction_lines
from meshtune.tuner.prediction.fit import NUMERICS, TRAINED, fit, plan_words
from meshtune.tuner.prediction.memory_needs import SURE
from meshtune.tuner.prediction.predict import Basis, foresee, training_of
from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.fit_words import (
    PROGRAMS,
    FitWords,
    answer,
    document_here,
    question_of,
    said,
    spec_document,
    targets_of,
)
from meshtune.tuner.specs.read import read_spec

WORDS = FitWords(model="qwen3-8b", on="8xH100", seq=4096)


def question(**words):
    own = replace(WORDS, **words)
    return question_of(*spec_document(own), own)


def fitted(**words):
    return fit(question(**words))


def predicted(asked, columns, **recipe):
    spec = replace(asked.spec, training=replace(asked.spec.training, **recipe))
    return foresee(training_of(spec), columns, UNCALIBRATED)


def test_the_setting_is_safe_and_no_safe_one_is_faster():
    asked = question()
    found, every = fit(asked), predicted(asked, asked.space.columns)
    assert found.fits
    assert found.best.prediction.p_fits >= SURE
    safe = every.fits >= SURE
    fastest = (every.score / every.fits)[safe].max()
    assert found.best.prediction.speed.tokens_per_s.value == pytest.approx(fastest)


def test_a_larger_micro_batch_needs_more_memory_and_the_largest_is_the_last_that_fits():
    small, large = (fitted(micro_batch=size).given for size in (1, 4))
    assert (small.prediction.plan.micro_batch_size, large.prediction.plan.micro_batch_size) == (1, 4)
    assert small.prediction.peak_bytes.value < large.prediction.peak_bytes.value
    asked = question()
    most = fit(asked).largest_micro_batch.prediction
    twice = 2 * most.plan.micro_batch_size
    layouts = [replace(plan, micro_batch_size=twice, grad_accum_steps=1) for plan in asked.space]
    assert most.p_fits >= SURE > predicted(asked, columns_of(layouts)).fits.max()


def test_the_longest_sequence_fits_and_twice_as_long_a_one_does_not():
    longest = fitted().longest_sequence.seq_len
    assert longest > 4096
    assert fitted(seq=longest).fits
    assert not fitted(seq=2 * longest).fits


def test_each_change_is_true_of_the_setting_that_it_changes():
    asked = question(micro_batch=4)
    found = fit(asked)
    own = found.given.prediction
    by_words = {change.words: change for change in found.changes}
    lean = by_words["8-bit optimizer"]
    alone = predicted(asked, columns_of([own.plan]), optimizer=Optimizer.ADAMW_8BIT)
    assert lean.prediction.peak_bytes.value == pytest.approx(alone.memory.peak_bytes[0])
    assert lean.gain_bytes == pytest.approx(own.peak_bytes.value - alone.memory.peak_bytes[0])
    assert lean.time_share == pytest.approx(alone.time.step_s[0] / own.speed.step_s.value - 1)
    assert lean.effect == NUMERICS
    again = by_words["full recomputation"]
    assert again.gain_bytes > 0 < again.time_share
    assert again.effect == ""
    order = [(change.effect == TRAINED, round(change.time_share, 2)) for change in found.changes]
    assert order == sorted(order)
    assert order[-1][0]
    assert {change.prediction.plan for change in found.changes if change.words.startswith("8-bit")} == {own.plan}
    assert all(change.gain_bytes > 0 for change in found.changes)


def test_where_nothing_fits_the_smallest_change_does():
    asked = question(model="Qwen/Qwen3-32B", on="2xH100")
    found = fit(asked)
    assert not found.fits
    assert found.largest_micro_batch is None
    assert found.best.prediction.p_fits == pytest.approx(predicted(asked, asked.space.columns).fits.max(), abs=1e-3)
    assert found.enough.prediction.p_fits >= SURE
    first = next((change for change in found.changes if change.safe), None)
    assert first is None or found.enough == first


def test_the_nearest_of_those_far_away_is_the_leanest():
    asked = question(model="openai/gpt-oss-20b", on="4090", method="qlora", program="fsdp")
    found = fit(asked)
    assert not found.fits
    assert found.best.prediction.peak_bytes.value == pytest.approx(
        predicted(asked, asked.space.columns).memory.peak_bytes.min()
    )


def test_where_no_recipe_helps_more_devices_are_named():
    small = fitted(model="llama3-405b", on="4090", seq=512)
    assert not small.fits
    assert small.enough is None
    assert any("cluster.nodes" in note or "times the nodes" in note for note in small.notes)


def test_lora_leaves_more_room_than_full_training_and_qlora_more_still():
    settings = [fitted(method=method, micro_batch=1).given for method in ("full", "lora", "qlora")]
    peaks = [setting.prediction.memory_parts_bytes for setting in settings]
    assert peaks[0]["optimizer"] > 20 * peaks[1]["optimizer"]
    assert peaks[1]["weights"] > 2 * peaks[2]["weights"]


def test_energy_and_price_follow_from_the_speed():
    best = fitted(price=2.0).best
    hours = 8 * 1e9 / best.prediction.speed.tokens_per_s.value / 3600
    assert best.price_per_1e9_tokens == pytest.approx(2 * hours)
    assert best.wh_per_1e9_tokens == pytest.approx(700 * hours)
    assert fitted().best.price_per_1e9_tokens is None


def test_memory_is_that_of_the_longest_rows_and_speed_that_of_the_mean():
    lengths = (500,) * 980 + (8000,) * 20
    own = fitted(seq=None, lengths=lengths, micro_batch=1).given
    even = fitted(seq=8000, micro_batch=1).given
    assert own.seq_len == 8000
    assert own.prediction.peak_bytes.value == pytest.approx(even.prediction.peak_bytes.value)
    assert own.prediction.speed.step_s.value < even.prediction.speed.step_s.value / 4
    rare = fitted(seq=None, lengths=(500,) * 998 + (8000,) * 2, micro_batch=1).given
    assert rare.seq_len == 500


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_each_program_has_plans(program):
    found = fitted(program=program, model="qwen3-0.6b")
    assert found.fits
    cut = found.best.prediction.plan.tp * found.best.prediction.plan.pp
    assert cut == 1 or program in ("megatron", "torchtitan")


def test_without_a_model_the_largest_of_each_method_is_named():
    largest = answer(FitWords(on="4090", seq=1024)).largest
    assert [*largest] == ["full", "lora", "qlora"]
    full, lora, qlora = largest.values()
    assert full.parameters < lora.parameters < qlora.parameters
    assert qlora.safe


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"model": "qwen3-8c"}, "qwen3-8b"),
        ({"on": "8xH1000"}, "on"),
        ({"on": ""}, "on: names no devices"),
        ({"on": "2xH100,2xA100"}, "leave the small card out"),
        ({"micro_batch": 7}, r"micro_batch_size\(7\) .* but the global batch is 64"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(words, told):
    with pytest.raises((InvalidSpec, InvalidValue), match=told):
        question(**words)


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [("method", "qlor", "qlora"), ("program", "tlr", "trl"), ("optimizer", "adamw8bit", "adamw_8bit")],
)
def test_words_outside_of_a_list_are_refused_with_the_nearest(name, word, meant):
    with pytest.raises(InvalidValue, match=f"^{name}: .*did you mean '{meant}'"):
        said(**{name: word})
    assert said(optimizer="paged_lion_8bit").optimizer is Optimizer.PAGED_LION_8BIT


def test_what_a_program_does_whatever_is_said_is_counted():
    recipes = {program: question(program=program, method="lora").spec.training for program in PROGRAMS}
    assert {program for program, recipe in recipes.items() if recipe.fused_loss} == {"trl", "unsloth"}
    assert [*filter(lambda program: recipes[program].loss_kernel, recipes)] == ["torchtune"]
    assert [*filter(lambda program: recipes[program].layer_kernels, recipes)] == ["unsloth"]
    shared = {program: recipe.adapter.bits for program, recipe in recipes.items() if not recipe.adapter.copies_inputs}
    assert shared == {"unsloth": 32, "torchtune": 16}
    assert question(program="torchtune").spec.training.adapter is None
    own = question(program="unsloth", method="qlora", rank=4).spec.training.adapter
    assert (own.rank, own.copies_inputs) == (4, False)
    whole, tiles = (fitted(program=name, micro_batch=4) for name in ("fsdp", "trl"))
    logits = [found.given.prediction.memory_parts_bytes["logits"] for found in (whole, tiles)]
    assert logits[1] < logits[0] / 4
    changes = [{change.words for change in found.changes} for found in (whole, tiles)]
    assert changes[0] - changes[1] == {"fused loss (Liger, Cut CE)"}


def test_what_a_home_has_learnt_counts():
    asked = question(micro_batch=1)
    sharper = replace(UNCALIBRATED, time_log_sd=UNCALIBRATED.time_log_sd / 2, times=20)
    known = fit(replace(asked, basis=Basis(calibration=sharper)))
    assert known.basis.startswith("calibrated by 20 step times")
    plain, own = (one.given.prediction.speed.step_s for one in (fit(asked), known))
    assert own.high < plain.high


def test_over_the_network_no_file_of_the_server_is_read(tmp_path, monkeypatch):
    there = tmp_path / "models--Qwen--Qwen3-8B" / "snapshots" / "a"
    there.mkdir(parents=True)
    (there / "config.json").write_text("no JSON")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    words = FitWords(model="Qwen/Qwen3-8B", on="8xH100")
    assert answer(words).fit.best.model == "Qwen3-8B"
    with pytest.raises(InvalidValue, match="JSON"):
        spec_document(words, here=True)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InvalidValue, match="no preset"):
        answer(FitWords(model=str(tmp_path), on="8xH100"))


def test_targets_of_peft_are_products():
    every = ["q", "k", "v", "o", "gate", "up", "down"]
    assert targets_of(["q_proj", "model.layers.0.v_proj"]) == (["q", "v"], "")
    assert targets_of(["qkv_proj", "o_proj"]) == (["q", "k", "v", "o"], "")
    assert targets_of("all-linear") == (every, "")
    assert targets_of(".*attn.*") == (every, ".*attn.*")
    assert targets_of(["q_proj", "w_query"]) == (every, "w_query")


def test_a_spec_without_a_command_is_counted_and_not_run(tmp_path):
    (tmp_path / "spec.yaml").write_text(
        "model: {preset: qwen3-8b, seq_len: 4096}\ncluster: dgx-h100\nglobal_batch_size: 64\n"
        "workload: {kind: command, framework: fsdp}\n"
    )
    counted = run_meshtune(tmp_path, "spaces", "spec.yaml")
    assert counted.code == 0, counted.err
    assert "profile-shards-alone" in counted.out
    refused = run_meshtune(tmp_path, "run", "spec.yaml")
    assert refused.code == 2
    assert "workload.command: must name a program" in refused.err


def test_the_abilities_without_a_command_are_those_of_the_profile():
    document = {**spec_document(WORDS)[0], "workload": {"kind": "command", "framework": "megatron-core-bfloat16"}}
    spec, space = read_spec({**document, "space": {}}, None)
    assert {1} != {int(tp) for tp in space.columns["tp"]}
    assert workload_of(spec).framework.name == "Megatron-Core, bf16"
    fixed = {"kind": "command", "framework": "megatron-core-bfloat16", "fixed": {"tp": 2}}
    _, space = read_spec({**document, "workload": fixed, "space": {}}, None)
    assert {2} == {int(tp) for tp in space.columns["tp"]}


LAUNCH = """#!/bin/bash
accelerate launch --multi_gpu --num_processes 8 --mixed_precision bf16 examples/scripts/sft.py \\
    --model_name_or_path Qwen/Qwen2.5-7B --dataset_name trl-lib/Capybara --bf16 --max_length 2048 \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --use_peft --lora_r 32 --output_dir out
"""


def test_a_launch_is_read_as_it_stands(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    done = run_meshtune(tmp_path, "fit", "launch.sh", "--on", "8xH100", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["fit"]
    own = found["given"]["prediction"]
    assert (found["seq_len"], own["plan"]["micro_batch_size"], own["plan"]["grad_accum_steps"]) == (2048, 2, 8)
    assert "LoRA rank 32" in found["given"]["training"]
    assert own["device_bytes"] == 80 * 2**30
    assert [*tmp_path.iterdir()] == [tmp_path / "launch.sh"]


def test_a_launch_keeps_the_rows_of_a_device_on_other_devices(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    (tmp_path / "zero.sh").write_text(
        LAUNCH.replace("--multi_gpu --num_processes 8", "--use_deepspeed --zero_stage 3 --num_processes 8")
    )
    for file, devices in (("launch.sh", 4), ("launch.sh", 1), ("zero.sh", 1), ("zero.sh", 16)):
        done = run_meshtune(tmp_path, "fit", file, "--on", f"{devices}xH100", "--json")
        assert done.code == 0, done.err
        plan = json.loads(done.out)["fit"]["given"]["prediction"]["plan"]
        assert (plan["micro_batch_size"], plan["grad_accum_steps"], plan["dp"]) == (2, 8, devices)
        assert plan["zero_stage"] == (3 if file == "zero.sh" and devices > 1 else 0)


def test_a_launch_without_a_length_asks_for_it(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH.replace("--max_length 2048", ""))
    done = run_meshtune(tmp_path, "fit", "launch.sh", "--on", "8xH100")
    assert done.code == 2
    assert "model.seq_len (--seq)" in done.err


def test_a_checkpoint_of_an_adapter_has_its_rank_and_base(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = {"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 64, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    done = run_meshtune(tmp_path, "fit", "./checkpoint/", "--on", "8xH100")
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    assert "Llama-3.1-8B" in words
    assert "LoRA rank 64, of q v" in words
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "/data/mine"}))
    refused = run_meshtune(tmp_path, "fit", "./checkpoint/", "--on", "8xH100")
    assert refused.code == 2
    assert "/data/mine" in refused.err


def test_the_page_of_a_terminal_names_phases_settings_and_changes(tmp_path):
    done = run_meshtune(tmp_path, "fit", "qwen3-8b", "--on", "8xH100", "--micro-batch", "4")
    assert done.code == 0, done.err
    words = " ".join(done.out.split())
    for told in ("loading ", "first step ", "writing a checkpoint ", "your setting: ", "the fastest that is safe: "):
        assert told in words
    for told in ("largest micro-batch: ", "longest sequence: ", "changes what is trained", "kWh per 1e9 tokens"):
        assert told in words
    assert run_meshtune(tmp_path, "fit").code == 2


def test_estimate_takes_the_same_words(tmp_path):
    done = run_meshtune(tmp_path, "estimate", "Qwen/Qwen3-8B", "--on", "8xH100", "--seq", "2048", "--method", "lora")
    assert done.code == 0, done.err
    assert "LoRA rank 16" in done.out
    (tmp_path / "launch.sh").write_text(LAUNCH)
    launch = run_meshtune(tmp_path, "estimate", "launch.sh", "--on", "4xA100")
    assert launch.code == 0, launch.err
    assert "on 4 x A100-SXM-80GB" in launch.out
    refused = run_meshtune(tmp_path, "estimate", "none.yaml")
    assert "none.yaml: No such file" in refused.err


def changes_of(found):
    return {change.words.partition(" (")[0]: change for change in found.changes}


DDP = """#!/bin/bash
torchrun --nproc_per_node 8 -m trl.scripts.sft --model_name_or_path meta-llama/Llama-3.1-8B \\
    --dataset_name trl-lib/Capybara --bf16 --max_length 2048 --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps 8 --gradient_checkpointing --output_dir out
"""


def test_a_launch_under_ddp_is_offered_sharding_and_no_offload(tmp_path):
    (tmp_path / "full.sh").write_text(DDP)
    done = run_meshtune(tmp_path, "fit", "full.sh", "--on", "8xA100", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)["fit"]
    assert not found["fits"]
    by_stage = {change["prediction"]["plan"]["zero_stage"]: change for change in found["changes"]}
    assert {*by_stage} == {0, 2, 3}
    whole, kept, cut = (by_stage[stage]["prediction"]["memory_parts_bytes"] for stage in (0, 2, 3))
    assert cut["optimizer"] == pytest.approx(
        found["given"]["prediction"]["memory_parts_bytes"]["optimizer"] / 8, rel=0.01
    )
    assert cut["weights"] < kept["weights"] < whole["weights"] * 8
    assert "(FULL_SHARD) over 8 devices" in by_stage[3]["words"]
    assert found["enough"]["prediction"]["plan"]["zero_stage"] in (2, 3)
    assert not any("offloaded" in change["words"] for change in found["changes"])


def test_an_offload_is_offered_where_the_setting_can_have_it():
    kinds = {"optimizer offloaded", "optimizer and weights offloaded"}
    for program, on, offered in (
        ("fsdp", "4xA100", {"optimizer and weights offloaded"}),
        ("fsdp", "A100", set()),
        ("deepspeed", "4xA100", kinds),
        ("deepspeed", "A100", kinds),
        ("megatron", "4xA100", {"optimizer offloaded"}),
        ("unsloth", "4xA100", set()),
        ("deepspeed", "GB10", set()),
    ):
        found = fitted(program=program, on=on, micro_batch=1)
        assert kinds & changes_of(found).keys() == offered, (program, on)
    asked = question(program="deepspeed", on="4xA100", micro_batch=1)
    second = replace(asked, spec=replace(asked.spec, baseline=replace(asked.spec.baseline, zero_stage=2)))
    assert kinds & changes_of(fit(second)).keys() == {"optimizer offloaded"}


def test_memory_that_is_the_hosts_takes_nothing_from_the_device():
    shared = changes_of(fitted(on="GB10", seq=8192, micro_batch=1))
    assert "8-bit optimizer" in shared
    assert not any("offloaded" in words for words in shared)
    assert "activations offloaded" in changes_of(fitted(on="T4", seq=2048, method="qlora"))


def test_an_offload_that_no_host_holds_is_told_and_not_safe():
    found = fitted(model="llama3-405b", on="8xH200", program="deepspeed", seq=512, micro_batch=1)
    heavy = changes_of(found)["optimizer and weights offloaded"]
    assert heavy.prediction.host_optimizer_bytes > 2**41
    assert heavy.prediction.p_fits >= SURE
    assert not heavy.safe
    assert "more than 2048.00 GiB" in heavy.words


def test_a_program_without_4_bits_is_offered_none():
    quantized = {"LoRA on a base of 4 bits"}
    offered = {
        name for name in PROGRAMS if quantized & changes_of(fitted(program=name, on="H100", micro_batch=1)).keys()
    }
    assert PROGRAMS.keys() - offered == {"megatron", "torchtitan"}


@pytest.mark.parametrize("card", ["T4", "V100"])
def test_a_card_without_bfloat16_computes_in_float16(card):
    asked = question(model="qwen3-0.6b", on=card)
    assert training_of(asked.spec).framework.dtype == "float16"
    found = fit(asked)
    assert found.best.prediction.speed is not None
    assert any("float16 is taken" in note for note in found.notes)
    assert training_of(question(on="A100").spec).framework.dtype == "bfloat16"


def test_a_chance_below_the_limit_is_not_printed_as_the_limit():
    one = fitted().best.prediction
    near, safe = (next(iter(prediction_lines(replace(one, p_fits=chance)))) for chance in (0.8996, SURE))
    assert near.endswith("P(fits) 89 %")
    assert safe.endswith("P(fits) 90 %")


def test_the_words_of_an_adapter_are_counted_or_refused(tmp_path):
    file = tmp_path / "adapter_config.json"

    def written(**config):
        file.write_text(json.dumps({"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": 8, **config}))
        return {
            str(place): question_of(*document_here(FitWords(model=str(place), on="8xH100")), WORDS)
            for place in (tmp_path, file)
        }

    folder, same = written(modules_to_save=["embed_tokens", "lm_head"], target_modules=["q_proj"]).values()
    assert folder.spec.training == same.spec.training
    assert folder.spec.training.trained_ends
    assert not folder.notes
    pattern = written(target_modules=".*attn.*")[str(file)]
    assert not pattern.spec.training.trained_ends
    assert len(pattern.spec.training.adapter.targets) == 7
    assert "all linear products are counted" in pattern.notes[0]
    with pytest.raises(InvalidValue, match="peft_type: IA3"):
        written(peft_type="IA3")


def test_a_tower_is_told():
    notes = fitted(model="Qwen/Qwen2.5-VL-7B-Instruct", method="lora").notes
    assert any("tower's 0.677e9 weights are counted" in note and "images are not" in note for note in notes)


def test_experts_of_plain_transformers_are_not_quantized():
    weights = {
        program: fitted(model="openai/gpt-oss-20b", on="H100", method="qlora", program=program, micro_batch=1).given
        for program in ("trl", "unsloth")
    }
    sizes = {name: one.prediction.memory_parts_bytes["weights"] for name, one in weights.items()}
    assert sizes["trl"] > 2.5 * sizes["unsloth"]


def test_many_plans_are_judged_as_if_each_were():
    asked = question(model="deepseek-v3", on="512xH100", program="megatron", batch=4096)
    columns = asked.space.columns
    assert len(asked.space) > 10_000
    every = predicted(asked, columns)
    speed = np.where(every.fits >= SURE, every.score / every.fits, 0)
    assert asked.best(columns).prediction.speed.tokens_per_s.value == pytest.approx(speed.max())


def test_a_step_of_one_micro_batch_is_not_accumulated():
    plan = fitted(micro_batch=8).given.prediction.plan
    assert plan.grad_accum_steps == 1
    assert "accumulated" not in plan_words(plan)


GENERATED = {"model": "Qwen/Qwen2.5-7B", "rollout": (1024, 3072), "micro_batch": 2, "batch": 256}


@pytest.fixture(scope="module")
def generated():
    return fitted(**GENERATED)


def test_where_rows_are_generated_each_phase_has_its_chance_and_its_time(generated):
    given, rows = generated.given, generated.given.generated
    assert given.seq_len == 4096
    assert min(rows.p_fits.values()) == pytest.approx(given.prediction.p_fits)
    assert {str(phase) for phase in rows.p_fits} == {"steady", "generation", "log_probs"} <= {*given.phases_bytes}
    parts = given.prediction.speed.parts_s
    assert sum(rows.phases_s.values()) + parts["refit"] == pytest.approx(sum(parts.values()))
    assert (rows.wanted, rows.in_flight, rows.training_idle) == (32, 32, 0)
    assert fitted().given is None is fitted().best.generated


def test_the_diagram_has_a_share_for_each_micro_batch_and_the_phase_that_fits_least(generated):
    cells = {(cell.share, cell.micro_batch): cell for cell in generated.diagram}
    assert len(cells) == len(generated.diagram) == 9 * 6
    small, large, wide = cells[0.1, 1], cells[0.9, 1], cells[0.3, 32]
    assert (small.phase, small.waits, large.phase, wide.phase) == ("generation", True, "generation", "steady")
    assert max(small.p_fits, large.p_fits, wide.p_fits) < 0.1
    best = generated.fastest_cell
    assert best.p_fits >= SURE
    assert not best.waits
    assert all(cell.step_s >= best.step_s for cell in cells.values() if cell.p_fits >= SURE and not cell.waits)
    assert cells[0.5, 2].p_fits == pytest.approx(generated.given.prediction.p_fits)
    assert not fitted().diagram


def test_engines_of_their_own_are_idle_or_the_training_is():
    asked = question(**GENERATED)
    apart = replace(asked.spec.training.rollout, devices=8, behind=1)
    asked = replace(asked, spec=replace(asked.spec, training=replace(asked.spec.training, rollout=apart)))
    setting = asked.best(columns_of([asked.spec.baseline]))
    rows, step_s = setting.generated, setting.prediction.speed.step_s.value
    training_s = rows.phases_s["steady"] + rows.phases_s["log_probs"]
    longest = max(rows.phases_s["generation"], training_s)
    assert step_s == pytest.approx(longest + setting.prediction.speed.parts_s["refit"])
    assert rows.training_idle == pytest.approx(max(0.0, 1 - training_s / longest), abs=0.01)
    assert min(rows.training_idle, rows.engines_idle) == pytest.approx(0, abs=0.01)


def test_packed_passes_have_a_diagram_in_tokens_of_a_device_and_no_largest_micro_batch(generated):
    asked = question(**GENERATED)
    rollout, cut = asked.spec.training.rollout, replace(asked.spec.baseline, dp=4, cp=2, micro_batch_size=1)
    packed = replace(asked.spec.training, rollout=replace(rollout, update_tokens=2048))
    found = fit(replace(asked, spec=replace(asked.spec, training=packed, baseline=cut)))
    # A pass of a row's 4,096 tokens over two devices.
    same = next(cell for cell in found.diagram if (cell.share, cell.micro_batch) == (rollout.share, 1))
    assert same.p_fits == pytest.approx(found.given.prediction.p_fits)
    assert found.largest_micro_batch is None is not generated.largest_micro_batch
    assert found.longest_sequence.generated.phases_s.keys() == generated.given.generated.phases_s.keys()


def test_a_model_that_generates_by_itself_has_no_share_to_divide():
    asked = question(**GENERATED, program="deepspeed")
    own = replace(asked.spec.training.rollout, share=0.0, graphs=False, max_rows=4)
    found = fit(replace(asked, spec=replace(asked.spec, training=replace(asked.spec.training, rollout=own))))
    assert {cell.share for cell in found.diagram} == {0.0}
    assert not any("share" in change.words or "engine" in change.words for change in found.changes)
    assert found.given.generated.p_fits["generation"] > 0.9


def test_changes_of_the_engine_are_among_those_that_are_offered():
    asked = question(**GENERATED, program="deepspeed")
    awake = replace(asked.spec.training.rollout, sleeps=False, share=0.8)
    asked = replace(asked, spec=replace(asked.spec, training=replace(asked.spec.training, rollout=awake)))
    words = [change.words for change in fit(asked).changes]
    assert "the engine sleeps for an update" in words
    assert any(word.startswith("a smaller share") for word in words)


def test_the_command_draws_the_diagram(tmp_path):
    words = ("Qwen/Qwen2.5-7B", "--on", "8xH100", "--rollout", "1024", "3072", "--micro-batch", "2", "--batch", "64")
    shown = run_meshtune(tmp_path, "fit", *words).out
    assert "log-probabilities: P(fits)" in shown
    assert "rows in flight in an engine: 8 of 8" in shown
    assert any("0.1" in line and "g" in line for line in shown.splitlines())
    assert sum("*" in line for line in shown.splitlines()) >= 2


def test_a_rollout_is_two_numbers():
    with pytest.raises(InvalidValue, match="rollout"):
        said(model="qwen3-8b", on="8xH100", rollout=(1,))


def test_what_starts_a_launch_and_how_many_devices_it_had_do_not_matter(tmp_path):
    """A word that is not known here, and shards over groups of all devices that are asked about."""
    words = (
        "actor_rollout_ref.model.path=Qwen/Qwen3-8B data.train_files=${DATA:?} trainer.nnodes=2 "
        "data.train_batch_size=64 actor_rollout_ref.actor.fsdp_config.fsdp_size=8 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    )
    (tmp_path / "train.sh").write_text(f"python3 -m verl.trainer.main_ppo {words}\n")
    done = run_meshtune(tmp_path, "fit", "train.sh", "--on", "8xH100", "--json")
    assert done.code == 0, done.err
    plan = json.loads(done.out)["fit"]["given"]["prediction"]["plan"]
    assert (plan["dp"], plan["zero_stage"], plan.get("zero_group", 0)) == (8, 3, 0)
