"""Every axis and their products, up to 8 ranks, train as one process does: the correctness matrix.

Each case takes four AdamW steps, on other data each step, and its losses and gradient norms are compared with those of
one process that computes the same global batch as one micro-batch. `make test-long` runs all cases and writes a table;
a plain test run takes a quarter, which together touch every axis. Speed and memory are not looked at; no CUDA.

`pytest tests/trainer/test_matrix.py --trainer-python PATH` runs the jobs under another Python, or another torch;
`--matrix-dtype bfloat16` in another number format.
"""

from __future__ import annotations

import time

import pytest

from meshtune.runners.outcome import Measurement
from meshtune.tuner.campaign.eligibility import LOSS_TOLERANCES, NORM_TOLERANCES, tolerance_of

# Absolute of losses, relative of gradient norms; of other formats as of campaigns.
TOLERANCE, NORM_TOLERANCE = {"float32": 1e-4}, {"float32": 1e-5}

LLAMA: dict[str, object] = {}
GPT: dict[str, object] = {
    "kv_heads": 4,
    "norm": "layernorm",
    "activation": "gelu",
    "position": "learned",
    "tied_head": True,
}
DEEP: dict[str, object] = {"layers": 4}
MIXTURE: dict[str, object] = {"experts": 4, "top_k": 2}
MODELS: dict[str, dict[str, object]] = {
    "llama": LLAMA,
    "gpt": GPT,
    "llama4": LLAMA | DEEP,
    "gpt4": GPT | DEEP,
    "llama6": {"layers": 6},
    "gpt6": GPT | {"layers": 6},
    "llama7": {"layers": 7},
    "llama8": {"layers": 8},
    "llama-one-kv": {"kv_heads": 1},
    "llama-odd-vocab": {"vocab": 127},
    "llama-odd-vocab4": {"vocab": 127} | DEEP,
    "llama-odd-tied": {"vocab": 127, "tied_head": True},
    "llama-wide-heads": {"head_dim": 24},  # wider together than the model
    "llama-tied": {"tied_head": True},
    "llama-tied4": {"tied_head": True} | DEEP,
    "llama-moe": LLAMA | MIXTURE,
    "gpt-moe": GPT | MIXTURE,
    "llama-moe4": LLAMA | MIXTURE | DEEP,
    "gpt-moe4": GPT | MIXTURE | DEEP,
    "llama-moe-top1": {"experts": 4, "top_k": 1},
    "llama-moe8": {"experts": 8, "top_k": 2},
}
FIELDS = {
    "zero": "zero_stage",
    "mbs": "micro_batch_size",
    "ga": "grad_accum_steps",
    "every": "recompute_interval",
    "group": "zero_group",
    "first": "first_stage_less_layers",
    "last": "last_stage_less_layers",
}
WORDS = {
    "gpipe": ("schedule", "gpipe"),
    "1f1b": ("schedule", "1f1b"),
    "interleaved": ("schedule", "interleaved"),
    "zero-bubble": ("schedule", "zero_bubble"),
    "zbv": ("schedule", "zbv"),
    "full": ("recompute", "full"),
    "selective": ("recompute", "selective"),
    "ulysses": ("context", "ulysses"),
    "ring": ("context", "ring"),
    "nosp": ("sequence_parallel", False),
    "balanced": ("router", "balanced"),
    "skewed": ("router", "skewed"),
}

ROUTERS: dict[str, dict[str, object]] = {
    "learned": {},
    "balanced": {"router": "balanced"},
    "skewed": {"router": "skewed", "imbalance": 1.75},
}

# What a word does to the trainer before the job: the road that ZeRO 0 takes on CUDA, torch's replicate(), over gloo;
# and a head that takes few tokens at a time.
CHANGES = {
    "replicate": """
import meshtune.runners.trainer.train as train
from meshtune.runners.trainer.parallel.sharding import Sharding
train.choose_sharding = lambda job: Sharding.REPLICATE
""",
    "chunks": "from meshtune.runners.trainer import head; head.FEWEST_CHUNK_TOKENS = 3\n",
}

