"""Launch scripts that are sent, and that no file of the service's machine is read for them."""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

from meshtune.runners.untrusted_text import READABLE
from meshtune.search_spaces.checks import InvalidValue
from meshtune.tuner.access.tokens import Scope
from meshtune.tuner.specs.import_script import FOLDER, SentScript, import_sent

MEGATRON = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
GBS=${GBS:-256}
srun torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size $GBS --bf16 --lr 3e-4 --train-iters 1000 \\
  --tokenizer-type NullTokenizer --vocab-size 50000 --mock-data
"""
TRAINER = (
    "torchrun --nproc-per-node 8 train.py --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 "
    "--gradient_accumulation_steps 4 --bf16 --fsdp full_shard --output_dir $PWD/out --learning_rate 1e-5\n"
)
TRAIN = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=None, args=args).train()
"""
DEEPSPEED = "deepspeed --num_gpus 8 train.py --deepspeed_config configs/ds.json --layers 4\n"
ZERO = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},
 "zero_optimization": {"stage": 3}}"""


@pytest.fixture
def sent(shared_client):
    def made(script, **more):
        shown = shared_client.post("/v1/imports", json={"script": script, **more})
        assert shown.status_code == 200, shown.text
        return shown.json()

    return made


def test_a_megatron_script_is_a_spec_whose_baseline_is_its_setting(sent):
    made = sent(MEGATRON, name="pretrain.sh", cluster="dgx-h100")
    spec = yaml.safe_load(made["spec"])
    assert made["program"] == "Megatron"
    assert spec["name"] == "pretrain"
    assert spec["workload"]["kind"] == "megatron"
    assert spec["cluster"] == {"preset": "dgx-h100", "nodes": 4}
    assert (spec["baseline"]["tp"], spec["baseline"]["pp"], spec["global_batch_size"]) == (4, 2, 256)
    assert made["missing"] == []
    assert sent(MEGATRON, set={"GBS": "512"})["spec"].count("global_batch_size: 512") == 1
    assert "cluster" in sent(MEGATRON)["missing"]


def test_only_a_folder_that_the_script_leaves_open_is_asked_for(sent):
    asked = [one["path"] for one in sent(MEGATRON)["questions"]]
    assert asked.count("workload.directory") == 1
    named = sent(MEGATRON.replace("srun", "cd /opt/Megatron-LM\nsrun"))
    assert yaml.safe_load(named["spec"])["workload"]["directory"] == "/opt/Megatron-LM"
    assert "workload.directory" not in [one["path"] for one in named["questions"]]


def test_a_script_of_the_trainer_is_read_with_its_python(sent):
    made = sent(TRAINER, files={"train.py": TRAIN}, cluster="dgx-h100")
    spec = yaml.safe_load(made["spec"])
    assert spec["workload"]["kind"] == "command"
    assert spec["baseline"]["micro_batch_size"] == 2
    assert f"{FOLDER}/out" in made["spec"] or FOLDER not in made["spec"]


def test_a_deepspeed_start_is_read_with_its_config(sent, shared_client, problem):
    spec = yaml.safe_load(sent(DEEPSPEED, files={"configs/ds.json": ZERO, "train.py": ""})["spec"])
    assert spec["baseline"]["zero_stage"] == 3
    assert spec["global_batch_size"] == 64
    told = problem(shared_client.post("/v1/imports", json={"script": DEEPSPEED}), 422, "/problems/invalid-spec")
    assert [one["pointer"] for one in told["errors"]] == ["/script"]
    assert "configs/ds.json" in told["errors"][0]["detail"]


def test_a_configuration_needs_no_name(sent):
    made = sent("base_model: Qwen/Qwen3-8B\nsequence_len: 4096\nmicro_batch_size: 2\ndatasets:\n  - path: x\n")
    assert "axolotl" in made["spec"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"script": "what a nice day"}, "/script"),
        ({"script": " "}, "/script"),
        ({}, "/script"),
        ({"script": TRAINER, "cluster": "dgx-h10"}, "/cluster"),
        ({"script": TRAINER, "files": {"../x": ""}}, "/files"),
        ({"script": TRAINER, "files": {"/etc/x": ""}}, "/files"),
        ({"script": TRAINER, "files": {"a/../../x": ""}}, "/files"),
        ({"script": TRAINER, "files": {"a/" * 500 + "x": ""}}, "/files"),
        ({"script": TRAINER, "files": {"a\0.yaml": ""}}, "/files"),
        ({"script": TRAINER, "files": {"a": "", "a/b": ""}}, "/script"),
        ({"script": TRAINER, "files": {"a" * 300: ""}}, "/script"),
        ({"script": TRAINER, "files": {str(each): "" for each in range(10_000)}}, "/files"),
        ({"script": "torchrun tr\0ain.py --batch-size 4"}, "/script"),
        ({"script": TRAINER, "name": "a/b"}, "/name"),
        ({"script": TRAINER, "further": 1}, "/further"),
    ],
)
def test_a_mistake_names_its_field_and_the_next_step(shared_client, problem, body, pointer):
    told = problem(shared_client.post("/v1/imports", json=body), 422, "/problems/invalid-spec")
    assert any(one["pointer"].startswith(pointer) for one in told["errors"]), told
    if body.get("script", "").startswith("what"):
        assert "Next:" in told["errors"][0]["detail"]


def test_it_needs_the_scope_read_alone(client, token, problem):
    shown = client.post("/v1/imports", json={"script": TRAINER}, headers=token("reader", Scope.READ))
    assert shown.status_code == 200, shown.text
    shown = client.post("/v1/imports", json={"script": TRAINER}, headers=token("launcher", Scope.LAUNCH))
    problem(shown, 403, "/problems/scope-missing")


# What costs an importer that expands what it reads: each is answered within the pool's time and memory.
COSTLY = {
    "files": {"script": f"{TRAINER.strip()} {' '.join(f'a{each}.yaml' for each in range(5_000))}"},
    "lines": {"script": "".join(f"source f{each}.sh\n" for each in range(5_000)) + TRAINER},
    "doubled": {"script": "a=aaaaaaaa\n" + "a=$a$a$a$a$a$a$a$a\n" * 20 + f"{TRAINER.strip()} --x $a"},
    "braces": {"script": "for i in {1..100000000} {01..08}; do echo $i; done\n" + TRAINER},
    "brackets": {"script": f"x={'$(' * 5_000}echo 1{')' * 5_000}\n{TRAINER}"},
    "width": {"script": f"x=$(printf '%0999999999d' 1)\n{TRAINER.strip()} --x $x"},
    "sourced": {"script": "source a.sh\n", "files": {"a.sh": "source b.sh\n" * 9, "b.sh": "source a.sh\n" * 9}},
    "aliases": {
        "script": "axolotl train a.yaml",
        "files": {"a.yaml": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 40))},
    },
    "deep": {"script": DEEPSPEED, "files": {"train.py": "", "configs/ds.json": "[" * 100_000}},
    "python": {"script": TRAINER, "files": {"train.py": f"x = {'(' * 50_000}"}},
    "large": {"script": TRAINER, "files": {f"a{each}.yaml": "x" * 9_000 for each in range(100)}},
    "surrogates": {"script": f"{TRAINER.strip()} --x \ud800 $X", "set": {"X": "\ud800"}},
}


@pytest.mark.parametrize("body", COSTLY.values(), ids=COSTLY)
def test_what_could_cost_much_is_answered_and_in_few_words(shared_client, body):
    content = json.dumps(body)
    shown = shared_client.post("/v1/imports", content=content, headers={"Content-Type": "application/json"})
    assert shown.status_code in (200, 422), shown.text
    assert len(shown.content) < max(100_000, 2 * len(content))


SECRET = "base_model: of-the-service\nsequence_len: 77\nmicro_batch_size: 3\n"


@pytest.fixture
def opened() -> list[str]:
    """What was opened or listed while a sent script was read."""
    paths: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and READABLE.get() and isinstance(arguments[0], str | Path):
            paths.append(os.path.realpath(arguments[0]))

    sys.addaudithook(hook)  # for good; it is silent where nothing sent is read
    return paths


@pytest.mark.parametrize(
    "script",
    [
        "accelerate launch --config_file {outside}/a.yaml train.py",
        "accelerate launch -m axolotl.cli.train {outside}/a.yaml",
        "axolotl train ../../{outside}/a.yaml",
        "axolotl train link/a.yaml",
        "cd {outside}\naxolotl train a.yaml",
        "source {outside}/env.sh\ntorchrun --nproc-per-node 8 train.py --lr $LR",
        "bash {outside}/env.sh",
        "sbatch {outside}/env.sh",
        "torchrun --nproc-per-node 8 {outside}/train.py --batch-size 4",
        "torchrun --nproc-per-node 8 train.py --model_name_or_path {outside} --per_device_train_batch_size 2 --bf16",
        "torchrun --nproc-per-node 8 train.py --model_name_or_path own/secret --per_device_train_batch_size 2 --bf16",
        "deepspeed --num_gpus 8 train.py --deepspeed_config {outside}/ds.json",
        "python train.py --config /etc/passwd --batch-size $(cat /etc/passwd) --out $HOME/x --path $PATH",
        "python deepy.py train.py -d {outside} a.yaml",
        "torchrun --nproc-per-node 8 train.py {outside}/a.yaml",
        "accelerate launch train.py --model_name_or_path x",
    ],
)
def test_no_file_or_variable_of_this_machine_is_in_the_answer(tmp_path, monkeypatch, opened, script):
    outside, folder, cache = tmp_path / "outside", tmp_path / "sent", tmp_path / "hf"
    snapshot = cache / "hub" / "models--own--secret" / "snapshots" / "1"
    for each in (outside, folder, snapshot, cache / "accelerate"):
        each.mkdir(parents=True)
    config = '{"model_type": "llama", "num_hidden_layers": 77, "hidden_size": 7777, "vocab_size": 77777}'
    for path, text in (
        *((place / "config.json", config) for place in (outside, snapshot)),
        (outside / "a.yaml", SECRET),
        (outside / "ds.json", '{"train_batch_size": 7777, "train_micro_batch_size_per_gpu": 777}'),
        (outside / "env.sh", "export LR=0.7777\ntorchrun --nproc-per-node 8 train.py --batch-size 7777\n"),
        (outside / "train.py", "parser.add_argument('--batch-size', help='of-the-service')\n"),
        (cache / "accelerate" / "default_config.yaml", "mixed_precision: of-the-service\n"),
    ):
        path.write_text(text)
    (folder / "link").symlink_to(outside)
    monkeypatch.setenv("HF_HOME", str(cache))
    monkeypatch.setenv("HOME", str(outside))
    before = dict(os.environ), Path.cwd()
    text = script.format(outside=outside)
    try:
        answer = str(import_sent(SentScript(script=text), str(folder)))
    except InvalidValue as error:
        answer = str(error)
    assert (dict(os.environ), Path.cwd()) == before
    said = answer.replace(str(outside), "")
    for secret in ("of-the-service", "777", "root:", str(folder), os.environ["PATH"], str(tmp_path)):
        assert secret not in said, answer
    assert not [path for path in opened if path.startswith((str(outside), str(cache), "/etc/", "/home/", "/root/."))]
