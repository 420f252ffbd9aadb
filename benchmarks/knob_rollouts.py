"""One step of reinforcement learning, simulated: what a plan of a landscape with a rollout really costs.

Generation goes round by round: rows of drawn lengths are admitted as long as their keys and values have room, advance
together, and are preempted and computed again when they outgrow it, so a step has tails of long answers.
Log-probabilities and updates are passes over micro-batches of those very rows, at the pace of the slowest rank. Each
phase has a memory of its own. Speeds, overheads, lengths and slack are drawn by seed. No formula is shared with
`search_spaces/physics`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil
from typing import Any, ClassVar

import numpy as np
from knob_draws import Floats, rng_of
from knob_worlds import Best, Ints, Simulated

from meshtune.search_spaces.columns import RECOMPUTES
from meshtune.search_spaces.knobs import Codes
from meshtune.search_spaces.plan import Plan, Recompute

# Rounds of the longest answer.
ROUNDS = 48
Settings = Mapping[str, Any]
# By name, the bounds between which a seed draws a constant. Shares of the device's peak, of its bandwidth and of links;
# seconds; bytes, of logits per value, and of the rest in all; factors.
DRAWN: Mapping[str, tuple[float, float]] = {
    "update_share": (0.36, 0.52),
    "forward_share": (0.42, 0.62),
    "prefill_share": (0.35, 0.6),
    "decode_share": (0.3, 0.5),
    "read_share": (0.6, 0.85),
    "link_share": (0.45, 0.75),
    "half_speed_tokens": (200.0, 2500.0),
    "exposed": (0.1, 0.4),
    "pass_s": (0.0012, 0.004),
    "row_s": (4e-6, 1.5e-5),
    "reduce_s": (7e-6, 2e-5),
    "eager_layer_s": (1.2e-4, 3e-4),
    "host_bytes_s": (1.2e10, 4e10),
    "host_moves": (3.0, 6.0),
    "load_bytes_s": (8e9, 3e10),
    "wake_s": (0.5, 3.0),
    "reward_s": (1.0, 6.0),
    "slack": (1.03, 1.15),
    "usable": (0.955, 0.985),
    "context": (1.2e9, 2.4e9),
    "graph_bytes": (4e8, 1.2e9),
    "asleep": (8e8, 2.5e9),
    "unit": (0.6e9, 2e9),
    "update_logits": (8.0, 12.0),
    "forward_logits": (4.0, 8.0),
    "fused_logits": (0.4, 1.0),
    "fused_slower": (0.99, 1.05),
    "packed_spread": (1.04, 1.15),
    "spread": (0.35, 0.8),
    "mean": (0.75, 1.25),
}


@dataclass(frozen=True, eq=False)
class RolloutWorld(Simulated):
    """Costs of a simulated step. known: of phases, by what they depend on."""

    # A few steps of the same prompts.
    noise: ClassVar[float] = 0.02

    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @cached_property
    def drawn(self) -> dict[str, float]:
        rng = rng_of(self.landscape.name, self.seed, "rollout")
        return {name: float(rng.uniform(*bounds)) for name, bounds in DRAWN.items()}

    @cached_property
    def given(self) -> dict[str, Any]:
        """What the job has where no knob says otherwise, by the last word of a recipe's field."""
        recipe = self.task.training.recipe
        assert recipe.rollout is not None
        flags = {name: getattr(recipe, name) for name in ("fused_loss", "offload_activations")}
        return {"packing_samples": True, "sync_backend": "nccl", "offload": "none", **flags, **asdict(recipe.rollout)}

    @cached_property
    def rows(self) -> tuple[Ints, Ints]:
        """Tokens of the prompt and of the answer, of each row of a step."""
        rng, given, drawn = rng_of(self.landscape.name, self.seed, "rows"), self.given, self.drawn
        many = given["updates"] * self.task.space.plan(0).global_batch_size
        mean = drawn["mean"] * (given["mean_answer_tokens"] or 0.4 * given["answer_tokens"])
        answers = rng.lognormal(np.log(mean) - drawn["spread"] ** 2 / 2, drawn["spread"], many)
        prompts = given["prompt_tokens"] * rng.uniform(0.15, 0.6, many)
        return prompts.astype(np.int64) + 1, np.clip(answers, 8, given["answer_tokens"]).astype(np.int64)

    @property
    def memory_bytes(self) -> float:
        return super().memory_bytes * self.drawn["usable"]

    def costs(self, index: Ints, codes: Codes) -> tuple[Floats, Floats]:
        """Seconds per step, and bytes of the fullest phase (infinite where no engine starts), without noise."""
        columns, knobs = self.task.space.columns, self.task.space.knobs
        names = [(knob.sets or knob.name).rpartition(".")[2] for knob in knobs]
        values = [[given, *knob.values] for knob, given in zip(knobs, map(self.given.get, names), strict=True)]
        costs = []
        for at, row in zip(index.tolist(), codes.tolist(), strict=True):
            told = {name: own[code] for name, own, code in zip(names, values, row, strict=True)}
            layout = {name: int(columns[name][at]) for name in ("micro_batch_size", "zero_stage", "recompute", "dp")}
            costs.append(self._cost({**self.given, **told, **layout}))
        step_s, peak_bytes = np.array(costs).T
        return step_s, peak_bytes

    @cached_property
    def baseline(self) -> Plan:
        """What a person runs today: every knob at its default, the smallest micro-batch, recomputed activations, the
        most sharded states; the first such layout that fits."""
        space = self.task.space
        _, peak_bytes = self.costs(np.arange(len(space)), space.default_codes)
        columns = space.columns
        full = columns["recompute"] == RECOMPUTES.index(Recompute.FULL)
        order = np.lexsort((columns["micro_batch_size"], -columns["zero_stage"], ~full, peak_bytes > self.memory_bytes))
        return space.plan(int(order[0]))

    @cached_property
    def best(self) -> Best:
        space = self.task.space
        index, codes = space.knobs.expand(space.columns, space.context.cluster.devices_per_node)
        step_s, peak_bytes = self.costs(index, codes)
        at = int(np.argmin(np.where(peak_bytes <= self.memory_bytes, step_s, np.inf)))
        return Best(space.plan(int(index[at]), codes[at].tolist()), float(step_s[at]))

    def _cost(self, how: Settings) -> tuple[float, float]:
        engine = ("tp", "share", "max_rows", "pass_tokens", "graphs", "kv_bits", "devices")
        generate_s, starts = self._once(engine, how, self._generation)
        passes = ("dp", "zero_stage", "micro_batch_size", "packing_samples", "fused_loss")
        trained = (*passes, "recompute", "update_tokens", "offload", "offload_activations")
        update_s, update_bytes = self._once(trained, how, self._update)
        scored = (*passes, "log_prob_rows", "log_prob_tokens")
        score_s, score_bytes = self._once(scored, how, self._scoring)
        weights, optimizer = self._states(how)
        drawn, device = self.drawn, self.task.training.cluster.device.memory_bytes
        apart = bool(how["devices"])
        taken = how["share"] * device
        left = 0.0 if apart else drawn["asleep"] if how["sleeps"] else taken
        weights_stay, optimizer_stays = weights * (not how["weights_leave"]), optimizer * (not how["optimizer_leaves"])
        phases = (
            np.inf if not starts else drawn["context"] + taken + (0.0 if apart else weights_stay + optimizer_stays),
            drawn["context"] + left + weights + optimizer_stays + score_bytes,
            drawn["context"] + left + weights + optimizer + update_bytes,
        )
        moved = drawn["host_moves"] * weights * how["weights_leave"] + 2 * optimizer * how["optimizer_leaves"]
        refit_s = 2 * self._parameters / how["tp"] / drawn["load_bytes_s"] + drawn["wake_s"] * how["sleeps"]
        refit_s += 2 * self._parameters / (self._gathered_s(how) if how["sync_backend"] == "nccl" else 3e9)
        step_s = generate_s + update_s + score_s + moved / drawn["host_bytes_s"] + refit_s + drawn["reward_s"]
        return step_s, max(phases)

    def _once(self, names: tuple[str, ...], how: Settings, phase: Any) -> Any:
        key = (phase.__name__, *(how[name] for name in names))
        if key not in self.known:
            self.known[key] = phase(how)
        return self.known[key]

    @cached_property
    def _parameters(self) -> float:
        return float(self.task.training.model.parameters)

    @property
    def _peak(self) -> float:
        return float(self.task.training.cluster.device.peak_flops["bfloat16"])

    def _gathered_s(self, how: Settings) -> float:
        """Bytes per second of a collective among all ranks of the training."""
        cluster = self.task.training.cluster
        assert cluster.node_link is not None
        rate = cluster.node_link.bandwidth_bytes_per_s
        if how["dp"] > cluster.devices_per_node and cluster.network_link is not None:
            rate = min(rate, cluster.network_link.bandwidth_bytes_per_s * cluster.devices_per_node)
        return rate * self.drawn["link_share"]

    def _states(self, how: Settings) -> tuple[float, float]:
        """Bytes of a rank's weights, and of its optimizer's states."""
        whole = self._parameters * (4 if how["zero_stage"] == 3 else 2) / (how["dp"] if how["zero_stage"] == 3 else 1)
        master = 8 if how["zero_stage"] == 3 else 12
        return whole, master * self._parameters / how["dp"] * (how["offload"] == "none")

    def _generation(self, how: Settings) -> tuple[float, bool]:
        """Seconds of the slowest engine, and whether it starts."""
        model, drawn, device = self.task.training.model, self.drawn, self.task.training.cluster.device
        tp, head = how["tp"], model.head_dim or model.hidden // model.heads
        per_token = 2 * model.layers * max(1.0, (model.kv_heads or model.heads) / tp) * head * how["kv_bits"] / 8
        weights = 2 * self._parameters / tp
        buffers = how["pass_tokens"] * (12 * model.hidden + 6 * model.ffn / tp) + 4 * how["max_rows"] * model.vocab
        graphs = drawn["graph_bytes"] * how["graphs"] * (1 + how["max_rows"] / 512)
        room = (how["share"] * device.memory_bytes - weights - buffers - graphs) / per_token
        if room < how["prompt_tokens"] + how["answer_tokens"]:
            return 0.0, False
        prompts, answers = self.rows
        engines = (how["devices"] or how["dp"]) // tp
        dealt = np.arange(len(answers)).reshape(-1, engines)
        own = dealt[:, int(np.argmax(answers[dealt].sum(axis=0)))]
        speed = _Engine(
            read_s=weights / (device.memory_bandwidth_bytes_per_s or 1.0) / drawn["read_share"],
            kept_s=per_token / (device.memory_bandwidth_bytes_per_s or 1.0) / drawn["read_share"],
            row_s=2 * self._parameters / tp / self._peak / drawn["decode_share"],
            token_s=2 * self._parameters / tp / self._peak / drawn["prefill_share"],
            pass_s=drawn["pass_s"]
            + (tp > 1) * 2 * model.layers * drawn["reduce_s"] * (1 + tp / 8)
            + (not how["graphs"]) * model.layers * drawn["eager_layer_s"],
            each_s=drawn["row_s"] + (tp > 1) * 8 * model.layers * model.hidden / self._gathered_s({"dp": 1}),
        )
        return speed.generate(prompts[own], answers[own], room, how["max_rows"], how["pass_tokens"]), True

    def _update(self, how: Settings) -> tuple[float, float]:
        """Seconds of all updates, and bytes beside the states."""
        drawn, model, full = self.drawn, self.task.training.model, RECOMPUTES[how["recompute"]] is Recompute.FULL
        passes = 4 if full else 3
        seconds, most = self._passes(how, how["update_tokens"], how["micro_batch_size"], passes, drawn["update_share"])
        seconds *= drawn["fused_slower"] if how["fused_loss"] else 1.0
        each = 16 * self._parameters / how["dp"]
        rate = drawn["host_bytes_s"] / 2 if how["offload"] != "none" else 1.5e12
        tokens = float(np.sum(self.rows)) / how["dp"]
        inputs, layer = 2 * model.hidden * model.layers, 18 * model.hidden + 7 * model.ffn
        if how["offload_activations"]:
            seconds += (1 - drawn["exposed"]) * 2 * tokens * inputs / drawn["host_bytes_s"]
            inputs = 4 * model.hidden
        kept = inputs + 1.5 * layer if full else model.layers * layer
        gradients = (4 if how["zero_stage"] == 3 else 2) * self._parameters / how["dp"]
        logits = drawn["fused_logits" if how["fused_loss"] else "update_logits"] * model.vocab
        return seconds + how["updates"] * each / rate, gradients + drawn["unit"] + drawn["slack"] * most * (
            kept + logits
        )

    def _scoring(self, how: Settings) -> tuple[float, float]:
        """The same of log-probabilities, of the trained model and of its reference."""
        drawn, model = self.drawn, self.task.training.model
        rows = how["log_prob_rows"] or how["micro_batch_size"]
        seconds, most = self._passes(how, how["log_prob_tokens"], rows, 1, drawn["forward_share"])
        logits = drawn["fused_logits" if how["fused_loss"] else "forward_logits"] * model.vocab
        held = drawn["slack"] * most * (20 * model.hidden + 6 * model.ffn + logits)
        reference = 2 * self._parameters / how["dp"]
        return 2 * seconds, reference + drawn["unit"] + held

    def _passes(self, how: Settings, packed: int, rows: int, passes: int, share: float) -> tuple[float, float]:
        """Seconds of all micro-batches of a step, and the most tokens of one. packed: tokens of one, where rows are
        packed; else of so many rows. passes: of the cost of a forward one."""
        drawn, model, dp = self.drawn, self.task.training.model, how["dp"]
        lengths = np.sum(self.rows, axis=0).reshape(dp, -1)
        if packed:
            many = ceil(float(lengths.sum(axis=1).max()) / packed * drawn["packed_spread"])
            tokens = np.full((1, many), lengths.sum(axis=1).max() / many)
            most = min(float(packed), float(tokens[0, 0]) * drawn["packed_spread"])
            tokens *= (1 + drawn["packed_spread"]) / 2
        else:
            starts = np.arange(0, lengths.shape[1], rows)
            tokens = np.add.reduceat(lengths, starts, axis=1).astype(np.float64)
            if not how["packing_samples"]:
                tokens = np.maximum.reduceat(lengths, starts, axis=1) * float(rows)
            most = float(tokens.max())
        squares = float((lengths.astype(np.float64) ** 2).sum() / lengths.sum())
        flops = passes * (2 * self._parameters + 2 * model.layers * model.hidden * squares)
        # A pass of few tokens leaves the device half idle; ranks wait for the longest micro-batch.
        slowest = (tokens + drawn["half_speed_tokens"]).max(axis=0)
        computes = slowest * flops / (share * self._peak)
        gathers = {3: min(3, passes), 2: passes > 1}.get(how["zero_stage"], 0)
        sends = np.full(len(computes), 2 * self._parameters * gathers / self._gathered_s(how))
        both = np.maximum(computes, sends) + drawn["exposed"] * np.minimum(computes, sends)
        return float(both.sum()), most