# "* " marks those of a plain test run. Tensor parallelism is slow over gloo, so those cases use few micro-batches.
CASES = """
* llama mbs4
  llama mbs2
* gpt mbs4
* llama dp2 zero0
* llama dp2 zero2
* llama dp2 zero3
* llama dp4 zero1 mbs2
  llama-odd-vocab dp2 zero2 mbs2
  gpt dp2 zero3 mbs4
  llama tp2 nosp mbs8
* llama tp2 mbs4
  llama tp4 mbs8
  llama-one-kv tp2 nosp mbs8
  llama-one-kv tp4 mbs8
* gpt tp2 nosp mbs4
  gpt tp4 nosp mbs8
  llama tp2 dp2 zero1 mbs4
  llama tp2 dp2 zero3 mbs4
  llama tp2 dp2 zero3 nosp mbs4
  llama-one-kv tp2 dp2 zero3 mbs4
* llama-odd-vocab tp2 mbs8
  gpt tp2 dp2 zero1 nosp mbs4
* llama-odd-tied tp2 mbs8
* llama-wide-heads tp2 mbs8
* llama-tied dp2 replicate
* llama-tied tp2 dp2 mbs2 replicate
  llama-tied4 pp2 dp2 vpp2 zbv replicate
* llama-moe dp2 ep2 selective replicate
  llama-moe4 dp2 ep2 pp2 vpp2 zbv replicate
  llama-moe tp2 dp2 ep2 etp1 mbs4 replicate
  llama-moe dp4 ep2 etp2 mbs2 replicate
  gpt-moe cp2 dp2 ep2 etp2 selective replicate
* llama-odd-vocab4 tp2 mbs4 chunks
* llama-odd-vocab4 dp2 zero3 mbs2 chunks
* llama-odd-vocab4 pp2 vpp2 zbv chunks
  llama-odd-vocab4 pp2 vpp2 zero-bubble chunks
  llama-odd-vocab4 tp2 pp2 dp2 zero2 mbs2 chunks
* llama pp2 gpipe
  llama pp2 1f1b
  llama4 pp4 1f1b
  gpt4 pp4 gpipe
  llama8 pp2 vpp4 interleaved
  llama8 pp4 vpp2 interleaved
  llama4 pp2 vpp2 interleaved mbs2 ga4
  llama4 pp2 vpp2 zero-bubble
  llama8 pp4 vpp2 zbv
  llama4 pp2 vpp2 zbv mbs4 ga2
  gpt4 pp2 vpp2 zbv
  gpt4 pp2 vpp2 zero-bubble
* llama-tied4 pp4 gpipe
* llama7 pp3 first1 last1 1f1b
  llama7 pp3 last2 gpipe
* gpt6 pp2 vpp2 first1 last1 interleaved
  llama6 pp2 vpp2 first1 last1 zero-bubble
  gpt6 pp2 vpp2 first1 last1 zbv
  llama6 pp2 dp2 vpp2 first1 last1 interleaved zero3
* llama pp2 dp2 zero0
  llama pp2 dp2 zero3
  llama pp2 dp2 zero3 gpipe
  gpt pp2 dp2 zero3
  gpt tp2 pp2 mbs4
  llama4 pp2 dp2 zero0 vpp2 interleaved
* llama4 pp2 dp2 zero3 vpp2 interleaved
* llama4 pp2 dp2 zero0 vpp2 zero-bubble
  llama4 pp2 dp2 zero2 vpp2 zero-bubble
* llama4 pp2 dp2 zero1 vpp2 zbv
  gpt4 pp2 dp2 zero2 vpp2 zbv
  gpt4 pp2 dp2 zero3 vpp2 interleaved
  llama tp2 pp2 mbs4
  llama4 tp2 pp2 vpp2 interleaved mbs4
  llama4 tp2 pp2 vpp2 zbv mbs4
  llama4 tp2 pp2 vpp2 zero-bubble nosp mbs4
  llama tp2 pp2 dp2 zero1 mbs2
  gpt tp2 pp2 dp2 zero2 nosp mbs2
* gpt tp2 pp2 dp2 zero3 mbs2
  llama4 tp2 pp2 dp2 zero3 vpp2 interleaved full mbs2
  llama4 tp2 pp2 dp2 zero2 vpp2 zbv mbs2
* llama full mbs2
  llama selective mbs2
* llama4 full every2 mbs2
  gpt4 selective every3 mbs2
* llama dp2 zero2 selective
  llama4 dp2 zero3 selective every2
  llama4 pp2 vpp2 interleaved selective
  llama4 pp2 vpp2 zbv full
  llama4 pp2 vpp2 zero-bubble full
  llama4 pp2 dp2 zero2 vpp2 zbv full
* llama tp2 selective mbs8
  gpt tp2 nosp selective mbs8
  llama tp2 dp2 zero3 full mbs4
  gpt cp2 mbs4
  llama cp2 ulysses mbs4
  gpt cp4 mbs4
  gpt cp4 ulysses mbs4
  llama cp2 zero3 mbs4
* llama cp2 dp2 zero3 mbs2
* llama cp2 dp2 zero1 ulysses mbs2
  llama cp2 tp2 mbs8
* gpt cp2 tp2 ulysses mbs8
  gpt cp2 tp2 nosp mbs8
  llama cp2 pp2 mbs2
* llama4 cp2 pp2 vpp2 zbv ulysses mbs2
  llama4 cp2 pp2 dp2 zero2 vpp2 interleaved
  llama cp2 mbs4 selective
  gpt cp2 mbs4 ulysses full
  llama cp2 tp2 pp2 mbs4
  llama cp2 tp2 dp2 zero3 full mbs4
  gpt cp2 tp2 dp2 zero1 ulysses selective mbs4
  llama cp4 mbs4
* llama cp4 selective mbs4
* llama cp2 ring mbs4
  gpt cp4 ring mbs4
* llama cp4 ring full mbs4
  llama cp4 ring selective mbs4
  llama-one-kv cp4 ring mbs8
  llama cp2 dp2 zero1 ring mbs2
* llama cp2 dp2 zero3 ring selective mbs2
  llama cp4 dp2 zero3 ring mbs4
* llama cp2 tp2 ring mbs8
  gpt cp2 tp2 nosp ring mbs8
  llama cp2 pp2 ring mbs2
* llama4 cp2 pp2 vpp2 zbv ring mbs2
  llama4 cp2 pp2 dp2 zero2 vpp2 interleaved ring full
  llama-moe dp2 ep2 cp2 zero2 ring mbs2
* llama-moe mbs4
  gpt-moe mbs4 balanced
* llama-moe-top1 dp2 ep2 zero0
  llama-moe dp2 zero2
  llama-moe dp2 ep2 zero1
* gpt-moe dp2 ep2 zero3
  llama-moe8 dp4 ep2 zero1
  llama-moe8 dp4 ep2 zero3
  llama-moe dp4 ep4 zero2
  llama-moe8 dp8 ep4 zero1
* llama-moe dp2 ep2 zero2 selective balanced mbs2
  llama-moe4 dp2 ep2 pp2 zero2 vpp2 interleaved selective every2
  llama-moe tp2 nosp selective mbs8
  llama-moe dp2 ep2 zero3 balanced mbs2
* llama-moe tp2 mbs8
  gpt-moe tp2 nosp mbs8
  llama-moe dp2 ep2 cp2 zero3 mbs2
* llama-moe dp2 ep2 cp2 zero1 ulysses balanced mbs2
* gpt-moe dp2 ep2 tp2 zero1 mbs4
  llama-moe dp2 ep2 tp2 zero3 mbs4
  llama-moe4 dp2 ep2 pp2 zero3
* llama-moe4 dp2 ep2 pp2 zero1 vpp2 zbv
  gpt-moe4 dp2 ep2 pp2 zero2 vpp2 zero-bubble
* gpt-moe4 dp2 ep2 pp2 zero3 vpp2 interleaved
  llama-moe4 pp2 vpp2 zbv full
* llama-moe8 dp4 ep4 zero1 skewed
  llama-moe dp2 ep2 zero3 skewed full
  llama-moe dp2 ep2 tp2 cp2 zero1 skewed mbs4
* gpt-moe cp2 mbs8 skewed
  llama-moe dp2 ep2 zero3 full
  gpt-moe dp2 ep2 zero2 selective balanced
  llama-moe dp2 ep2 tp2 pp2 zero1 mbs2
  llama-moe4 dp2 ep2 tp2 pp2 zero3 vpp2 interleaved full mbs2
  llama-moe dp2 ep2 tp2 cp2 zero2 mbs4
  llama-moe4 dp2 ep2 cp2 pp2 zero2 vpp2 zbv full every2
* llama dp4 zero1 group2 mbs2
  gpt dp4 zero2 group2
* llama cp2 dp2 zero3 group2
  llama cp4 zero1 group2 mbs8
  llama cp2 dp2 tp2 zero1 group2 mbs4
  llama tp2 dp4 zero2 group2 mbs2
  gpt tp2 dp4 zero3 group2 mbs2
  llama dp8 zero3 group4
  gpt4 pp2 dp4 zero1 group2 vpp2 zbv
  llama4 pp2 dp4 zero2 group2 vpp2 interleaved
  llama pp2 dp4 zero3 group2
* llama-moe dp4 ep2 zero1 group2
* llama-moe8 dp4 ep2 zero2 group2 skewed
  llama-moe8 dp8 ep2 zero3 group4
  gpt-moe cp2 dp4 ep2 zero3 group4
  llama-moe tp2 dp2 ep2 etp1 zero1 mbs4
  gpt-moe tp2 dp2 ep2 etp1 zero3 mbs4
* llama-moe tp2 dp2 ep4 etp1 zero2 mbs4 skewed
  llama-moe8 tp2 cp2 ep4 etp1 mbs8
  llama-moe tp2 dp2 etp1 zero3 mbs4
  gpt-moe tp2 etp1 mbs8 balanced
* gpt-moe dp2 ep2 cp2 etp2 zero2
  llama-moe dp2 etp2 zero1 skewed full
  llama-moe cp2 ep2 mbs4
  gpt-moe cp2 dp2 ep4 zero1 skewed
  llama-moe tp4 dp2 ep2 etp2 zero1 mbs4
  llama-moe tp4 dp2 ep4 etp2 zero3 mbs4
  llama-moe4 tp2 dp2 pp2 ep2 etp1 zero3 vpp2 interleaved mbs2
  llama-moe4 tp2 dp2 pp2 ep4 etp1 zero1 vpp2 zbv mbs2
  llama-moe tp4 ep2 etp1 zero1 mbs8
  llama-moe8 tp2 dp4 ep2 etp1 zero1 group2 mbs2
  llama-moe8 tp2 cp2 dp2 ep2 etp1 zero2 group2 mbs4 selective
""".strip("\n").splitlines()


