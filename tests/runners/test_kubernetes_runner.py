"""The Kubernetes runner through the official client against the tests' own API server, whose pods really run; the rest
of what a runner promises is in the contract suite, by `make test-long`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

pytest.importorskip("kubernetes")

from kubernetes import client, config
from kubernetes_jobs import IMAGE, KubernetesLaboratory
from kubernetes_lab import KubernetesLab

from meshtune.runners.base import Cause, JobState, Refused, RunnerUnavailable, Start

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "kubernetes.md"


@pytest.fixture
def lab(kubernetes: KubernetesLab, tmp_path: Path) -> Iterator[KubernetesLaboratory]:
    laboratory = KubernetesLaboratory(tmp_path, kubernetes)
    yield laboratory
    laboratory.close()


def job_of(lab: KubernetesLaboratory, id: str) -> dict:
    return lab.place.objects["Job"][id]


def suspend(lab: KubernetesLaboratory, id: str, value: bool) -> None:
    """As Kueue does it."""
    with lab.place.lock:
        job_of(lab, id)["spec"]["suspend"] = value


def test_two_nodes_meet_by_the_service_with_the_rights_of_the_documented_role_alone(lab):
    (block,) = [text.partition("```")[0] for text in PAGE.read_text().split("```yaml\n")[1:]]
    lab.place.kueue_version = "v1beta2"
    lab.place.put("LocalQueue", "gpu-queue", {})
    lab.runner = lab.open(nodes=2, queue="gpu-queue")
    with lab.place.only_with(yaml.safe_load(block)):
        script = (
            'echo "$RANK $NODE_RANK $LOCAL_RANK $MASTER_ADDR" > said-$RANK; [ $RANK = 3 ] && exit 4; exec sleep 300'
        )
        id = lab.submit("pair", script, nodes=2, processes=2)
        assert lab.status(id).reason == "suspended"
        condition = {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota for gpu"}
        owner = {"metadata": {"ownerReferences": [{"name": id}]}, "status": {"conditions": [condition]}}
        lab.place.put("Workload", "job-pair", owner)
        assert lab.status(id).reason == "Kueue: insufficient unused quota for gpu"
        suspend(lab, id, False)
        status = lab.wait(id)
        assert (status.state, status.reason) == (JobState.FAILED, "rank 3 exited with code 4")
        assert status.nodes == ("node-a", "node-b")
        other = lab.submit("other", "sleep 300")
        lab.runner.cancel(other)
        assert lab.wait(other).state is JobState.CANCELLED
    said = [(lab.folder / "work" / "pair" / f"said-{rank}").read_text().split() for rank in range(4)]
    assert said == [[str(rank), str(rank // 2), str(rank % 2), "127.0.0.1"] for rank in range(4)]
    asked = {f"{verb} {resource}" for verb, resource in lab.place.asked}
    assert "get /pods/log" in asked


def test_the_servers_documents_are_as_the_schema_says(lab):
    """What the laboratory shows to the runner, read by the client's own models."""
    lab.place.bad_images["registry.example.org/none:1"] = ("ImagePullBackOff", "i/o timeout")
    lab.wait(lab.submit("bad", "exit 3"))
    lab.open(image="registry.example.org/none:1").submit(lab.spec("waits", "true"))
    lab.wait_for(lambda: len(lab.place.all("Pod")) == 2)
    config.load_kube_config(str(lab.place.config))
    jobs = client.BatchV1Api().list_namespaced_job("team").items
    pods = client.CoreV1Api().list_namespaced_pod("team").items
    told = client.ApiClient().sanitize_for_serialization([*jobs, *pods])
    shown = [one["metadata"]["name"] for one in told]
    with lab.place.lock:
        kept = [*lab.place.objects["Job"].values(), *lab.place.objects["Pod"].values()]
        assert shown == [one["metadata"]["name"] for one in kept]
        for mine, read in zip(kept, told, strict=True):
            assert mine["status"].keys() == read["status"].keys()
            assert mine["spec"].keys() == read["spec"].keys()


def test_a_creation_whose_answer_never_came_is_found_again_and_sent_once(lab):
    lab.place.loses_answer.set()
    spec = lab.spec("once", "echo ran >> count")
    id = lab.runner.submit(spec)
    assert lab.open().submit(spec) == id
    assert lab.wait(id).state is JobState.SUCCEEDED
    assert (spec.directory / "count").read_text() == "ran\n"
    assert len(lab.place.all("Job")) == 1


