"""Whatever is posted as a spec is accepted or refused with its reasons: never a defect, and never for long."""

import copy
import json
import string
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_values import KEYS, ODD, places

from meshtune.tuner.specs.document import InvalidSpec
from meshtune.tuner.specs.read import read_spec

# On a busy machine; each takes milliseconds on an idle one.
LIMIT_S = 10.0
EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {"model": "gpt-micro", "cluster": "local-cpu", "global_batch_size": 16}
SIMULATED = SMALL | {
    "cluster": {"preset": "dgx-h100", "nodes": 2, "network_link": {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e9}},
    "global_batch_size": "free",
    "space": {"tp": [8], "pp": [1, 2], "micro_batch_size": [1], "grad_accum_steps": [1, 2]},
    "workload": {"kind": "simulated", "framework": "megatron-deepspeed"},
    "runner": {"kind": "simulated", "noise": 0.1},
    "objective": "mfu",
    "budget": {"device_hours": 1.5},
    "stop": {"tolerance": 0.1, "chance": 0.2},
}
KNOBS = SIMULATED | {
    "objective": "tokens_per_s_per_device",
    "knobs": {
        "fp8": {"values": ["off", "on", 1.5], "env": "FP8", "when": "pp == 1 and (tp > 1 or not sequence_parallel)"},
        "channels": {"values": [4, 8], "argument": "--channels {value}", "when": "fp8 in [on, 1.5]", "memory": "more"},
        "nodes": {"values": [1, 2]},
    },
    "catalogs": ["nccl.algo"],
    "accept": ["numerics"],
}
SPECS: tuple[dict[str, Any], ...] = (
    *(
        yaml.safe_load((EXAMPLES / name).read_text())
        for name in ("demo.yaml", "bring-your-own/campaign.yaml", "megatron/campaign.yaml")
    ),
    SIMULATED,
    KNOBS,
)
words = st.text(string.printable + "\0\u00e9\u2028\U0001f600", max_size=8)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), words, st.sampled_from([*SPECS[0], "gpt-micro"])
)
values = st.one_of(
    st.sampled_from(ODD).map(copy.deepcopy),
    st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words | st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    ),
)
quick = settings(
    max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@st.composite
def mutants(draw: st.DrawFn) -> dict[str, Any]:
    """A good spec with one to three things replaced, added or taken away."""
    spec = copy.deepcopy(draw(st.sampled_from(SPECS)))
    for _ in range(draw(st.integers(1, 3))):
        holder, key = draw(st.sampled_from([*places(spec), (spec, "baseline"), (spec, "space"), (spec, "seed")]))
        match draw(st.sampled_from(["replace", "replace", "take", "add"])):
            case "replace":
                if isinstance(holder, dict) or key < len(holder):
                    holder[key] = draw(values)
            case "take" if isinstance(holder, dict):
                holder.pop(key, None)
            case "add" if isinstance(holder, dict):
                holder[draw(st.sampled_from(KEYS))] = draw(values)
    return spec


def mistakes(document: object) -> list[str]:
    """Those of a document, within the limit; none for a good one."""
    began = time.process_time()
    try:
        read_spec(document, None)
        return []
    except InvalidSpec as error:
        return [str(problem) for problem in error.problems]
    finally:
        assert time.process_time() - began < LIMIT_S


@quick
@given(values)
def test_any_value_at_all_is_refused_as_a_spec(document):
    assert mistakes(document)


@pytest.mark.parametrize(
    "examples", [pytest.param(120, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.long)]
)
def test_a_spec_with_something_odd_in_it_is_a_campaign_or_a_problem(client, runner, examples):
    @settings(quick, max_examples=examples)
    @given(mutants(), st.sampled_from(["application/json", "application/yaml"]), st.sampled_from(["", "?dry_run=true"]))
    def post(document, kind, query):
        text = json.dumps(document) if kind == "application/json" else yaml.safe_dump(document)
        response = client.post(
            f"/v1/campaigns{query}", content=text.encode("utf-8", "replace"), headers={"Content-Type": kind}
        )
        assert response.status_code in (201, 200, 422, 413), response.text
        if response.status_code == 422:
            assert all(
                entry["pointer"] == "" or entry["pointer"].startswith("/") for entry in response.json()["errors"]
            )

    post()


BOMBS = {
    "aliases of aliases": "a0: &a0 [x, x]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    + "model: *a11\n",
    "merges of merges": "a0: &a0 {x: 1, y: 2}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
    "one mapping merged often": "a: &a {"
    + ", ".join(f"k{n}: 1" for n in range(2000))
    + "}\nl:\n"
    + "- <<: *a\n" * 2000,
    "a thousand brackets": "[" * 1000,
    "a number to base 60": "seed: " + ":".join(["1"] * 300) + ".5",
    "a day before the first": "name: 0001-01-01T00:00:00+23:59",
    "a cycle": "model: &a {b: *a}",
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_short_text_that_means_a_lot_is_refused_quickly(shared_client, text):
    began = time.process_time()
    response = shared_client.post("/v1/spaces", content=text, headers={"Content-Type": "application/yaml"})
    assert response.status_code == 422, response.text
    assert time.process_time() - began < LIMIT_S
    assert len(response.content) < 100_000


LARGE = {
    "more devices than there are": {
        "cluster": {"preset": "local-cpu", "nodes": 2**31 - 1, "devices_per_node": 2**31 - 1}
    },
    "nine thousand unknown keys": {f"k{n}": 1 for n in range(9000)},
    "ten thousand values": {"seed": [1] * 10_001, "model": [[1] * 100] * 100},
    "millions of combinations": {"space": {"tp": list(range(1, 3000)), "micro_batch_size": list(range(1, 3000))}},
    "brackets in a pattern": {
        "workload": {"kind": "command", "command": "x", "log": {"step_time_s": "(" * 500 + "a" + ")" * 500}}
    },
    "a hundred thousand braces": {"workload": {"kind": "command", "command": "{tpx}" * 190_000}},
    "a long line of arguments": {"workload": {"kind": "megatron", "arguments": ["--x " + "a " * 200_000]}},
}


@pytest.mark.parametrize("changes", LARGE.values(), ids=LARGE)
def test_a_large_spec_is_read_or_refused_quickly(changes):
    mistakes({**SMALL, **changes})
