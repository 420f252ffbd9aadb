"""`meshtune fit`: what fits is safe and the fastest, changes are true, and each form of what is asked is read."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from command_lab import run_meshtune

from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.columns import columns_of
from meshtune.search_spaces.physics.constants import UNCALIBRATED
from meshtune.search_spaces.physics.recipes import with_recipe
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.recipe import Optimizer
from meshtune.tuner.campaign.spec import workload_of
from meshtune.tuner.prediction.fit import Effect, fit
from meshtune.tuner.prediction.memory_needs import SURE
from meshtune.tuner.prediction.predict import foresee
from meshtune.tuner.specs.fit_words import PROGRAMS, FitWords, answer, question_of, said, spec_document, targets_of
from meshtune.tuner.specs.read import read_spec

WORDS = FitWords(model="qwen3-8b", on="8xH100", seq=4096)


def question(**words):
    own = replace(WORDS, **words)
    return question_of(spec_document(own), own)


def fitted(**words):
    return fit(question(**words))


def predicted(asked, columns):
    context = asked.space.context
    training = Training(context.model, context.cluster, with_recipe(asked.framework, asked.recipe), asked.recipe)
    return foresee(training, columns, UNCALIBRATED)


def test_the_setting_is_safe_and_no_safe_one_is_faster():
    asked = question()
    found, every = fit(asked), predicted(asked, asked.space.columns)
    assert found.fits
    assert found.best.p_fits >= SURE
    safe = every.fits >= SURE
    fastest = (every.score / every.fits)[safe].max()
    assert found.best.tokens_per_s.value == pytest.approx(fastest)


def test_a_larger_micro_batch_needs_more_memory_and_the_largest_is_the_last_that_fits():
    small, large = (fitted(micro_batch=size).given for size in (1, 4))
    assert (small.plan.micro_batch_size, large.plan.micro_batch_size) == (1, 4)
    assert small.peak_bytes.value < large.peak_bytes.value
    asked = question()
    most = fit(asked).micro_batch_size
    layouts = [replace(plan, micro_batch_size=2 * most.value, grad_accum_steps=1) for plan in asked.space]
    assert most.setting.p_fits >= SURE > predicted(asked, columns_of(layouts)).fits.max()


def test_the_longest_sequence_fits_and_twice_as_long_a_one_does_not():
    longest = fitted().seq_len_most.value
    assert longest > 4096
    assert fitted(seq=longest).fits
    assert not fitted(seq=2 * longest).fits


def test_each_change_is_true_of_the_setting_that_it_changes():
    asked = question(micro_batch=4)
    found = fit(asked)
    own = found.given
    by_words = {change.words: change for change in found.changes}
    lean = by_words["8-bit optimizer"]
    recipe = replace(asked.recipe, optimizer=Optimizer.ADAMW_8BIT)
    alone = predicted(replace(asked, recipe=recipe), columns_of([own.plan]))
    assert lean.peak_bytes == pytest.approx(alone.memory.peak_bytes[0])
    assert lean.gain_bytes == pytest.approx(own.peak_bytes.value - alone.memory.peak_bytes[0])
    assert lean.time_share == pytest.approx(alone.time.step_s[0] / own.step_s.value - 1)
    assert lean.effect is Effect.NUMERICS
    again = by_words["full recomputation"]
    assert again.gain_bytes > 0 < again.time_share
    assert again.effect is Effect.NONE
    effects = [change.effect for change in found.changes]
    assert effects == sorted(effects, key=list(Effect).index)
    assert all(change.gain_bytes > 0 for change in found.changes)


def test_where_nothing_fits_the_smallest_change_does():
    asked = question(model="Qwen/Qwen3-32B", on="2xH100")
    found = fit(asked)
    assert not found.fits
    assert found.micro_batch_size is None
    assert found.best.p_fits == pytest.approx(predicted(asked, asked.space.columns).fits.max(), abs=1e-3)
    assert found.enough.p_fits >= SURE
    first = next((change for change in found.changes if change.p_fits >= SURE), None)
    assert first is None or found.enough == first


def test_where_no_recipe_helps_more_devices_are_named():
    small = fitted(model="llama3-405b", on="4090", seq=512)
    assert not small.fits
    assert small.enough is None
    assert any("cluster.nodes" in note or "times the nodes" in note for note in small.notes)


def test_lora_leaves_more_room_than_full_training_and_qlora_more_still():
    peaks = [fitted(method=method, micro_batch=1).given.parts_bytes for method in ("full", "lora", "qlora")]
    assert peaks[0]["optimizer"] > 20 * peaks[1]["optimizer"]
    assert peaks[1]["weights"] > 2 * peaks[2]["weights"]


def test_energy_and_price_follow_from_the_speed():
    best = fitted(price=2.0).best
    hours = 8 * 1e9 / best.tokens_per_s.value / 3600
    assert best.price_per_1e9_tokens == pytest.approx(2 * hours)
    assert best.wh_per_1e9_tokens == pytest.approx(700 * hours)
    assert fitted().best.price_per_1e9_tokens is None


def test_memory_is_that_of_the_longest_rows_and_speed_that_of_the_mean():
    lengths = (500,) * 980 + (8000,) * 20
    own = fitted(seq=None, lengths=lengths, micro_batch=1).given
    even = fitted(seq=8000, micro_batch=1).given
    assert own.seq_len == 8000
    assert own.peak_bytes.value == pytest.approx(even.peak_bytes.value)
    assert own.step_s.value < even.step_s.value / 4
    rare = fitted(seq=None, lengths=(500,) * 998 + (8000,) * 2, micro_batch=1).given
    assert rare.seq_len == 500


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_each_program_has_plans(program):
    found = fitted(program=program, model="qwen3-0.6b")
    assert found.fits
    cut = found.best.plan.tp * found.best.plan.pp
    assert cut == 1 or program in ("megatron", "torchtitan")


def test_without_a_model_the_largest_of_each_method_is_named():
    full, lora, qlora = answer(FitWords(on="4090", seq=1024)).largest
    assert (full.method, lora.method, qlora.method) == ("full", "lora", "qlora")
    assert full.parameters < lora.parameters < qlora.parameters
    assert qlora.setting.p_fits >= SURE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"model": "qwen3-8c"}, "qwen3-8b"),
        ({"on": "8xH1000"}, "on"),
        ({"on": ""}, "on: names no devices"),
        ({"on": "2xH100,2xA100"}, "leave the small card out"),
        ({"micro_batch": 7}, "micro_batch: is 7"),
    ],
)
def test_what_is_not_known_is_refused_by_its_name(words, told):
    with pytest.raises(InvalidValue, match=told):
        question(**words)


@pytest.mark.parametrize("name", ["method", "program", "optimizer"])
def test_words_outside_of_a_list_are_refused(name):
    with pytest.raises(InvalidValue, match=name):
        said(**{name: "fsbp"})


def test_targets_of_peft_are_products():
    assert targets_of(["q_proj", "model.layers.0.v_proj"]) == ["q", "v"]
    assert targets_of(["qkv_proj", "o_proj"]) == ["q", "k", "v", "o"]
    assert targets_of("all-linear") == ["q", "k", "v", "o", "gate", "up", "down"]


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
    document = {**spec_document(WORDS), "workload": {"kind": "command", "framework": "megatron-core-bfloat16"}}
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
    assert (found["seq_len"], found["given"]["plan"]["micro_batch_size"]) == (2048, 2)
    assert found["given"]["plan"]["grad_accum_steps"] == 8
    assert "LoRA rank 32" in found["training"]
    assert found["device_bytes"] == 80 * 2**30
    assert [*tmp_path.iterdir()] == [tmp_path / "launch.sh"]


def test_a_launch_keeps_the_rows_of_a_device_on_other_devices(tmp_path):
    (tmp_path / "launch.sh").write_text(LAUNCH)
    (tmp_path / "zero.sh").write_text(
        LAUNCH.replace("--multi_gpu --num_processes 8", "--use_deepspeed --zero_stage 3 --num_processes 8")
    )
    for file, devices in (("launch.sh", 4), ("launch.sh", 1), ("zero.sh", 1), ("zero.sh", 16)):
        done = run_meshtune(tmp_path, "fit", file, "--on", f"{devices}xH100", "--json")
        assert done.code == 0, done.err
        plan = json.loads(done.out)["fit"]["given"]["plan"]
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
