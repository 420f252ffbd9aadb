"""Pages of the documentation name what there is: their links, the files that they name, the picture of rooms, what
commands print, and numbers."""

from __future__ import annotations

import re
from pathlib import Path

import keys
import pytest
import samples

from meshtune.runners.registry import SCHEDULERS, WORKLOADS, load
from meshtune.search_spaces.presets import cluster_presets, model_presets
from meshtune.tuner.results.export import FORMATS
from meshtune.tuner.search.registry import SEARCHES

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
FOLDERS = "tests|benchmarks|runners|tuner|api|search_spaces|docs|examples|src"
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]+\.(?:py|md|yaml|toml|json|html|ts|tsx|txt|svg|png))`")
# Experiments name what there was.
PAST = {"benchmarks/log.md", "CHANGELOG.md"}
# Made when the site or the dashboard is built.
MADE = {f"docs/reference/{name}.md" for name in ("cli", "runners", "programs")} | {"api/static/licenses.md"}
# A name to be filled in, such as runners/sites/NAME.yaml.
BLANK = re.compile(r"^[A-Z]+\.")


def of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if of(page) not in PAST], ids=of)
def test_the_files_that_a_page_names_exist(page):
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text())
    links = {(page.parent / link).resolve() for link in re.findall(r"\]\(((?!https?:|#|mailto:)[^)#]+)", text)}
    named = {ROOT / name for name in NAMED.findall(text)}
    missing = {of(path) for path in links | named if not path.exists() and not BLANK.search(path.name)}
    assert missing <= MADE


ASKED = {name for page in PAGES for name in re.findall(r"^\{\{ keys (\S+)", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("kind", sorted(ASKED | {row.options for row in SCHEDULERS.values()}))
def test_every_key_of_a_table_has_words(kind):
    assert all(group[0].meaning for group in keys.groups(load(kind)))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in samples.PAGES if samples.CONSOLE.search(page.read_text())], ids=of)
def test_a_page_shows_what_its_commands_print(page, tmp_path):
    text = samples.made(page, tmp_path)
    if samples.writes():
        page.write_text(text)
    else:
        assert page.read_text() == text, "make docs-samples"


# How lines begin that a command prints. Inside a sentence, between backticks, they are words and no sample.
PRINTED = re.compile(
    r"(?m)^ *(?:second run, )?(?:trial \d+: |wrote |note: |open question: |next: |Recommended: |Fastest "
    r"|No recommendation|basis: |confirmed: |stands: |learns from |simulated: |meshtune: |\S+: illegal$"
    r"|from \S+-[0-9a-f]{6}, )"
)


@pytest.mark.parametrize("page", samples.PAGES, ids=of)
def test_no_sample_output_is_typed(page):
    text = page.read_text()
    for made in (samples.CONSOLE, re.compile(samples.RUN.format(name=r"\S+"))):
        text = made.sub("", text)
    blocks = re.findall(r"(?m)(?:^ {4}.*\n)+|^```(?:text)?\n(?s:.*?)^```$", text)
    assert [block for block in blocks if PRINTED.search(block)] == []


def test_a_measured_line_is_compared_by_its_words():
    line = "second run, trial 6: tp1 pp1 dp2 mbs8 ga1 zero0: ok, step 1.2 s (expected 71.9 ms), 14,826 tokens/s"
    assert samples.shape(line) == samples.shape(line.replace("mbs8 ga1", "mbs1 ga8").replace("1.2 s", "950.1 ms"))
    assert samples.shape(line) != samples.shape(line.replace("step", "time"))
    assert samples.shape(line) != samples.shape(line.replace("second run, ", ""))


def test_what_only_some_outcomes_tell_may_be_missing_and_may_not_differ():
    always = [
        "trial 6: tp1 pp1 dp2 mbs8 ga1 zero0: ok, step 1.2 s",
        "Recommended: tp1 pp1 dp2 mbs8 ga1 zero0 (trial 6)",
    ]
    again = [
        "second run, trial 7: tp1 pp1 dp2 mbs8 ga1 zero0: ok, step 1.3 s",
        "trial 6, second run (trial 7): 12,595 after 8,193 tokens/s/device (+53.7 % in speed)",
        "Fastest confirmed: tp1 pp1 dp2 mbs8 ga1 zero0 (trial 6): 12,595 tokens/s/device by 1 second run",
    ]
    assert samples.alike([*always, *again], always)
    assert samples.alike([*always, *again], [*again[:1], *always])
    for line in again:
        assert not samples.alike([*always, *again], [*always, *again, f"{line}, as ever"]), line
        assert not samples.alike([*always, line], [*always, line.replace("tri", "t")]), line
    assert not samples.alike([*always, *again], always[:1])


COUNTED = {
    "models": model_presets(),
    "clusters": cluster_presets(),
    "searches": SEARCHES,
    "formats": FORMATS,
    "runners": SCHEDULERS,
    "workloads": WORKLOADS,
}


def test_a_number_of_what_there_is_is_that_number():
    pages = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "reference" / "presets.md"]
    text = "\n".join(page.read_text() for page in pages)
    said = re.findall(rf"\b(\d+)\s+({'|'.join(COUNTED)})\b", text)
    assert {"models", "clusters"} <= {kind for _, kind in said}
    assert [(int(number), kind) for number, kind in said] == [(len(COUNTED[kind]), kind) for _, kind in said]


@pytest.mark.parametrize(("head", "there"), [("runner", SCHEDULERS), ("workload", WORKLOADS)])
def test_the_readme_has_a_row_of_each(head, there):
    (rows,) = re.findall(rf"(?m)^\| {head} \|.*\n\|---\|---\|\n((?:\|.*\n)+)", (ROOT / "README.md").read_text())
    assert {name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])} == set(there)
