"""The report, the lossless record and the table of a campaign, and the commands that write them: all say what the store
and the other commands say, and nothing of a job becomes markup."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet
import pytest
import toy
import yaml
from command_lab import run_meshtune
from simulated_lab import HOSTILE, failing

from meshtune.runners.documents import plain
from meshtune.runners.outcome import Verdict
from meshtune.runners.untrusted_text import CONTROLS
from meshtune.search_spaces.checks import InvalidValue
from meshtune.search_spaces.knob import Knob
from meshtune.search_spaces.knob_values import KnobValues
from meshtune.tuner.campaign.objective import yardstick_of
from meshtune.tuner.campaign.spec import space_of
from meshtune.tuner.campaign.trial import Origin, Trial
from meshtune.tuner.campaign.units import device_time, gibibytes, number
from meshtune.tuner.results.analysis.analysis import analyse
from meshtune.tuner.results.ranking import rank
from meshtune.tuner.results.record import Record, read_record, record_json
from meshtune.tuner.results.report.campaigns import render_report
from meshtune.tuner.results.report.page import PageTable, Section, page
from meshtune.tuner.results.table import Table, TableFormat, csv_of, data_of, parquet_of, table_of
from meshtune.tuner.results.views import best_view
from meshtune.tuner.results.winners import winners_of
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

CAMPAIGN, TRIALS = failing()


class Reader(HTMLParser):
    """The texts of a page, its tags, and all values of attributes by their names."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attributes]

    def handle_data(self, data):
        self.texts.append(data.strip())

    def of(self, name: str) -> list[str]:
        return [value for key, value in self.attributes if key == name]


@pytest.fixture(scope="module")
def text() -> str:
    return render_report([(CAMPAIGN, TRIALS)])


@pytest.fixture(scope="module")
def read(text) -> Reader:
    return Reader(text)


def test_the_first_section_is_the_answer_with_the_numbers_of_best(text, read):
    best = best_view(CAMPAIGN, rank(CAMPAIGN, TRIALS), 10)
    setting, once = best.recommendation.setting, best.fastest_once
    assert "\n".join(read.texts).index("The answer") < "\n".join(read.texts).index("Why")
    answer = Reader(text[text.index("section-1") : text.index("section-2")] + text[text.rindex('id="section-1"') :])
    said = answer.texts[: answer.texts.index("Why")]
    one = setting.objective
    assert f"{number(one.value)} ({number(one.low)} to {number(one.high)})" in said
    assert setting.gain_over_baseline.percent_text("+") in said
    assert f"Recommended: {best.recommendation.reason}." in said
    # The setting as its difference from the baseline, by the names that the page has for the axes.
    assert "tensor 4 \u2192 8, pipeline 128 \u2192 64, micro-batch 1 \u2192 2, ZeRO 1 \u2192 0" in said
    assert f"trial {setting.trial}: {setting.plan_key}; {setting.runs} second runs" in said
    assert "simulated by" in said
    # One speed: what was faster once is one line with its reason.
    (line,) = (told for told in said if told.startswith("Fastest once, by its first run"))
    assert f"(trial {once.trial}, " in line
    assert not any(told.startswith("Fastest confirmed") for told in said), "it is what is recommended"


def test_every_setting_is_a_row_with_its_second_runs_folded_in(text):
    tables = text[text.rindex(">Every setting</h") :].partition("</section>")[0]
    rows = {
        int(row[1]): row[0]
        for each in re.findall(r"<tr>(.*?)</tr>", tables)
        if (row := re.match(r'<td class="number">(\d+)</td>.*', each))
    }
    assert sorted(rows) == [trial.number for trial in TRIALS if trial.origin is not Origin.CONFIRMATION]
    for number_of, row in rows.items():
        assert (TRIALS[number_of].verdict is Verdict.OOM) == (">out of memory<" in row.replace("\u00a0", " "))
    for entry in rank(CAMPAIGN, TRIALS):
        row = rows[entry.trial.number]
        assert f">{gibibytes(entry.peak_memory_bytes)}<" in row
        assert f">{number(entry.objective.value)}<" in row
        assert not entry.again or f">{len(entry.runs) - 1} of {len(entry.again)}<" in row