@dataclass(frozen=True, slots=True)
class _Engine:
    """Seconds of a decoding step: to read the weights, for each token that is kept, for each row's products, for the
    step itself, and for each row beside; of a prompt's token."""

    read_s: float
    kept_s: float
    row_s: float
    token_s: float
    pass_s: float
    each_s: float

    def generate(self, prompts: Ints, answers: Ints, room: float, max_rows: int, pass_tokens: int) -> float:
        """Seconds until every row has its answer. room: tokens whose keys and values have place."""
        steps = max(8, int(answers.max()) // ROUNDS)
        kept, missing = prompts.copy(), answers.copy()
        waiting, running, seconds = deque(range(len(answers))), list[int](), 0.0
        used = 0
        while waiting or running:
            filled = 0
            while waiting and len(running) < max_rows:
                need = int(kept[waiting[0]])
                if running and used + need + steps * (len(running) + 1) > room:
                    break
                running.append(waiting.popleft())
                used, filled = used + need, filled + need
            # The latest ones make place for those before them, and are computed again.
            while len(running) > 1 and used + steps * len(running) > room:
                waiting.appendleft(running.pop())
                used -= int(kept[waiting[0]])
            seconds += filled * self.token_s + ceil(filled / pass_tokens) * (self.pass_s + self.read_s)
            at = np.array(running)
            moved = np.minimum(steps, missing[at])
            rounds, rows = int(moved.max()), float(moved.sum()) / int(moved.max())
            once = max(self.read_s + used * self.kept_s, rows * self.row_s) + self.pass_s + rows * self.each_s
            seconds += rounds * once
            kept[at] += moved
            missing[at] -= moved
            used = int(kept[at][missing[at] > 0].sum())
            running = at[missing[at] > 0].tolist()
        return seconds
