"""Profiles of sites: each that comes with meshtune says where its values are from, and makes a job script that bash
reads; own ones go before them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from meshtune.runners.base import JobSpec
from meshtune.runners.documents import plain, read_value
from meshtune.runners.schedulers.batch.script import SubmitHost
from meshtune.runners.schedulers.pbs import runner as pbs
from meshtune.runners.schedulers.slurm import script as slurm
from meshtune.runners.sites.profiles import Sure, find_site, own_folder, parse_site, site_names, with_site
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.cluster import ClusterSpec
from meshtune.search_spaces.presets import cluster_presets, described

NOWHERE = Path("/nowhere")
SHIPPED = sorted(site_names(NOWHERE))
OWN = {"about": "Ours", "runner": {"kind": "slurm", "partition": "gpu", "environment": {"A": "1", "B": "2"}}}


def test_the_sites_that_come_with_meshtune_are_these():
    assert SHIPPED == ["aurora", "frontier", "lumi", "perlmutter", "polaris"]
    assert not any(site_names(NOWHERE).values())


@pytest.mark.parametrize("name", SHIPPED)
def test_every_value_of_a_site_has_a_source_and_says_how_sure_it_is(name):
    site = find_site(name, NOWHERE)
    assert set(site.evidence) == {*site.runner, "cluster"}
    assert all(found.source.startswith("https://") for found in site.evidence.values())
    # A guess says what it is guessed from.
    assert all(found.note for found in site.evidence.values() if found.sure is Sure.GUESSED)
    assert site.needs
    assert not set(site.needs) & set(site.runner)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_job_of_every_site_is_a_script_that_bash_reads(name):
    site = find_site(name, NOWHERE)
    cluster = read_value(ClusterSpec, {**described(cluster_presets()[site.cluster]), "nodes": 2})
    job = JobSpec(
        name="c1-t1-a1",
        command=("/soft/python", "train.py"),
        directory=Path("/scratch/ada/c1"),
        nodes=2,
        devices_per_node=cluster.devices_per_node,
        time_limit_s=600.0,
    )
    host = SubmitHost(python="/soft/python", environment={"PATH": "/usr/bin:/bin"})
    options = {
        key: value for key, value in with_site(site, {need: "ours" for need in site.needs}).items() if key != "kind"
    }
    if site.kind == "slurm":
        script = slurm.render(job, slurm.options_for(cluster, options), host)
        assert f"srun --nodes=2 --ntasks-per-node={cluster.devices_per_node}" in script
        assert "#SBATCH --account=ours\n" in script
    else:
        script = pbs.render(job, read_value(pbs.PbsOptions, options), host)
        assert f"mpiexec -n {2 * cluster.devices_per_node} --ppn {cluster.devices_per_node} --envall" in script
        assert "#PBS -A ours\n" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for variable in site.runner["environment"]:
        assert f"\nexport {variable}=" in script
    for line in site.runner["setup"]:
        assert f"\n{line}\n" in script
        assert "module load" not in line or script.index(line) < script.index("MASTER_ADDR")


def test_own_profiles_lie_where_the_environment_says_and_go_before_others_of_their_name(tmp_path, monkeypatch):
    assert own_folder({"MESHTUNE_SITES": str(tmp_path)}) == tmp_path
    monkeypatch.setenv("HOME", "/home/ada")
    assert own_folder({}) == Path("/home/ada/.config/meshtune/sites")
    (tmp_path / "frontier.yaml").write_text(yaml.safe_dump(OWN))
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump(OWN))
    assert list(site_names(tmp_path).items())[:3] == [("frontier", True), ("ours", True), ("aurora", False)]
    assert find_site("frontier", tmp_path).about == "Ours"
    assert find_site("ours", tmp_path) == parse_site(OWN) == parse_site(plain(parse_site(OWN)))


def test_an_unknown_site_is_told_with_those_there_are(tmp_path):
    with pytest.raises(InvalidValue, match="no site is called 'fronteir'; did you mean 'frontier'"):
        find_site("fronteir", tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"about": None}, "about: must be"),
        ({"runner": {"kind": "lsf"}}, "runner.kind: must be one of"),
        ({"cluster": "fronteer"}, "cluster: no cluster preset is called 'fronteer'; did you mean 'frontier'"),
        ({"evidence": {"qos": {"sure": "guessed", "source": "x"}}}, "evidence.qos: is evidence for nothing"),
        ({"evidence": {"partition": {"sure": "certain", "source": "x"}}}, "evidence.partition.sure: "),
        ({"evidence": {"partition": {"sure": "guessed", "source": " "}}}, "evidence.partition.source: must not be"),
        ({"launcher": "srun"}, "launcher: is not a known key"),
    ],
)
def test_a_profile_that_cannot_be_is_told(change, problem, tmp_path):
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({**OWN, **change}))
    with pytest.raises(InvalidValue) as caught:
        find_site("ours", tmp_path)
    assert f"ours.yaml.{problem}" in str(caught.value)


def test_the_specs_own_values_win_and_mappings_are_merged():
    section = {"site": "ours", "partition": "long", "setup": ["module load x"], "environment": {"B": "3", "C": "4"}}
    assert with_site(parse_site(OWN), section) == {
        "kind": "slurm",
        "partition": "long",
        "setup": ["module load x"],
        "environment": {"A": "1", "B": "3", "C": "4"},
    }
    with pytest.raises(InvalidValue, match="kind: must be slurm or left out with this site, not 'pbs'"):
        with_site(parse_site(OWN), {"kind": "pbs"})
