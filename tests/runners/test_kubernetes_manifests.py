"""The Job and the Service of a trial, against the models that the official client has from the API's schema."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from places import cluster

from meshtune.runners.base import JobSpec
from meshtune.runners.schedulers.kubernetes.manifests import User, object_name, render_job, render_service
from meshtune.runners.schedulers.kubernetes.options import KubernetesOptions, options_for
from meshtune.search_spaces.checks import InvalidValue

SPEC = JobSpec(
    name="c1-t3-a1",
    command=("python", "$(x)"),
    directory=Path("/shared/c1-t3-a1"),
    nodes=2,
    devices_per_node=8,
    time_limit_s=600.5,
    avoid=("bad-node", "worse"),
)
OPTIONS = KubernetesOptions(
    image="registry.example.org/train:1",
    queue="gpu-queue",
    device="amd.com/gpu",
    limits={"memory": "64Gi"},
    claims={"/shared": "team-data"},
    host_paths=("/scratch",),
    node_selector={"pool": "big"},
    tolerations=({"key": "amd.com/gpu", "operator": "Exists"},),
    service_account="trainer",
    container={"imagePullPolicy": "Always", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
    pod={"hostNetwork": True, "priorityClassName": "low"},
)


def test_the_objects_are_as_the_api_documents_them():
    pytest.importorskip("kubernetes")
    from kubernetes_lab import require_as_documented

    require_as_documented("Job", render_job(SPEC, OPTIONS, User(1000, 100)))
    require_as_documented("Service", render_service())


def test_a_job_is_a_pod_per_node_that_is_never_started_again():
    job = render_job(SPEC, OPTIONS, User(1000, 100))
    spec = job["spec"]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"
    assert {
        name: spec[name] for name in ("parallelism", "completions", "completionMode", "backoffLimit", "suspend")
    } == {
        "parallelism": 2,
        "completions": 2,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": True,
    }
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"] == {"limits": {"memory": "64Gi", "amd.com/gpu": "8"}}
    assert (pod["restartPolicy"], pod["activeDeadlineSeconds"], pod["hostNetwork"]) == ("Never", 2521, True)
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert pod["securityContext"] == {"runAsUser": 1000, "runAsGroup": 100}
    assert pod["automountServiceAccountToken"] is False
    assert [one["key"] for one in pod["tolerations"]] == [
        "amd.com/gpu",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shm": "/dev/shm", "claim-0": "/shared", "host-0": "/scratch"}
    assert "podAntiAffinity" in pod["affinity"]
    (away,) = pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [field["values"] for field in away["preference"]["matchFields"]] == [["bad-node"], ["worse"]]
    address = next(one["value"] for one in container["env"] if one["name"] == "MASTER_ADDR")
    assert address == f"{job['metadata']['name']}-0.{render_service()['metadata']['name']}"


def test_without_kueue_and_root_and_peers_nothing_is_said_of_them():
    job = render_job(replace(SPEC, nodes=1, avoid=()), KubernetesOptions(image="x"), User(0, 0))
    assert "suspend" not in job["spec"]
    assert not {"affinity", "securityContext", "nodeSelector"} & job["spec"]["template"]["spec"].keys()


@pytest.mark.parametrize("name", ["c1-t3-a1", "C1_t3.a1", "1st", "-", "x" * 200])
def test_names_are_labels_of_their_own_for_each_folder(name):
    specs = [replace(SPEC, name=name, directory=Path(folder)) for folder in ("/a", "/b")]
    first, second = map(object_name, specs)
    assert first != second
    assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", first)
    assert len(first) <= 46


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "image: is missing"),
        ({"image": "two words"}, "image: must name an image, not 'two words'"),
        ({"namespace": "Team"}, "namespace: must have lower-case letters"),
        ({"queue": "a/b"}, "queue: must have lower-case letters"),
        ({"claims": {"data": "c"}}, "claims: must be paths from the root on, not ['data']"),
        ({"host_paths": ["data"]}, "host_paths: must be paths from the root on"),
        ({"pod": {"containers": [], "volumes": []}}, "pod: must leave containers, volumes to the runner"),
        ({"container": {"image": "y"}}, "container: must leave image to the runner"),
        ({"call_limit_s": 0}, "call_limit_s: must be positive"),
        ({"imagee": "x"}, "imagee: is not a known key; did you mean 'image'?"),
    ],
)
def test_options_that_cannot_be_are_refused(options, problem):
    place = cluster(1, 2, "cuda")
    with pytest.raises(InvalidValue) as error:
        options_for(place, {"image": "x"} | options if options else {})
    assert problem in str(error.value)
    assert options_for(place, {"image": "x"}).device == "nvidia.com/gpu"