def test_the_memory_of_the_answer_is_that_of_the_table_although_the_process_holds_more():
    def holding(trial: Trial) -> Trial:
        measured = trial.measurement
        if measured is None:
            return trial
        more = replace(measured, peak_held_bytes=tuple(one + 2**30 for one in measured.peak_memory_bytes))
        return replace(trial, attempts=(replace(trial.last, outcome=replace(trial.outcome, measurement=more)),))

    held = [holding(trial) for trial in TRIALS]
    found = winners_of(CAMPAIGN.spec, rank(CAMPAIGN, held)).recommended
    assert found.measurement.fullest_rank_bytes > found.peak_memory_bytes
    texts = Reader(render_report([(CAMPAIGN, held)])).texts
    assert texts[texts.index("peak memory of tensors") + 1] == gibibytes(found.peak_memory_bytes)
    assert gibibytes(int(found.measurement.fullest_rank_bytes)) not in texts


def test_nothing_simulated_is_called_measured_and_no_cell_is_a_dash(text, read):
    assert "Predicted against simulated" in read.texts
    said = [told for told in read.texts if "measured" in told and "warm_start: true" not in told]
    assert said == ["Simulated: nothing below was measured on any device."]
    assert {"-", "oom"}.isdisjoint(read.texts)


@pytest.mark.parametrize(
    ("layers", "said"), [(2, "28,832 parameters"), (400, "4.13 million parameters"), (4 * 10**5, "4.122 billion")]
)
def test_a_model_has_its_size_in_a_unit_that_fits(layers, said):
    sizes = {"layers": layers, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 128, "seq_len": 16}
    spec, _ = read_spec(toy.SPEC | {"model": sizes}, None)
    assert f"model: {said}" in render_report([(replace(CAMPAIGN, spec=spec), [])])


@pytest.mark.parametrize(
    ("spent_s", "said"), [(16.3, "16.3 device-seconds"), (90, "1.5 device-minutes"), (3600, "1 device-hour")]
)
def test_device_time_is_in_the_unit_that_fits(spent_s, said):
    assert device_time(spent_s) == said


def test_it_says_plainly_that_nothing_was_measured(read):
    assert "Simulated: nothing below was measured on any device." in read.texts
    real = replace(CAMPAIGN, spec=replace(CAMPAIGN.spec, runner=replace(CAMPAIGN.spec.runner, kind="slurm")))
    assert "Simulated" not in render_report([(real, TRIALS[:1])])


def test_it_tells_failures_and_what_causes_out_of_memory_and_every_trial(read):
    ended = [trial for trial in TRIALS if trial.verdict is not Verdict.CANCELLED]
    failed = sum(trial.measurement is None and trial.verdict is not Verdict.PRUNED for trial in ended)
    assert any(told.startswith(f"{failed} of {len(ended)} trials failed") for told in read.texts)
    assert "Out of memory goes with pipeline = 8 the most: 2 of the 2 plans that had it." in read.texts
    assert any(told.startswith("All else equal, pipeline 64 \u2192 8 made a plan run out") for told in read.texts)
    assert any("recompute: full" in told and "warm_start: true" in told for told in read.texts)


def test_the_words_of_a_job_are_text(text, read):
    assert HOSTILE in read.texts
    assert "<script" not in text


def test_it_names_nothing_that_a_browser_would_fetch_and_no_id_twice(text, read):
    assert {"script", "img", "link", "iframe", "object"}.isdisjoint(read.tags)
    targets = [value for name in ("href", "xlink:href", "src") for value in read.of(name)]
    assert targets
    assert all(value.startswith("#") and value[1:] in read.of("id") for value in targets)
    assert "@import" not in text
    assert "url(http" not in text
    assert len(read.of("id")) == len(set(read.of("id")))