def parse(case: str) -> tuple[str, dict[str, object], str]:
    """The model's name, the plan's fields and the router of one line."""
    model, *words = (word for word in case[2:].split() if word not in CHANGES)
    plan: dict[str, object] = {}
    for word in words:
        name = word.rstrip("0123456789")
        field, value = WORDS[word] if word in WORDS else (FIELDS.get(name, name), int(word[len(name) :]))
        plan[field] = value
    return model, plan, str(plan.pop("router", "learned"))


def as_parameter(case: str) -> object:
    mark = pytest.mark.slow if case.startswith("*") else pytest.mark.long
    return pytest.param(case, id=case[2:], marks=[pytest.mark.matrix, mark])


@pytest.fixture(scope="session")
def dtype(pytestconfig):
    return pytestconfig.getoption("--matrix-dtype")


@pytest.fixture(scope="session")
def reference(run_job, make_job, dtype):
    """What one process and one micro-batch measured, for a model and a router; each is run once."""
    known: dict[tuple[str, str], Measurement] = {}

    def measurement(model: str, router: str) -> Measurement:
        if (model, router) not in known:
            job = make_job(model=MODELS[model], plan={"micro_batch_size": 8}, dtype=dtype, **ROUTERS[router])
            known[model, router] = run_job(job).measurement
        return known[model, router]

    return measurement


