"""`runner: {site: NAME}` in a spec, and `meshtune sites`: what is stored names no site any more."""

from __future__ import annotations

import json

import pytest
import yaml
from command_lab import run_meshtune

from meshtune.runners.sites.profiles import FOLDER_VARIABLE
from meshtune.tuner.specs.document import InvalidSpec, commands_named
from meshtune.tuner.specs.read import parse_spec
from meshtune.tuner.store.rows import decode_spec, encode_spec

SPEC = {
    "model": "gpt-1.4b",
    "cluster": {"nodes": 2},
    "global_batch_size": 64,
    "runner": {"site": "frontier", "account": "abc123", "environment": {"NCCL_SOCKET_IFNAME": "hsn0"}},
}
OWN = {"about": "Ours", "cluster": "dgx-h100", "runner": {"kind": "slurm", "partition": "gpu", "setup": ["true"]}}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """No profiles of whoever runs the tests."""
    folder = tmp_path / "sites"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def test_a_site_is_written_out_with_the_specs_own_values_over_it():
    spec, _ = parse_spec(SPEC, None)
    assert (spec.cluster.name, spec.cluster.nodes, spec.cluster.devices_per_node) == ("frontier", 2, 8)
    assert spec.runner.kind == "slurm"
    options = spec.runner.options
    assert "site" not in options
    assert (options["account"], options["partition"], options["gpu_bind"]) == ("abc123", "batch", "closest")
    assert options["environment"]["NCCL_SOCKET_IFNAME"] == "hsn0"
    assert options["environment"]["FI_MR_CACHE_MONITOR"] == "kdreg2"
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize(
    ("cluster", "name", "nodes"),
    [(None, "frontier", 1), ({"preset": "dgx-h100", "nodes": 3}, "dgx-h100", 3), ("mi300x", "mi300x", 1)],
)
def test_a_cluster_that_the_spec_names_itself_stays(cluster, name, nodes):
    spec, _ = parse_spec({**SPEC, "cluster": cluster}, None)
    assert (spec.cluster.name, spec.cluster.nodes) == (name, nodes)


def test_a_profile_may_stand_in_the_spec_itself():
    spec, _ = parse_spec({**SPEC, "runner": {"site": OWN}}, None)
    assert (spec.cluster.name, dict(spec.runner.options)) == ("dgx-h100", {"partition": "gpu", "setup": ["true"]})


@pytest.mark.parametrize(
    ("runner", "path", "told"),
    [
        ({"site": "fronteir"}, "runner.site", "no site is called 'fronteir'; did you mean 'frontier'"),
        ({"site": "./ours.yaml"}, "runner.site", "'./ours.yaml' is a path, which only the command line reads"),
        ({"site": "frontier", "kind": "pbs"}, "runner.kind", "must be slurm or left out with this site, not 'pbs'"),
        ({"site": {"about": "x"}}, "runner.site.runner", "is missing"),
        ({"site": 3}, "runner.site", "must be a mapping of keys, not 3"),
    ],
)
def test_what_is_wrong_with_a_site_is_told_with_the_other_mistakes(runner, path, told):
    with pytest.raises(InvalidSpec) as caught:
        parse_spec({**SPEC, "runner": runner, "cluster": "mi300x", "parallel": 0}, None)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert found.keys() == {path, "parallel"}
    assert told in found[path]


def test_a_value_of_an_own_profile_that_cannot_be_stored_is_told(own_folder):
    own_folder.mkdir()
    (own_folder / "ours.yaml").write_text("about: x\nrunner: {kind: slurm, poll_s: .nan}\n")
    with pytest.raises(InvalidSpec, match=r"runner\.poll_s: must be a finite number"):
        parse_spec({**SPEC, "cluster": "mi300x", "runner": {"site": "ours"}}, None)


def test_what_a_site_needs_of_its_user_is_asked_for_where_jobs_are_to_run(home):
    without = {**SPEC, "runner": {"site": "frontier"}}
    parse_spec(without, None)
    with pytest.raises(InvalidSpec, match=r"runner\.account: is missing, and jobs of this site need it"):
        parse_spec(without, home)


def test_a_site_by_name_needs_no_scope_but_a_profile_does():
    """A profile that this machine knows is its operator's; one that comes with the spec is somebody's setup lines."""
    assert commands_named({**SPEC, "runner": {"site": "frontier", "account": "a"}}) == []
    flagged = {"setup": ["x"], "environment": {"LD_PRELOAD": "/x"}, "prefix": "x"}
    found = commands_named({**SPEC, "runner": {"site": "frontier", **flagged}})
    assert [problem.path for problem in found] == [f"runner.{name}" for name in flagged]
    for odd in ("nowhere", "./x.yaml", OWN):
        assert [problem.path for problem in commands_named({**SPEC, "runner": {"site": odd}})] == ["runner.site"]


def test_sites_are_listed_and_shown_with_their_sources(tmp_path, own_folder):
    own_folder.mkdir()
    (own_folder / "ours.yaml").write_text(yaml.safe_dump(OWN))
    listed = run_meshtune(tmp_path, "sites").out
    assert "ours" in listed
    assert "Ours (your own)" in listed
    assert [entry["name"] for entry in json.loads(run_meshtune(tmp_path, "sites", "--json").out)][:2] == [
        "ours",
        "aurora",
    ]
    shown = run_meshtune(tmp_path, "sites", "frontier").out
    assert "gpu_bind: closest\n    documented: https://docs.olcf.ornl.gov" in shown
    assert "  FI_MR_CACHE_MONITOR: kdreg2\n" in shown
    assert "in a spec: runner: {site: frontier, account: ...}" in shown
    refused = run_meshtune(tmp_path, "sites", "fronteir")
    assert (refused.code, "did you mean 'frontier'" in refused.err) == (2, True)


def test_a_path_is_read_beside_the_spec(tmp_path):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "ours.yaml").write_text(yaml.safe_dump(OWN))
    spec = tmp_path / "specs" / "spec.yaml"
    spec.write_text(yaml.safe_dump({**SPEC, "runner": {"site": "./ours.yaml"}}))
    done = run_meshtune(tmp_path, "spaces", "specs/spec.yaml")
    assert done.code == 0, done.err
    spec.write_text(yaml.safe_dump({**SPEC, "runner": {"site": "./nowhere.yaml"}}))
    refused = run_meshtune(tmp_path, "spaces", "specs/spec.yaml")
    assert refused.code == 2
    assert "runner.site: " in refused.err
    assert "nowhere.yaml: No such file or directory" in refused.err