def test_a_server_that_is_silent_is_unavailable_within_the_limit_and_sends_nothing(lab):
    hasty = lab.open(call_limit_s=0.3)
    running = lab.long("long")
    lab.place.silent.set()
    began = time.monotonic()
    with pytest.raises(RunnerUnavailable, match=r"^the API server of Kubernetes did not answer within 0\.3 s$"):
        hasty.poll([running])
    with pytest.raises(RunnerUnavailable, match=r"^job may not have been sent: .* within 0\.3 s$"):
        hasty.submit(lab.spec("job", "true"))
    assert time.monotonic() - began < 5
    lab.place.silent.clear()
    lab.wait(running, JobState.RUNNING)


def test_no_server_at_all_is_unavailable(lab, monkeypatch, tmp_path):
    text = lab.place.config.read_text()
    (tmp_path / "config").write_text(text.replace(str(lab.place.server.server_port), "1"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(RunnerUnavailable, match=r"the API server of Kubernetes does not answer: .*refused"):
        lab.open().submit(lab.spec("job", "true"))
    (tmp_path / "config").write_text(text.replace("a token of", "no token of"))
    with pytest.raises(RunnerUnavailable, match="answered 401: Unauthorized"):
        lab.open().submit(lab.spec("job", "true"))


def test_what_the_cluster_does_not_take_is_refused_and_taken_later(lab):
    lab.place.max_jobs = 0
    with pytest.raises(Refused, match=r"^job was refused: .* exceeded quota: jobs"):
        lab.submit("job", "true")
    assert lab.runner.find("job") is None
    with pytest.raises(Refused, match='namespaces "nowhere" not found'):
        lab.open(namespace="nowhere").submit(lab.spec("job", "true"))
    with pytest.raises(Refused, match="the namespace team has no LocalQueue fast of Kueue"):
        lab.open(queue="fast").submit(lab.spec("job", "true"))
    with lab.place.only_with({"rules": []}), pytest.raises(Refused, match='cannot create resource "jobs"'):
        lab.submit("job", "true")
    with pytest.raises(Refused, match="is on none of claims and host_paths"):
        lab.submit("job", "true", directory=Path("/elsewhere"))
    with pytest.raises(Refused, match="cannot reach the other 1 pods"):
        lab.wide().submit(replace(lab.spec("job", "true", nodes=2), start=Start.JOB))
    with pytest.raises(Refused, match=r"tolerations.*Input should be a valid"):
        lab.open(tolerations=({"key": 3},)).submit(lab.spec("job", "true"))
    lab.place.max_jobs = None
    assert lab.wait(lab.submit("job", "true")).state is JobState.SUCCEEDED


def test_an_older_kueue_is_asked_in_its_own_version(lab):
    lab.place.kueue_version = "v1beta1"
    lab.place.put("LocalQueue", "fast", {})
    id = lab.open(queue="fast").submit(lab.spec("job", "true"))
    assert lab.status(id).reason == "suspended"
    lab.runner.cancel(id)
    assert lab.wait(id).state is JobState.CANCELLED


def test_a_job_without_pods_says_why_in_the_words_of_its_events(lab):
    lab.place.max_pods = 0
    id = lab.submit("job", "true")
    lab.wait_for(lambda: "exceeded quota: pods" in lab.status(id).reason)
    assert lab.status(id).state is JobState.QUEUED
    lab.place.max_pods = None
    assert lab.wait(id).state is JobState.SUCCEEDED


def test_a_volume_that_a_node_does_not_have_is_named(lab):
    paths = (str(lab.folder), "/no/such/scratch")
    id = lab.open(host_paths=paths).submit(lab.spec("job", "true"))
    lab.wait_for(lambda: "/no/such/scratch is not a directory" in lab.status(id).reason)
    assert lab.status(id).reason.startswith("ContainerCreating: MountVolume.SetUp failed")
    lab.runner.cancel(id)
    assert lab.wait(id).state is JobState.CANCELLED


def test_a_job_whose_image_is_not_there_fails_and_leaves_nothing_behind(lab):
    lab.place.bad_images[IMAGE] = ("ErrImagePull", f"failed to pull {IMAGE}: not found")
    id = lab.submit("job", "true")
    status = lab.wait(id)
    assert (status.state, status.cause) == (JobState.FAILED, Cause.USER_BUG)
    assert status.reason == f"ErrImagePull: failed to pull {IMAGE}: not found"
    lab.wait_for(lambda: not lab.place.all("Job") and not lab.place.all("Pod"))
    assert lab.status(id) == status


def test_a_container_that_cannot_start_its_ranks_leaves_its_log_in_the_folder(lab):
    id = lab.open(python="/no/such/python").submit(lab.spec("none", "true"))
    status = lab.wait(id)
    assert status.reason.startswith("pod 0 ended with StartError, exit code 128: failed to create task")
    away = lab.spec("away", "true")
    id = lab.runner.submit(replace(away, files={}))
    (away.directory / "gang.json").unlink()
    status = lab.wait(id)
    assert (status.state, status.exit_code) == (JobState.FAILED, 1)
    assert "is not the job's folder" in status.reason
    assert "is its volume the pods'?" in (away.directory / "pod-0.log").read_text()


def test_a_container_out_of_memory_an_evicted_pod_and_a_preempted_job_are_told_apart(lab):
    full, evicted, preempted = (lab.long(name) for name in ("full", "evicted", "preempted"))
    for id in (full, evicted, preempted):
        lab.wait(id, JobState.RUNNING)
    for name in ("full", "evicted", "preempted"):
        lab.wait_file(name, "ran")
    pods = lab.place.controllers.pods_of
    lab.place.controllers.fill_memory(pods(full)[0])
    lab.place.controllers.disrupt(pods(evicted)[0], "EvictionByEvictionAPI", "Eviction API: evicting")
    suspend(lab, preempted, True)
    status = lab.wait(full)
    assert (status.state, status.cause, status.exit_code) == (JobState.FAILED, Cause.OOM, -9)
    status = lab.wait(evicted)
    assert (status.state, status.cause, status.failed_nodes) == (JobState.LOST, Cause.PREEMPTION, ())
    assert "evicted, as by a drain of its node: Eviction API: evicting" in status.reason
    status = lab.wait(preempted)
    assert (status.state, status.cause) == (JobState.LOST, Cause.PREEMPTION)
    lab.wait_for(lambda: preempted not in lab.place.objects["Job"])
    lab.wait_nothing_left()


def test_a_job_that_kueue_admits_during_a_look_runs(lab, monkeypatch):
    lab.place.kueue_version = "v1beta2"
    lab.place.put("LocalQueue", "gpu-queue", {})
    lab.runner = lab.open(queue="gpu-queue")
    id = lab.submit("job", "exec sleep 300")
    workloads = lab.runner._api.workloads

    def admitted_meanwhile():
        suspend(lab, id, False)
        lab.wait_file("job", "rank-0.json")
        return workloads()

    monkeypatch.setattr(lab.runner._api, "workloads", admitted_meanwhile)
    assert lab.status(id).state is JobState.QUEUED
    assert lab.status(id).state is JobState.RUNNING
    suspend(lab, id, True)
    assert lab.wait(id).cause is Cause.PREEMPTION


def test_a_job_that_is_started_a_second_time_unseen_does_not_run_twice(lab):
    id = lab.submit("job", "echo ran >> count; exec sleep 300")
    lab.wait_text("job", "count")
    suspend(lab, id, True)
    lab.wait_for(lambda: not lab.place.all("Pod"))
    suspend(lab, id, False)
    status = lab.wait(id)
    assert (status.state, status.cause) == (JobState.LOST, Cause.PREEMPTION)
    assert (lab.folder / "work" / "job" / "count").read_text() == "ran\n"


def test_a_command_of_this_services_interpreter_is_run_by_the_pods(lab, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport BY="x$BY"\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    write = "import os; open('by', 'w').write(os.environ['BY'])"
    spec = lab.spec("job", "", command=(sys.executable, "-c", write))
    assert lab.wait(lab.open(python=str(python)).submit(spec)).state is JobState.SUCCEEDED
    # The pod's first process, and the rank's.
    assert (spec.directory / "by").read_text() == "xx"


def test_nodes_to_avoid_are_used_only_when_there_are_no_others(lab):
    lab.runner = lab.wide()
    first = lab.wait(lab.submit("first", "true", avoid=("node-a",)))
    both = lab.wait(lab.submit("both", "true", nodes=2, avoid=("node-a", "node-b")))
    assert (first.nodes, set(both.nodes)) == (("node-b",), {"node-a", "node-b"})
