"""`meshtune cluster probe`: its document goes into a spec as it is, its mistakes are one message, it leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from math import isfinite
from pathlib import Path

import pytest
import yaml
from command_lab import refused
from jobs import children, wait_for
from slurm_lab import free_ports

from meshtune.runners.documents import read_value
from meshtune.runners.trainer_answers import Exchange, Message, Pattern, Probed, Rate, Tier
from meshtune.search_spaces.cluster import ClusterSpec, DeviceKind, LinkSpec, MeasuredRates, ProductRate
from meshtune.tuner.cli.cluster_section import as_document, cluster_section, render_yaml
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

SPEC = {
    "model": {"layers": 2, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 128, "seq_len": 16},
    "global_batch_size": 8,
}


def rate(what: str, size: int, per_s: float) -> Rate:
    return Rate(what=what, size=size, per_s=per_s, lowest_per_s=per_s, highest_per_s=per_s, samples=3, spread=0.1)


def all_reduce(tier: Tier, ranks: int, alpha_s: float, bandwidth: float) -> Exchange:
    times = {size: 2 * (ranks - 1) * (alpha_s + size / ranks / bandwidth) for size in (2**10, 2**14, 2**20)}
    messages = tuple(Message(size_bytes=size, time_s=each, samples=5, spread=0.0) for size, each in times.items())
    return Exchange(pattern=Pattern.ALL_REDUCE, tier=tier, ranks=ranks, messages=messages)


PROBED = Probed(
    host="host",
    measured_at="2026-01-02T03:04:05+00:00",
    software={"torch": "2.13.0", "backend": "nccl"},
    seconds=20.0,
    nodes=2,
    devices_per_node=4,
    kind=DeviceKind.CUDA,
    device="a card: 80 GB #1",
    memory_bytes=2**36,
    matmul=(rate("float32", 256, 3e10), rate("float32", 512, 5.00004e10), rate("bfloat16", 512, 1e12)),
    memory=(rate("copy", 2**26, 1e10), rate("triad", 2**26, 2e10)),
    exchanges=(all_reduce(Tier.NODE, 4, 1e-5, 1e9), all_reduce(Tier.NETWORK, 2, 5e-5, 2e8)),
)


def test_the_section_is_a_cluster_with_the_best_rates_and_the_links_of_the_all_reduce():
    cluster = read_value(ClusterSpec, cluster_section(PROBED, "lab", None))
    assert (cluster.name, cluster.nodes, cluster.devices_per_node) == ("lab", 2, 4)
    assert cluster.device.peak_flops == cluster.device.sustained_flops == {"float32": 5e10, "bfloat16": 1e12}
    assert cluster.device.memory_bandwidth_bytes_per_s == 2e10
    assert cluster.device.memory_bytes == 2**36
    assert cluster_section(PROBED, "lab", 12345)["device"]["memory_bytes"] == 12345
    assert (cluster.node_link.latency_s, cluster.node_link.bandwidth_bytes_per_s) == pytest.approx((1e-5, 1e9))
    assert (cluster.network_link.latency_s, cluster.network_link.bandwidth_bytes_per_s) == pytest.approx((5e-5, 2e8))


def test_products_of_an_accelerator_have_the_speed_that_lasts():
    product = ProductRate(inputs=8, outputs=8, rows=8, forward_flops=4e11, backward_flops=2e11)
    known = {"bfloat16": MeasuredRates(products=(product,), layer_host_s=1e-3)}
    hot = replace(PROBED, rates=known, runs={"bfloat16": ()}, sustained=(rate("bfloat16", 512, 8e11),))
    device = read_value(ClusterSpec, cluster_section(hot, "lab", None)).device
    assert device.sustained_flops == {"float32": 5e10, "bfloat16": 8e11}
    assert device.measured["bfloat16"].products == (replace(product, forward_flops=3.2e11, backward_flops=1.6e11),)
    cpu = read_value(ClusterSpec, cluster_section(replace(hot, kind=DeviceKind.CPU), "lab", None)).device
    assert cpu.measured["bfloat16"].products == (product,)


def test_a_link_without_a_fit_is_unknown_and_said_so():
    flat = tuple(Message(size_bytes=size, time_s=1e-3, samples=5, spread=0.0) for size in (2**10, 2**20))
    odd = replace(PROBED, exchanges=(replace(PROBED.exchanges[0], messages=flat), PROBED.exchanges[1]))
    section = cluster_section(odd, "lab", None)
    assert "node_link" not in section
    assert "network_link" in section
    assert "node_link: left out, larger messages did not take longer" in render_yaml(odd, section)
    assert as_document(odd, section)["fits"][0]["no_fit"] == "larger messages did not take longer"


def test_the_yaml_has_one_key_and_says_where_it_comes_from():
    section = cluster_section(PROBED, "name: with [marks]", None)
    text = render_yaml(PROBED, section)
    assert yaml.safe_load(text) == {"cluster": section}
    assert text.startswith("# source: meshtune cluster probe ")
    for word in ("host host", "2026-01-02", "torch 2.13.0", "nccl", "worst residual"):
        assert word in text.split("\ncluster:")[0]


# The command


def free_port() -> str:
    """Below those that the kernel gives to whoever connects, until a rank listens there."""
    return str(free_ports(1)[0])


def start(folder: Path, *arguments: str | Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "meshtune.tuner.cli", "cluster", "probe", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        # torch makes a folder for its caches as soon as it is imported; else it would be in TMPDIR.
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor", "TMPDIR": str(folder)}
        | {"CUDA_VISIBLE_DEVICES": "", **env},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, out, err


def ours(folder: Path) -> dict[int, int]:
    """The processes of a probe that was started in this folder, and their parents."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and str(folder).encode() in (process / "cmdline").read_bytes():
                found[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def ranks(folder: Path) -> list[int]:
    """The ranks of a probe, in the order in which the process that starts them has started them."""
    found = ours(folder)
    parent = next((parent for parent in found.values() if parent in found), 0)
    return children(parent)


@pytest.fixture
def long_probe(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A probe of two ranks that would measure for minutes, once both ranks run."""
    process = start(tmp_path, "--devices-per-node", "2", "--seconds", "600", "-o", "c.yaml")
    try:
        wait_for(lambda: len(ranks(tmp_path)) == 2 or process.poll() is not None, 120)
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def check_noted(name: str, link: LinkSpec | None, text: str) -> None:
    """The link was measured; what a busy machine measures may make none, and its note says so then, and only then."""
    assert f"\n# {name}: " in text
    assert (link is None) == (f"\n# {name}: left out, " in text)


@pytest.mark.slow
def test_a_probe_of_two_ranks_at_a_models_shapes_is_a_cluster_that_a_spec_takes(tmp_path):
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(SPEC))
    arguments = ("--devices-per-node", "2", "--seconds", "4", "--name", "here", "--model", "model.yaml")
    code, out, err = finish(start(tmp_path, *arguments))
    assert code == 0, err
    (tmp_path / "model.yaml").unlink()
    assert "matmul float32" in err
    spec, space = read_spec({**SPEC, **parse_yaml(out)}, None)
    cluster = spec.cluster
    assert (cluster.name, cluster.nodes, cluster.devices_per_node) == ("here", 1, 2)
    assert cluster.device.kind is DeviceKind.CPU
    assert 1e9 < cluster.device.peak_flops["float32"] < 1e13
    assert 1e8 < cluster.device.memory_bandwidth_bytes_per_s < 1e13
    assert cluster.device.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    rates = cluster.device.measured["float32"]
    assert {(one.inputs, one.outputs) for one in rates.products} == {(32, 96), (32, 32), (32, 64), (64, 32), (32, 128)}
    assert [one.tokens for one in rates.layer_bytes_per_s] == [16, 1024]
    numbers = ("attention_flops", "loss_bytes_per_s", "updated_per_s", "layer_host_s", "step_overhead_s")
    assert all(getattr(rates, name) > 0 for name in numbers)
    check_noted("node_link", cluster.node_link, out)
    if cluster.node_link is not None:
        assert 0 <= cluster.node_link.latency_s < 1
        assert 1e6 < cluster.node_link.bandwidth_bytes_per_s < 1e13
    assert cluster.network_link is None
    assert len(space) > 0
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.long
def test_json_has_all_that_was_measured_of_three_ranks_too_and_the_file_is_written_as_well(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("mine")
    arguments = ("--devices-per-node", "3", "--seconds", "1", "--json", "--force", "-o", file)
    code, out, err = finish(start(tmp_path, *arguments))
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["cluster"] == yaml.safe_load(file.read_text())["cluster"]
    assert [(fit["pattern"], fit["tier"], fit["ranks"]) for fit in document["fits"]] == [
        ("all_reduce", "node", 3),
        ("point_to_point", "node", 2),
    ]
    for rate in chain(document["measured"]["matmul"], document["measured"]["memory"]):
        assert 0 < rate["lowest_per_s"] <= rate["per_s"] <= rate["highest_per_s"]
        assert isfinite(rate["highest_per_s"])
        assert rate["samples"] >= 3
    for exchange in document["measured"]["exchanges"]:
        sizes = [message["size_bytes"] for message in exchange["messages"]]
        assert sizes[:6] == [1024 * 4**power for power in range(6)]
        assert all(message["time_s"] > 0 and message["samples"] >= 3 for message in exchange["messages"])
    assert os.listdir(tmp_path) == ["c.yaml"]


@pytest.mark.long
def test_under_a_launcher_every_process_is_a_rank_and_rank_0_writes(tmp_path):
    file = tmp_path / "c.yaml"
    common = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    # Two nodes of one rank, as two agents of torchrun would say.
    processes = [
        start(tmp_path, "--seconds", "1", "-o", "c.yaml", RANK=str(rank), GROUP_RANK=str(rank), **common)
        for rank in (0, 1)
    ]
    ends = [finish(process) for process in processes]
    assert [(code, err) for code, _, err in ends] == [(0, ""), (0, "")]
    assert "wrote" in ends[0][1]
    assert ends[1][1] == ""
    text = file.read_text()
    cluster = read_value(ClusterSpec, yaml.safe_load(text)["cluster"])
    assert (cluster.nodes, cluster.devices_per_node) == (2, 1)
    check_noted("network_link", cluster.network_link, text)
    assert "node_link" not in text


@pytest.mark.slow
def test_a_rank_that_dies_is_one_message_and_leaves_no_process(long_probe, tmp_path):
    os.kill(ranks(tmp_path)[1], signal.SIGKILL)
    code, out, err = finish(long_probe)
    assert (code, out) == (2, "")
    assert err == "meshtune: the probe failed: rank 1 was killed by SIGKILL\n"
    assert not ours(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.long)]
)
def test_a_probe_that_is_ended_leaves_no_process_and_no_output(number, code, long_probe, tmp_path):
    os.kill(long_probe.pid, number)
    assert finish(long_probe)[0] == code
    wait_for(lambda: not ours(tmp_path), 120)
    assert not (tmp_path / "c.yaml").exists()


# Mistakes: told before anything is measured, so within the time that starting takes.


def check_refused(folder: Path, *arguments: str | Path, words: str) -> None:
    assert words in refused(folder, "cluster", "probe", "--seconds", "3600", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "c.yaml"], "c.yaml: is there already; --force replaces it"),
        (["--force", "-o", "none/c.yaml"], "none/c.yaml: cannot be written: No such file or directory"),
        (["--force", "-o", "folder"], "folder: is no ordinary file"),
        (["--force", "-o", "/dev/null"], "/dev/null: is no ordinary file"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(arguments, words, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "c.yaml").write_text("mine")
    check_refused(tmp_path, *arguments, words=words)
    assert (tmp_path / "c.yaml").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["c.yaml", "folder"]


def test_a_model_that_nobody_knows_is_told_before_anything_is_measured(tmp_path):
    check_refused(tmp_path, "--model", "gpt-nano", words="--model gpt-nano: model.preset: no model preset is called")
    (tmp_path / "m.yaml").write_text("model: {layers: 2}")
    check_refused(tmp_path, "--model", "m.yaml", words="--model m.yaml: model.")


def test_half_a_launcher_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    check_refused(tmp_path, words="WORLD_SIZE must be a whole number under a launcher, not ''")


@pytest.mark.slow
def test_a_launch_of_other_size_than_asked_for_is_refused_with_both_numbers(tmp_path, monkeypatch):
    launch = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**launch, "MASTER_PORT": free_port(), "CUDA_VISIBLE_DEVICES": ""}.items():
        monkeypatch.setenv(name, value)
    words = "--devices-per-node 4, but the launcher started 1 ranks per node"
    check_refused(tmp_path, "--devices-per-node", "4", words=words)