def test_a_campaign_that_has_just_begun_has_a_report_and_several_are_compared_first(read):
    alone = Reader(render_report([(CAMPAIGN, [])]))
    assert "No setting has a speed." in alone.texts
    assert "svg" not in alone.tags, "no chart is empty"
    assert not {"Predicted against simulated", "Every setting", "Trials by node"} & set(alone.texts)
    larger = replace(
        CAMPAIGN, id="larger-000000", spec=replace(CAMPAIGN.spec, cluster=replace(CAMPAIGN.spec.cluster, nodes=768))
    )
    trials = [replace(trial, campaign_id=larger.id) for trial in TRIALS]
    both = Reader(render_report([(CAMPAIGN, TRIALS), (larger, trials)]))
    place = both.texts.index
    assert place("Campaigns side by side") < place("The answer") < place("What was asked")
    assert both.texts.count("The answer") == 2 * read.texts.count("The answer")
    assert len(both.of("id")) == len(set(both.of("id")))


def test_a_page_takes_any_sections_and_escapes_them():
    table = PageTable(columns=("<b>",), rows=[("<i>",)], caption="<u>")
    sections = [Section(heading="<s>", prose=["<p onclick=x>"], tables=[table], verbatim="<pre>")]
    read = Reader(page("<title>", sections, subtitle=["<em>"], notices=["<q>"]))
    assert {"<b>", "<i>", "<u>", "<s>", "<p onclick=x>", "<pre>", "<em>", "<q>", "<title>"} <= set(read.texts)
    assert {"b", "i", "u", "s", "em", "q"}.isdisjoint(read.tags)


def test_no_control_character_of_a_name_or_a_job_reaches_the_file():
    name = "a\x1b]0;b\x07\u202e\x9b"
    named = replace(CAMPAIGN, spec=replace(CAMPAIGN.spec, name=name, model=replace(CAMPAIGN.spec.model, name=name)))
    written = render_report([(named, TRIALS), (replace(named, id="other-000000"), TRIALS)])
    assert not CONTROLS.search(written)
    assert r"a\x1b]0;b\x07\u202e\x9b" in Reader(written).texts


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
    ids = re.findall(r"toy-\d-[0-9a-f]{6}", run_meshtune(folder, "show", "--all").out)
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


@pytest.fixture(scope="module")
def record() -> Record:
    campaign, trials = failing()
    return Record(campaign=campaign, trials=trials)


def test_a_campaign_with_failures_reads_back_to_equal_values(record):
    assert {Verdict.OK, Verdict.OOM, Verdict.CRASHED, Verdict.PRUNED} <= {trial.verdict for trial in record.trials}
    assert max(len(trial.attempts) for trial in record.trials) > 1
    text = record_json(record)
    assert read_record(text) == record
    assert record_json(read_record(text)) == text


def test_whoever_has_the_record_analyses_as_the_service_does(record):
    back = read_record(record_json(record))
    once, again = (analyse(one.campaign, space_of(one.campaign.spec), one.trials) for one in (record, back))
    assert plain(again) == plain(once)


def test_the_text_is_strict_json_although_a_loss_diverged(record):
    def refused(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    document = json.loads(record_json(record), parse_constant=refused)
    assert document["trials"][-1]["attempts"][0]["outcome"]["partial"]["first_losses"] == [7.5, "inf"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": 2}', "version: must be 1, the version of records that this meshtune reads, not 2"),
        ("[]", "version: must be 1, the version of records that this meshtune reads, not None"),
        ('{"version": 1, "trials": []}', "campaign: is missing"),
        ('{"version": 1', "is not JSON"),
    ],
)
def test_what_is_no_record_is_refused_with_its_path(text, told):
    with pytest.raises(InvalidValue) as caught:
        read_record(text)
    assert told in str(caught.value)


