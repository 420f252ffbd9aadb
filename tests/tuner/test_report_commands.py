"""`export-data` and `report` on a finished simulated campaign."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pyarrow.parquet
import pytest
import toy
import yaml
from command_lab import run_meshtune

from meshtune.tuner.campaign.units import number
from meshtune.tuner.results.record import read_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two simulated campaigns that are done."""
    folder = tmp_path_factory.mktemp("reports")
    for nodes in (1, 2):
        spec = toy.SPEC | {
            "name": f"toy-{nodes}",
            "cluster": toy.CLUSTER | {"nodes": nodes},
            "baseline": {"tp": 1, "pp": 1},
        }
        (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
        done = run_meshtune(folder, "run", "spec.yaml")
        assert done.code == 0, done
    return folder


def test_a_report_has_the_numbers_of_best(folder):
    done = run_meshtune(folder, "report", "last", "-o", "last.html")
    assert (done.code, done.out, done.err) == (0, "wrote last.html\n", "")
    best = json.loads(run_meshtune(folder, "best", "last", "--json").out)
    text = (folder / "last.html").read_text()
    assert best["campaign"] in text
    assert number(best["recommendation"]["setting"]["objective"]["value"]) in text
    assert best["recommendation"]["setting"]["plan_key"] in text


def test_several_campaigns_are_one_report_and_one_named_twice_is_there_once(folder):
    ids = re.findall(r"toy-\d-[0-9a-f]{6}", run_meshtune(folder, "show").out)
    done = run_meshtune(folder, "report", "last", *ids, "-o", "all.html")
    assert done.code == 0, done
    text = (folder / "all.html").read_text()
    assert "Campaigns side by side" in text
    assert text.count(">What was asked</h") == len(ids) == 2


def test_data_is_printed_or_written_the_same_in_every_format(folder):
    printed = run_meshtune(folder, "export-data", "last")
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    assert [int(row["number"]) for row in rows] == list(range(len(rows)))
    for format in ("csv", "parquet", "json"):
        done = run_meshtune(folder, "export-data", "last", "--format", format, "-o", f"data.{format}")
        assert (done.code, done.out) == (0, f"wrote data.{format}\n")
    assert (folder / "data.csv").read_bytes().decode() == printed.out
    assert [float(row["step_time_s"] or 0) for row in rows] == [
        value or 0 for value in pyarrow.parquet.read_table(folder / "data.parquet")["step_time_s"].to_pylist()
    ]
    assert len(read_record((folder / "data.json").read_bytes()).trials) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("export-data", "last", "--format", "parquet"), "--format parquet: needs -o FILE"),
        (("export-data", "nobody"), "there is no campaign nobody"),
        (("report", "last", "-o", "no/such/folder.html"), "no/such/folder.html: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_told(folder, arguments, told):
    done = run_meshtune(folder, *arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
