"""What a trial ran as, and what it measured in other programs' words, over HTTP."""

import io
import json
import resource
import tarfile
import time

import pytest
import yaml

from meshtune.api.routes.catalog import list_examples
from meshtune.runners.registry import RUNNERS, SCHEDULERS
from meshtune.runners.untrusted_text import CONTROLS
from meshtune.tuner.results.export import FORMATS
from meshtune.tuner.results.handover import pack


@pytest.fixture
def done(create, drive) -> str:
    id = create(budget={"trials": 2})
    drive(id)
    return id


def test_the_job_is_the_one_that_was_submitted(client, done, service):
    job = client.get(f"/v1/campaigns/{done}/trials/0/job").json()
    assert job["name"] == f"{done}-t0000-a1"
    assert job["directory"] == str(service.home.job(done, job["name"]).resolve())
    assert job["command"][-3:] == ["-m", "meshtune.runners.trainer", "job.json"]
    assert job["script"] is None
    assert json.loads(job["files"]["job.json"])["plan"]["micro_batch_size"] == 1


def test_the_job_of_a_batch_runner_has_its_script_and_no_secret(client, create, service, drive, monkeypatch):
    monkeypatch.setitem(RUNNERS, "slurm", RUNNERS["instant"])
    for name in ("MESHTUNE_TOKEN", "MESHTUNE_DB", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hush-hush")
    id = create(runner={"kind": "slurm", "partition": "gpu"}, budget={"trials": 1})
    drive(id)
    response = client.get(f"/v1/campaigns/{id}/trials/0/job")
    job = response.json()
    assert "#SBATCH --partition=gpu" in job["script"]
    assert f"#SBATCH --comment=owner={service.campaign(id).owner},campaign={id},trial=0\n" in job["script"]
    assert job["files"]["job.sbatch"] == job["script"]
    assert {"job.json", "gang.json"} <= set(job["files"])
    assert "hush-hush" not in response.text


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_answers_with_files_or_says_what_is_missing(client, done, problem, format):
    option = "image=example.org/train:1" if format in ("jobset", "trainjob") else None
    response = client.get(f"/v1/campaigns/{done}/exports/{format}", params={"option": option} if option else {})
    if response.status_code == 409:
        problem(response, 409, "/problems/cannot-express")
        return
    assert response.status_code == 200, response.text
    shown = response.json()
    assert shown["format"] == format
    assert shown["files"]
    assert all(isinstance(text, str) and text for text in shown["files"].values())
    assert (shown["command"] is None) == (format == "json")


def test_the_same_setting_is_exported_of_a_trial_and_as_the_winner(client, done):
    winner = client.get(f"/v1/campaigns/{done}/exports/json?trial=best").json()
    assert winner == client.get(f"/v1/campaigns/{done}/trials/{winner['trial']}/exports/json").json()
    assert json.loads(winner["files"]["setting.json"])["rank"] == 1


def test_an_export_to_another_program_carries_a_warning_and_the_command_that_confirms_it(client, done):
    url = f"/v1/campaigns/{done}/exports"
    shown = client.get(f"{url}/megatron?trial=best").json()
    measured, handover = shown["measured_with"], shown["handover"]
    assert (measured["workload"], measured["program"], measured["device"]) == ("torch", "the built-in trainer", "cpu")
    assert handover["program"] == "Megatron"
    assert handover["warning"].startswith("measured with the built-in trainer (")
    assert handover["confirm"] == f"meshtune confirm {done} --trial {shown['trial']} --with SPEC.yaml"
    assert handover["confirm"] in shown["files"]["launch.sh"]
    own = client.get(f"{url}/job?trial=best").json()
    assert (own["measured_with"], own["handover"]) == (measured, None)
    best = client.get(f"/v1/campaigns/{done}/best").json()
    assert best["recommendation"]["setting"]["measured_with"] == measured
    assert all(entry["measured_with"]["words"] == measured["words"] for entry in best["best"])


def test_options_reach_the_format(client, done):
    url = f"/v1/campaigns/{done}/exports/slurm"
    shown = client.get(url, params={"option": ["partition=gpu", "setup=[module load cuda]"]}).json()
    assert "#SBATCH --partition=gpu" in shown["files"]["job.sbatch"]
    assert "\nmodule load cuda\n" in shown["files"]["job.sbatch"]
    assert shown["command"] == "sbatch job.sbatch"
    assert shown["directory"] in shown["files"]["job.sbatch"]


def unpacked(response):
    """The files of an archive by path, and which can be executed."""
    assert response.status_code == 200, response.text
    with tarfile.open(fileobj=io.BytesIO(response.content), mode="r:gz") as archive:
        members = archive.getmembers()
        texts = {one.name: archive.extractfile(one).read().decode() for one in members}
    return texts, {one.name for one in members if one.mode & 0o100}


def test_an_archive_has_all_files_of_a_format_in_one_folder_with_what_to_know(client, done):
    shown = client.get(f"/v1/campaigns/{done}/exports/megatron?trial=best").json()
    response = client.get(f"/v1/campaigns/{done}/archive?format=megatron&trial=best")
    folder = f"{done}-trial-{shown['trial']}-megatron"
    assert response.headers["content-disposition"] == f'attachment; filename="{folder}.tar.gz"'
    texts, programs = unpacked(response)
    assert texts.keys() == {f"{folder}/{name}" for name in (*shown["files"], "README.txt")}
    assert {name: texts[f"{folder}/{name}"] for name in shown["files"]} == shown["files"]
    assert programs == {f"{folder}/launch.sh"}
    readme = texts[f"{folder}/README.txt"]
    assert f"{shown['plan_key']}: trial {shown['trial']} of {done}, measured, as megatron\n" in readme
    assert "\n    bash launch.sh\n" in readme
    assert f"    {shown['handover']['confirm']}\n" in readme
    again = client.get(f"/v1/campaigns/{done}/trials/{shown['trial']}/archive?format=megatron")
    assert again.content == response.content


def test_no_control_character_of_a_command_reaches_the_readme(client, create, service):
    words = ["python", *(f"{{{name}}}" for name in ("tp", "pp", "micro_batch_size"))]
    command = {"kind": "command", "command": [*words, "{grad_accum_steps}"]}
    id = create(workload=command, runner="external", budget={"trials": 1})
    for _ in range(2):
        service.tick(id)
    client.post(f"/v1/campaigns/{id}:suggest").raise_for_status()
    client.post(f"/v1/campaigns/{id}/trials/0:complete", json={"step_times_s": [1.0]}).raise_for_status()
    for _ in range(3):
        service.tick(id)
    script = {"format": "accelerate", "trial": "best", "option": r'script="a\x1b]0;b\x07\u202e"'}
    texts, _ = unpacked(client.get(f"/v1/campaigns/{id}/archive", params=script))
    readme = next(text for name, text in texts.items() if name.endswith("README.txt"))
    assert r"a\x1b]0;b\x07\u202e" in readme
    assert not CONTROLS.search(readme)


def test_an_archive_takes_options_and_refuses_as_the_export_does(client, done, problem):
    url = f"/v1/campaigns/{done}/archive"
    texts, _ = unpacked(client.get(url, params={"format": "jobset", "option": "image=example.org/train:1"}))
    assert any("image: example.org/train:1" in text for text in texts.values())
    problem(client.get(url, params={"format": "jobset"}), 422, "/problems/malformed-request")
    problem(client.get(url, params={"format": "tar"}), 422, "/problems/malformed-request")


def test_a_name_that_would_leave_the_folder_is_not_packed():
    for name in ("../x", "/x", "a/../../x", "..", "a\\b", ""):
        with pytest.raises(ValueError, match="is no name of a file in a folder"):
            pack("folder", {name: "text"})


def test_a_simulated_job_starts_nothing_and_says_so(client, create, drive):
    id = create(
        model="llama3-8b",
        cluster="dgx-h100",
        global_batch_size=64,
        baseline={"tp": 8},
        workload="simulated",
        runner="simulated",
        budget={"trials": 1},
        trial={"time_limit_s": 1e6},
    )
    drive(id)
    shown = client.get(f"/v1/campaigns/{id}/exports/job").json()
    assert (shown["simulated"], shown["command"], list(shown["files"])) == (True, None, ["simulated.json"])
    assert shown["note"].startswith("Simulated: no device ran this plan, and nothing here can be started.")
    texts, _ = unpacked(client.get(f"/v1/campaigns/{id}/archive?format=job"))
    readme = next(text for name, text in texts.items() if name.endswith("README.txt"))
    assert ", simulated, as job\n" in readme
    assert "torchrun" not in readme
    megatron = client.get(f"/v1/campaigns/{id}/exports/megatron").json()
    assert megatron["handover"]["warning"].startswith("simulated by the built-in simulator")


def test_the_registry_tells_the_options_of_each_format_and_each_is_taken(client, done):
    formats = {one["name"]: one for one in client.get("/v1/registry").json()["export_formats"]}
    assert list(formats) == list(FORMATS)
    options = {(name, one["name"]): one for name, format in formats.items() for one in format["options"]}
    assert {where for where, one in options.items() if one["required"]} == {("jobset", "image"), ("trainjob", "image")}
    assert options["torchtitan", "dtype"]["choices"] == ["float32", "bfloat16"]
    assert options["pbs", "place"]["default"] == "scatter:excl"
    assert not any(formats[name]["options"] for name in ("json", "job"))
    assert all(one["meaning"] for one in options.values())
    assert [name for name, one in formats.items() if not one["simulated"]] == [
        name for name, row in SCHEDULERS.items() if row.script
    ]
    for name, format in formats.items():
        image = ["image=example.org/x"] if name in ("jobset", "trainjob") else []
        given = [f"{one['name']}={one['default']}" for one in format["options"] if one["default"]]
        response = client.get(f"/v1/campaigns/{done}/exports/{name}", params={"trial": "best", "option": image + given})
        assert response.status_code in (200, 409), (name, response.text)


WRONG = {
    "no equals sign": ("slurm", "partition", "/query/option"),
    "an unknown option": ("slurm", "partitio=gpu", "/query/option/partitio"),
    "a file of the service": ("torchtitan", "config=/etc/passwd", "/query/option/config"),
    "an unknown number format": ("accelerate", "dtype=float8", "/query/option/dtype"),
    "no YAML": ("slurm", "setup=[", "/query/option"),
}


@pytest.mark.parametrize(("format", "option", "pointer"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_named(client, create, drive, problem, format, option, pointer):
    id = create(budget={"trials": 1}, baseline={"tp": 1, "pp": 1, "zero_stage": 2, "micro_batch_size": 1})
    drive(id)
    response = client.get(f"/v1/campaigns/{id}/exports/{format}", params={"option": option})
    assert problem(response, 422, "/problems/malformed-request")["errors"][0]["pointer"] == pointer


# Less than 400 characters that stand for 10^8 numbers.
BOMB = (
    "{x0: &a0 [9,9,9,9,9,9,9,9,9,9], "
    + ", ".join(f"x{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8))
    + "}"
)


def test_aliases_in_an_option_cost_no_memory_and_no_time(client, done, problem):
    url, query = f"/v1/campaigns/{done}/exports/deepspeed?trial=best", {"option": f"config={BOMB}"}
    document = problem(client.get(url, params=query), 422, "/problems/malformed-request")
    (mistake,) = document["errors"]
    assert mistake["pointer"] == "/query/option"
    assert "--option config: means " in mistake["detail"]
    assert "values or more, aliases written out, and at most 2,000 are read, line 1, column" in mistake["detail"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times_s = []
    for _ in range(3):
        began = time.process_time()
        assert client.get(url, params=query).status_code == 422
        times_s.append(time.process_time() - began)
    assert min(times_s) < 0.2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_nothing_measured_is_nothing_to_export(client, create, problem):
    response = client.get(f"/v1/campaigns/{create()}/exports/json")
    assert "no measured trial yet" in problem(response, 409, "/problems/nothing-to-export")["detail"]


def test_an_unknown_format_or_trial_is_refused(client, done, problem):
    problem(client.get(f"/v1/campaigns/{done}/exports/tar"), 422, "/problems/malformed-request")
    problem(client.get(f"/v1/campaigns/{done}/exports/json?trial=worst"), 422, "/problems/malformed-request")
    problem(client.get(f"/v1/campaigns/{done}/trials/99/exports/json"), 404, "/problems/not-found")
    problem(client.get(f"/v1/campaigns/{done}/exports/json?trial=99"), 409, "/problems/nothing-to-export")


@pytest.mark.parametrize("example", list_examples().examples, ids=lambda example: example.name)
def test_every_example_of_the_create_form_is_a_spec_with_a_title(shared_client, example):
    assert 20 < len(example.title) <= 130
    assert example.yaml.startswith(f"# {example.title}\n")
    response = shared_client.post("/v1/spaces", content=example.yaml, headers={"Content-Type": "application/yaml"})
    assert response.status_code == 200, response.text
    assert response.json()["legal"] > 1
    assert yaml.safe_load(example.yaml)["name"]