def test_a_trial_of_another_campaign_is_refused(record):
    with pytest.raises(InvalidValue, match=f"trial 0 is of the campaign other, not of {record.campaign.id}"):
        replace(record, trials=(replace(record.trials[0], campaign_id="other"),))


def cells(table: Table) -> list[dict[str, object]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def read_back(text: str, kind: type) -> object:
    if text == "":
        return None
    if kind is bool:
        return text == "True"
    return datetime.fromisoformat(text) if kind is datetime else kind(text)


def test_every_trial_is_a_row_with_its_plan_its_numbers_and_what_was_expected():
    rows = cells(table_of(CAMPAIGN, TRIALS))
    assert [row["number"] for row in rows] == [trial.number for trial in TRIALS]
    for row, trial in zip(rows, TRIALS, strict=True):
        assert (row["tp"], row["recompute"], row["plan"]) == (trial.plan.tp, str(trial.plan.recompute), trial.plan.key)
        measured, expected = trial.measurement, trial.expectation
        assert (row["step_time_s"] is None) == (measured is None)
        if measured is not None:
            assert row["objective"] == yardstick_of(CAMPAIGN.spec).of(measured, measured.step_time_s)
            assert row["headroom_bytes"] == CAMPAIGN.spec.cluster.device.memory_bytes - measured.fullest_rank_bytes
        assert row["p_fits"] == (None if expected is None else expected.p_fits)


def test_csv_parquet_and_json_say_the_same():
    table = table_of(CAMPAIGN, TRIALS)
    written = list(csv.reader(io.StringIO(csv_of(table).decode())))
    assert written[0] == list(table.columns)
    kinds = list(table.columns.values())
    plain = [row for row, trial in zip(written[1:], TRIALS, strict=True) if trial.verdict is not Verdict.CRASHED]
    same = [row for row, trial in zip(table.rows, TRIALS, strict=True) if trial.verdict is not Verdict.CRASHED]
    assert [tuple(map(read_back, row, kinds)) for row in plain] == [
        tuple(cell or None if cell == "" else cell for cell in row) for row in same
    ]
    parquet = pyarrow.parquet.read_table(io.BytesIO(parquet_of(table, {"campaign": CAMPAIGN.label})))
    assert parquet.to_pylist() == cells(table)
    assert parquet.schema.metadata[b"campaign"] == f"{CAMPAIGN.id} (simulated)".encode()
    record = read_record(data_of(CAMPAIGN, TRIALS, TableFormat.JSON))
    assert table_of(record.campaign, record.trials) == table


@pytest.mark.parametrize("begin", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1"])
def test_a_text_that_a_spreadsheet_would_compute_is_a_text_there(begin):
    table = Table(columns={"reason": str, "number": int}, rows=((begin, -1),))
    read = list(csv.reader(io.StringIO(csv_of(table).decode(), newline="")))
    assert read[1] == [f"'{begin}", "-1"]


def test_the_words_of_a_job_are_no_formula_in_a_spreadsheet():
    crashed = next(
        row
        for row in csv.DictReader(io.StringIO(csv_of(table_of(CAMPAIGN, TRIALS)).decode()))
        if row["verdict"] == "crashed"
    )
    assert crashed["reason"] == f"'{HOSTILE}"


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ((1, 2), int, [1, 2]),
        ((1, 2.5), float, [1.0, 2.5]),
        ((1, "auto"), str, ["1", "auto"]),
        ((True, 3), str, ["true", "3"]),
    ],
)
def test_a_knob_is_a_column_and_one_of_several_types_is_text(values, kind, shown):
    spec = replace(CAMPAIGN.spec, knobs=(Knob(name="own", values=values),))
    trials = [replace(TRIALS[0], plan=replace(TRIALS[0].plan, knobs=KnobValues({"own": value}))) for value in values]
    table = table_of(replace(CAMPAIGN, spec=spec), [*trials, TRIALS[1]])
    assert table.columns["knob_own"] is kind
    assert [row["knob_own"] for row in cells(table)] == [*shown, None]
