"""The page of a new campaign: from a launch script, a form or a text; its quote says what is wrong with it."""

import re

import pytest
from playwright.sync_api import Page, expect

MEGATRON = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
srun torchrun --nnodes 4 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4 \\
  --pipeline-model-parallel-size 2 --num-layers $LAYERS --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 256 --bf16 --lr 3e-4 --train-iters 1000 \\
  --tokenizer-type NullTokenizer --vocab-size 50000 --mock-data
"""
ZERO = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'
SPEC = """name: small
model: gpt-micro
cluster: local-cpu
global_batch_size: 8
runner: simulated
workload: simulated
budget: {trials: 5}
"""
EDITOR = "Campaign spec, YAML or JSON"


@pytest.fixture
def page(open_page, service, sign_in) -> Page:
    page = open_page()
    sign_in(page, service)
    page.goto(f"{service.url}/#/new")
    return page


def chosen(page: Page, label: str):
    return page.locator("label", has=page.get_by_text(label, exact=True)).get_by_role("combobox")


def script(page: Page):
    return page.get_by_role("textbox", name="Launch script")


def test_a_pasted_script_asks_what_it_leaves_open_and_has_a_quote(page):
    expect(page.get_by_role("tab").first).to_have_text("From my launch script")
    script(page).fill(MEGATRON)
    chosen(page, "Cluster").select_option("dgx-h100")
    page.get_by_role("button", name="Read the script").click()
    questions = page.get_by_test_id("questions")
    # The guess stands there, the other answer is open.
    expect(questions.get_by_label("workload.directory")).to_have_value("/launch-folder")
    expect(questions.get_by_label("model.layers")).to_have_value("")
    expect(page.get_by_test_id("quote")).to_contain_text("mistakes")
    expect(page.get_by_test_id("mistakes")).to_contain_text("is not answered: workload.directory")
    expect(page.get_by_test_id("mistakes")).not_to_contain_text("open_questions.0")
    questions.get_by_label("workload.directory").fill("/opt/Megatron-LM")
    questions.get_by_label("model.layers").fill("32")
    questions.get_by_role("button", name="All of this is answered").click()
    editor = page.get_by_label(EDITOR)
    expect(editor).to_have_value(re.compile(r"^  layers: 32$", re.M))
    expect(editor).to_have_value(re.compile(r"^  directory: /opt/Megatron-LM$", re.M))
    expect(editor).not_to_have_value(re.compile("open_questions"))
    expect(page.get_by_test_id("predicted-best")).to_be_visible()
    expect(page.get_by_test_id("speed")).to_contain_text("tokens/s/device")
    expect(page.get_by_test_id("quote")).to_contain_text("Megatron-Core")
    # The same text is the YAML tab's.
    text = editor.input_value()
    page.get_by_test_id("tab-yaml").click()
    expect(editor).to_have_value(text)


def test_files_come_with_the_script_and_what_cannot_be_read_is_said(page):
    chooser = page.get_by_label("Files", exact=False).and_(page.locator("input[type=file]"))
    text = "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json --layers 4\n"
    chooser.set_input_files([{"name": "start.sh", "mimeType": "text/plain", "buffer": text.encode()}])
    expect(script(page)).to_have_value(text)
    page.get_by_role("button", name="Read the script").click()
    expect(page.get_by_role("alert")).to_contain_text("ds.json")
    chooser.set_input_files(
        [
            {"name": name, "mimeType": "text/plain", "buffer": text.encode()}
            for name, text in (("ds.json", ZERO), ("train.py", ""))
        ]
    )
    expect(page.get_by_test_id("start")).to_contain_text("ds.json, train.py")
    page.get_by_role("button", name="Read the script").click()
    expect(page.get_by_label(EDITOR)).to_have_value(re.compile(r"^  zero_stage: 3$", re.M))
    expect(page.get_by_label(EDITOR)).to_have_value(re.compile(r"^name: start$", re.M))


def test_a_script_in_the_place_of_a_spec_goes_to_its_own_tab(page):
    page.get_by_test_id("tab-yaml").click()
    page.get_by_label(EDITOR).fill(MEGATRON)
    page.get_by_test_id("start").get_by_role("button", name="Read it").click()
    expect(page.get_by_test_id("tab-script")).to_have_attribute("aria-selected", "true")
    expect(script(page)).to_have_value(MEGATRON)
    page.get_by_test_id("tab-yaml").click()
    page.get_by_label(EDITOR).fill(SPEC)
    expect(page.get_by_role("button", name="Read it")).to_be_hidden()


def test_a_wrong_spec_shows_no_quote_of_another(page):
    page.get_by_test_id("tab-yaml").click()
    editor, quote = page.get_by_label(EDITOR), page.get_by_test_id("quote")
    editor.fill(SPEC)
    expect(page.get_by_test_id("legal")).to_be_visible()
    # A short time is no fraction of a device-hour.
    expect(page.get_by_test_id("device-time")).to_have_text(re.compile(r"^\d[\d.]* device-(second|minute|hour)s?\b"))
    expect(page.get_by_test_id("first-runs")).to_contain_text("5")
    expect(page.get_by_test_id("second-runs")).to_have_text(re.compile(r"^\d+( to \d+)? of the fastest$"))
    editor.fill(SPEC.replace("global_batch_size: 8", "global_batch_size: -3"))
    expect(quote).to_contain_text("1 mistake")
    expect(page.get_by_test_id("legal")).to_be_hidden()
    expect(page.get_by_role("button", name="Launch")).to_be_disabled()
    editor.fill(SPEC)
    expect(page.get_by_test_id("legal")).to_be_visible()
    expect(page.get_by_role("button", name="Launch")).to_be_enabled()


def test_the_training_code_comes_first_and_decides_what_is_asked(page):
    page.get_by_test_id("tab-form").click()
    form = page.get_by_role("tabpanel")
    expect(form.locator("label.field").first).to_contain_text("Training code")
    box = form.get_by_role("checkbox")
    code = chosen(page, "Training code")
    expect(form.get_by_label("trainer", exact=True)).to_be_visible()
    expect(form.get_by_label("megatron", exact=True)).to_be_hidden()
    form.get_by_label("trainer", exact=True).check()
    code.select_option("megatron")
    expect(form.get_by_label("trainer", exact=True)).to_be_hidden()
    form.get_by_label("megatron", exact=True).check()
    form.get_by_label("Folder of the code").fill("/opt/m")
    editor = page.get_by_label(EDITOR)
    expect(editor).to_have_value(re.compile(r"^catalogs: \[megatron\]$", re.M))
    expect(editor).to_have_value(re.compile(r'^workload: \{kind: megatron, directory: "/opt/m"\}$', re.M))
    code.select_option("command")
    form.get_by_role("textbox", name="Command").fill("python x.py --tp {tp}")
    expect(editor).to_have_value(re.compile(r'command: "python x.py --tp \{tp\}"'))
    code.select_option("simulated")
    expect(box).to_have_count(1)  # of the baseline: nothing that a knob changes is simulated
    expect(editor).to_have_value(re.compile(r"^runner: simulated$", re.M))


def test_a_baseline_that_does_not_fit_is_told_before_the_launch(page):
    page.get_by_test_id("tab-form").click()
    chosen(page, "Training code").select_option("simulated")
    chosen(page, "Model").select_option("llama3-70b")
    chosen(page, "Cluster").select_option("dgx-h100")
    page.get_by_label("Nodes", exact=True).fill("8")
    page.get_by_label("Global batch, sequences").fill("128")
    quote = page.get_by_test_id("quote")
    expect(quote).to_contain_text("can be launched")
    page.get_by_label("Nodes", exact=True).fill("1")
    expect(quote).to_contain_text("nothing is expected to fit")
    expect(quote).not_to_contain_text("can be launched")
    page.get_by_label("Nodes", exact=True).fill("8")
    page.get_by_role("checkbox").check()
    expect(page.get_by_test_id("misfit")).to_have_text(re.compile(r"not expected to fit: [\d.]+ TiB of 80 GiB"))
    expect(quote).not_to_contain_text("can be launched")
    chosen(page, "Model").select_option("gpt-micro")
    expect(quote).to_contain_text("can be launched")
    expect(page.get_by_test_id("misfit")).to_be_hidden()


def test_what_is_written_stays_until_it_is_launched(page):
    page.get_by_test_id("tab-yaml").click()
    editor = page.get_by_label(EDITOR)
    editor.fill(SPEC)
    page.get_by_role("link", name="Fit").click()
    expect(page.get_by_role("button", name="Does it fit?")).to_be_visible()
    page.go_back()
    expect(editor).to_have_value(SPEC)
    page.get_by_test_id("tab-form").click()
    expect(editor).not_to_have_value(SPEC)
    expect(page.get_by_test_id("start")).to_contain_text("The text of the tab YAML is kept")
    page.get_by_test_id("tab-yaml").click()
    expect(editor).to_have_value(SPEC)
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile("#/campaigns/small-"))
    page.get_by_role("link", name="New", exact=True).click()
    expect(page.get_by_test_id("tab-script")).to_have_attribute("aria-selected", "true")
    page.get_by_test_id("tab-yaml").click()
    expect(editor).to_have_value("")


def test_the_launch_is_in_sight_at_any_width(open_page, service, sign_in):
    page = open_page(viewport={"width": 390, "height": 800})
    sign_in(page, service)
    page.goto(f"{service.url}/#/new")
    page.get_by_test_id("tab-form").click()
    expect(page.get_by_role("button", name="Launch", exact=True)).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_whether_it_fits_is_the_first_of_the_answer(page, service):
    page.goto(f"{service.url}/#/fit")
    page.get_by_label("Model").fill("Qwen/Qwen3-8B")
    page.get_by_label("Devices").fill("8xH100")
    page.get_by_role("button", name="Does it fit?").click()
    answer = page.get_by_test_id("fit")
    expect(answer.locator("header")).to_contain_text("fits")
    for words in ("The fastest setting that is safe", "% likely to fit", "peak memory", "largest micro-batch"):
        expect(answer).to_contain_text(words)
    page.get_by_label("Devices").fill("4090")
    page.get_by_role("button", name="Does it fit?").click()
    expect(answer.locator("header")).to_contain_text("does not fit")
    expect(page.get_by_role("region", name="What to change")).to_contain_text("QLoRA")
