"""Manifests for Kubernetes: their whole text, and that their shell scripts run; no cluster has seen them.

Manifests of this form were accepted by the CRDs' own OpenAPI schemas, closed against unknown keys: JobSet 0.12,
config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml; Kubeflow Trainer 2.3, manifests/base/crds/
trainer.kubeflow.org_trainjobs.yaml. A JobSet's pods are <name>-<replicated job>-<job index>-<pod index>.<subdomain>
(jobset_types.go, Network). Trainer refuses variables PET_* (constants.go, TorchRunReservedEnvNames).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_process import free_port

from meshtune.runners.base import JobSpec, Start
from meshtune.runners.schedulers.kubernetes.export import label_of, render_jobset, render_trainjob
from meshtune.search_spaces.checks import InvalidValue

GOLDEN = Path(__file__).parent / "golden"
OPTIONS = {"image": "registry.example.org/train:1", "namespace": "team", "queue": "gpu-queue"}


def spec(**changes) -> JobSpec:
    fields = {
        "name": "c1-t3-a1",
        "command": ("python", "-m", "meshtune.runners.trainer", "job.json"),
        "directory": Path("/data/c1-t3-a1"),
        "nodes": 2,
        "devices_per_node": 8,
        "time_limit_s": 600.5,
        "files": {"job.json": '{"steps": 3}\n'},
        "env": {"GREETING": "two words"},
    }
    return JobSpec(**fields | changes)


def jobset(job: JobSpec, **options) -> dict[str, Any]:
    return yaml.safe_load(render_jobset(job, OPTIONS | options))


def trainjob(job: JobSpec, **options) -> dict[str, Any]:
    return yaml.safe_load(render_trainjob(job, OPTIONS | options))


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def values(env: list[dict[str, Any]]) -> dict[str, Any]:
    assert len({one["name"] for one in env}) == len(env)
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in env}


CLAIMS = {"/data": "team-data", "/models": "hub"}


@pytest.mark.parametrize(
    ("golden", "render", "options"),
    [
        ("jobset.yaml", render_jobset, {"claims": CLAIMS}),
        ("trainjob.yaml", render_trainjob, {"runtime": "torchtune-llama3.2-1b"}),
    ],
)
def test_the_manifest_is_as_the_golden_file(golden: str, render: Callable[..., str], options):
    assert render(spec(), OPTIONS | options) == (GOLDEN / golden).read_text(encoding="utf-8")


def test_a_launcher_gets_its_rank_among_the_nodes_and_a_jobs_own_variables_do_not_hide_it():
    job = spec(start=Start.NODE, command=("torchrun", "train.py"), env={"RANK": "9", "WORLD_SIZE": "9", "A": "$(B)"})
    (container,) = pod(jobset(job))["containers"]
    seen = values(container["env"])
    assert seen["RANK"] == seen["NODE_RANK"]
    assert (seen["WORLD_SIZE"], seen["LOCAL_RANK"], seen["A"]) == ("2", "0", "$$(B)")
    assert container["command"][-1].endswith("\nexec torchrun train.py\n")
    assert trainjob(job)["spec"]["trainer"]["numProcPerNode"] == 1


def run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a container's script as the kubelet starts it, which would replace what looks like one of its variables."""
    assert script.count("$(") == script.count("$$(")
    shell = ["sh", "-c", script.replace("$$(", "$(")]
    return subprocess.run(shell, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_puts_the_files_there_and_starts_the_command(tmp_path):
    files = {
        "job.json": '{"a": "$(RANK) `id` $HOME \\"q\\""}',
        "conf/sub/x.yaml": "one: 1\nEND\ntwo: 2\n",
        "it's": "",
        "blank lines": "\n\n",
    }
    told = tmp_path / "told"
    job = spec(
        files=files,
        directory=tmp_path / "a b",
        start=Start.JOB,
        nodes=1,
        command=("sh", "-c", f'echo "$0" > {told}', "it's $(me)"),
    )
    (container,) = pod(jobset(job))["containers"]
    done = run(container["command"][-1], {"PATH": os.environ["PATH"], "HOSTNAME": "pod-0"})
    assert (done.returncode, done.stderr) == (0, "")
    for name, text in files.items():
        assert (tmp_path / "a b" / name).read_text().rstrip("\n") == text.rstrip("\n")
    assert sorted(path.name for path in (tmp_path / "a b").iterdir()) == sorted(
        ["blank lines", "conf", "it's", "job.json"]
    )
    assert told.read_text() == "it's $(me)\n"


@pytest.mark.slow
def test_torchrun_starts_a_process_per_device_in_a_pod(tmp_path):
    """With the real torchrun."""
    script = 'echo "$RANK $WORLD_SIZE $LOCAL_RANK $NODE_RANK $NNODES" > said-$RANK'
    job = spec(files={}, directory=tmp_path, nodes=1, devices_per_node=2, command=("sh", "-c", script))
    (container,) = pod(jobset(job))["containers"]
    seen = {name: value for name, value in values(container["env"]).items() if isinstance(value, str)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0", "PATH": path}
    done = run(container["command"][-1], seen | here)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"said-{rank}").read_text() for rank in range(2)] == ["0 2 0 0 1\n", "1 2 1 0 1\n"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("c1-t3-a1", "c1-t3-a1"),
        ("C1_t3.a1", "c1-t3-a1-"),
        ("1st", "job-1st-"),
        ("-", "job-"),
        ("x" * 40, "x" * 40),
        ("x" * 41, "x" * 31 + "-"),
        ("x" * 30 + "--y" * 20, "x" * 30 + "-"),
    ],
)
def test_names_become_labels_that_leave_room_for_pods(name, start):
    label = label_of(name)
    assert label.startswith(start)
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", label)
    assert len(label) <= 40


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"image": ""}, "image: must name an image"),
        ({"image": "two words"}, "image: must name an image"),
        ({"namespace": "Team"}, "namespace: must have lower-case letters"),
        ({"queue": "a/b"}, "queue: must have lower-case letters"),
        ({"runtime": "-torch"}, "runtime: must have lower-case letters"),
        ({"runtime": ""}, "runtime: must have lower-case letters"),
        ({"claims": {"data": "c"}}, "claims: must be paths from the root on"),
        ({"gpu": 1}, "gpu: is not a known key"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    with pytest.raises(InvalidValue) as error:
        render_jobset(spec(), OPTIONS | options)
    assert str(error.value).startswith(problem)


def test_what_a_manifest_cannot_say_is_refused():
    alone = spec(start=Start.JOB)
    with pytest.raises(InvalidValue, match="start: a script that launches for itself cannot reach the other 1 pods"):
        render_jobset(alone, OPTIONS)
    with pytest.raises(InvalidValue, match="claims: a TrainJob's volumes are its runtime's"):
        render_trainjob(spec(), {**OPTIONS, "claims": {"/data": "c"}})
    with pytest.raises(InvalidValue, match="image: is missing"):
        render_jobset(spec(), {})