@pytest.mark.parametrize("case", [as_parameter(case) for case in CASES])
def test_a_layout_does_not_change_the_training(case, reference, run_job, make_job, dtype, note_case):
    model, plan, router = parse(case)
    expected = reference(model, router)
    start = time.monotonic()
    change = "".join(CHANGES.get(word, "") for word in case.split())
    done = run_job(make_job(model=MODELS[model], plan=plan, dtype=dtype, **ROUTERS[router]), change)
    losses, norms = done.losses, done.measurement.first_gradient_norms
    difference = max(abs(a - b) for a, b in zip(losses, expected.first_losses, strict=True))
    of_norms = max(abs(a / b - 1) for a, b in zip(norms, expected.first_gradient_norms, strict=True))
    note_case(case[2:], difference, of_norms, time.monotonic() - start)
    assert (len(losses), len(norms)) == (4, 2)
    assert difference < tolerance_of(LOSS_TOLERANCES | TOLERANCE, dtype)
    assert of_norms < tolerance_of(NORM_TOLERANCES | NORM_TOLERANCE, dtype)


def test_the_matrix_is_large_and_names_every_case_once():
    assert len(CASES) == len({case[2:] for case in CASES}) >= 90
    assert len(CASES) / 4 <= sum(case.startswith("*") for case in CASES) < len(CASES) / 2
