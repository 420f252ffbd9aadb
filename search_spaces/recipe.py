"""What is trained beside the plan: which weights, with which optimizer, on which sequences, with which other models.

The section `training` of a spec. A plain recipe trains all weights of one model with AdamW on rows of seq_len
tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from meshtune.search_spaces.checks import Chance, Checks, Closed, Count, Natural, Problem, StrEnum, Whole
from meshtune.search_spaces.model import ModelSpec


class Target(StrEnum):
    """Products that have an adapter, by their names in Llama's modules without `_proj`. experts: those of experts, too,
    of gate, up and down."""

    Q = "q"
    K = "k"
    V = "v"
    O = "o"  # noqa: E741  # its name
    GATE = "gate"
    UP = "up"
    DOWN = "down"
    EXPERTS = "experts"


LINEAR = (Target.Q, Target.K, Target.V, Target.O, Target.GATE, Target.UP, Target.DOWN)


class States(NamedTuple):
    """values: numbers of state per weight; of embedding, norms and head end_values. bits: of each; 0: as the program
    has its moments. quantized: 8 bits in blocks of 256 with a float32 scale (bitsandbytes, functional.py). at_step:
    numbers that the step has besides."""

    values: float
    end_values: float
    bits: int = 0
    at_step: int = 0

    @property
    def quantized(self) -> bool:
        return self.bits == 8


class Optimizer(StrEnum):
    """adamw: one kernel; adamw_foreach: torch's by default, which has the roots of all second moments at once.
    adamw_16bit: moments in 16 bits beside 32-bit weights. paged_*: bitsandbytes' unified memory, which leaves the
    device where room is short. muon: AdamW for embedding, norms and head. adafactor: without a first moment."""

    ADAMW = "adamw"
    ADAMW_FOREACH = "adamw_foreach"
    ADAMW_16BIT = "adamw_16bit"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW = "paged_adamw"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    LION = "lion"
    LION_8BIT = "lion_8bit"
    PAGED_LION_8BIT = "paged_lion_8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"
    SGD = "sgd"

    @property
    def paged(self) -> bool:
        return self.startswith("paged_")

    @property
    def states(self) -> States:
        family, _, kind = self.removeprefix("paged_").partition("_")
        values, end_values = _VALUES.get(family, (0, 0))
        return States(values, end_values, {"8bit": 8, "16bit": 16}.get(kind, 0), at_step=int(kind == "foreach"))


_VALUES = {"adamw": (2, 2), "lion": (1, 1), "muon": (1, 2)}


class Offload(StrEnum):
    """What lies in the host's memory: the optimizer's state, or weights as well."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    WEIGHTS = "weights"


class Role(StrEnum):
    """Of a model beside the one that is trained. reference: of DPO and its like."""

    REFERENCE = "reference"
    TEACHER = "teacher"
    REWARD = "reward"
    VALUE = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(Closed):
    """Low-rank products beside those of the layers (LoRA, Hu et al. 2021)."""

    rank: Whole = 16
    # `q`, `k`, `v`, `o`, `gate`, `up`, `down`, and `experts` for those of experts, too.
    targets: tuple[Target, ...] = LINEAR
    # Weight-decomposed (DoRA, Liu et al. 2024): a magnitude per output.
    dora: bool = False
    # Share of each input's values that are dropped on their way to the adapter.
    dropout: Chance = 0.0
    # Of the adapter's weights; PEFT has 32 whatever the base model has, unless told otherwise.
    bits: Whole = 32
    # Each product casts or drops its own copy of its input, as PEFT does; else those of one input share it.
    copies_inputs: bool = True

    def _check(self, checks: Checks) -> None:
        checks.require(self.bits in (16, 32), "bits", f"must be 16 or 32, not {self.bits}")
        object.__setattr__(self, "targets", tuple(map(Target, self.targets)))
        checks.require(bool(self.targets), "targets", f"must name one of {', '.join(Target)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion(Closed):
    """A model beside the one that is trained: its weights, and a forward pass for each micro-batch."""

    role: Role
    # 0: as many as the trained model has.
    parameters: Natural = 0
    # Of its weights; 0: it is the trained model without its adapter, or its answers were stored: no weights.
    bits: Count = 16
    # It has a forward pass, which stored answers do without.
    runs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout(Closed):
    """Rows that the trained model writes itself before each update, by an inference engine (reinforcement learning). A
    step is then a generation of all its rows, their log-probabilities, and `updates` optimizer steps of
    global_batch_size rows each."""

    # Tokens of the longest prompt and of the longest answer; their sum is a row.
    prompt_tokens: Whole
    answer_tokens: Whole
    # Of an answer on average; 0: all are as long as the longest.
    mean_answer_tokens: Count = 0
    # Optimizer steps of one step.
    updates: Whole = 1
    # Tensor-parallel devices of one engine.
    tp: Whole = 1
    # Of the device's memory: what the engine takes for weights, passes and keys and values together. 0: there is none,
    # and the model generates by itself, with keys and values beside its weights.
    share: Chance = 0.5
    # Rows that one engine has in flight at the most.
    max_rows: Whole = 256
    # Tokens of one of its passes at the most.
    pass_tokens: Whole = 8192
    # Bits of its weights, and of keys and values.
    weight_bits: Whole = 16
    kv_bits: Whole = 16
    # Its decoding steps are recorded graphs.
    graphs: bool = True
    # Devices of the engines alone; 0: those of the training, which take turns with it.
    devices: Count = 0
    # Its keys and values, and copies of weights, leave the device while the model is trained.
    sleeps: bool = True
    # What leaves the device while the engine runs: the trained weights; the optimizer's state.
    weights_leave: bool = False
    optimizer_leaves: bool = False
    # Rows of a forward pass of log-probabilities; 0: as many as of an update's.
    log_prob_rows: Count = 0
    # Tokens of a pass of the update, and of log-probabilities, where rows are packed up to so many; 0: by rows.
    update_tokens: Count = 0
    log_prob_tokens: Count = 0
    # Steps that the trained rows may be older than the weights; of 0 generation and updates take turns.
    behind: Count = 0

    def _check(self, checks: Checks) -> None:
        object.__setattr__(self, "mean_answer_tokens", self.mean_answer_tokens or self.answer_tokens)
        longer = f"mean_answer_tokens({self.mean_answer_tokens}) is more than answer_tokens({self.answer_tokens})"
        checks.require(self.mean_answer_tokens <= self.answer_tokens, "mean_answer_tokens", longer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Closed):
    """See above."""

    # The layers' weights are frozen, and low-rank products beside them are trained. None: all weights are trained.
    adapter: Adapter | None = None
    # Of the weights of frozen products in layers: 32, 16, 8 (LLM.int8) or 4 (NF4, Dettmers et al. 2023); 0: 16 with an
    # adapter, else as the program has its weights.
    base_bits: Count = 0
    # The scales of 4-bit weights are quantized themselves.
    double_quantization: bool = True
    # Experts' weights have `base_bits`, too; transformers 5 has them in one array, which bitsandbytes leaves.
    quantized_experts: bool = True
    # Of frozen embedding, norms and head: 16 or 32; 0: `base_bits`, and at least 16.
    plain_bits: Count = 0
    # With an adapter: embedding and head are trained as well (PEFT's modules_to_save).
    trained_ends: bool = False
    # Without an adapter: so many first layers are frozen; the embedding; the head and the last norm.
    frozen_layers: Count = 0
    frozen_embedding: bool = False
    frozen_head: bool = False
    # A tower beside the decoder (`model.tower_parameters`) is trained, too.
    trained_tower: bool = False
    # What moves the trained weights.
    optimizer: Optimizer = Optimizer.ADAMW
    # The host's memory holds `optimizer` states, or all `weights` as well.
    offload: Offload = Offload.NONE
    # Inputs of recomputed layers wait in the host's memory.
    offload_activations: bool = False
    # Head and cross entropy are one kernel that has no logits of all tokens (Liger, Cut CE); else as the program does.
    fused_loss: bool = False
    # Cross entropy is one kernel, which leaves the gradient in the logits' place (Unsloth, Liger's, a compiled loss).
    loss_kernel: bool = False
    # So are norms and the activation function, which computes its results again (Liger, Unsloth).
    layer_kernels: bool = False
    # Rows of one sample: 2 where a chosen and a rejected answer are compared.
    rows_per_sample: Whole = 1
    # Reference, teacher, reward and value models.
    beside: tuple[Companion, ...] = ()
    # Tokens of a row on average, where `model.seq_len` is that of the longest ones; 0: all are as long.
    mean_tokens: Count = 0
    # The rows are written by the model itself.
    rollout: Rollout | None = None

    def _check(self, checks: Checks) -> None:
        for name, kind in (("optimizer", Optimizer), ("offload", Offload)):
            object.__setattr__(self, name, checks.member(kind, name, getattr(self, name)))
        for name, known in (("base_bits", (0, 4, 8, 16, 32)), ("plain_bits", (0, 16, 32))):
            value = getattr(self, name)
            checks.require(value in known, name, f"must be one of {', '.join(map(str, known))}, not {value}")
        fault = f"base_bits({self.base_bits}) needs an adapter: weights of so few bits cannot be trained"
        checks.require(self.adapter is not None or self.base_bits not in (4, 8), "base_bits", fault)
        for name in ("frozen_layers", "frozen_embedding", "frozen_head"):
            fault = f"{name}({getattr(self, name)}) goes without an adapter, which leaves all of them frozen"
            checks.require(self.adapter is None or not getattr(self, name), name, fault)
        fault = "trained_ends needs an adapter: without one they are trained"
        checks.require(self.adapter is not None or not self.trained_ends, "trained_ends", fault)

    def problems_with(self, model: ModelSpec) -> list[Problem]:
        """What a model has no room for, by key."""
        found = (
            ("frozen_layers", self.frozen_layers, model.layers, "layers"),
            ("mean_tokens", self.mean_tokens, model.seq_len, "seq_len, that of the longest rows"),
            ("adapter.rank", self.adapter.rank if self.adapter else 0, model.hidden, "hidden"),
        )
        wrong = [each for each in found if model.known and each[1] > each[2]]
        return [Problem(key, f"{own} is more than model.{size}: {has}") for key, own, has, size in wrong]

    def mean_row(self, longest: int) -> int:
        """Tokens of a row on average, where the longest ones have so many."""
        rows = self.rollout
        return self.mean_tokens or (rows.prompt_tokens + rows.mean_answer_tokens if rows else longest)

    @property
    def trains_head(self) -> bool:
        return self.trained_ends if self.adapter else not self.frozen_head

    @property
    def words(self) -> str:
        """What differs from the plain recipe; "" where nothing does."""
        adapter, parts = self.adapter, []
        if adapter is not None:
            kind = ("DoRA" if adapter.dora else "LoRA") if self.base_bits in (0, 16, 32) else "QLoRA"
            parts.append(f"{kind} rank {adapter.rank}{f' on {self.base_bits} bits' * (self.base_bits != 0)}")
            some = [target for target in LINEAR if target not in adapter.targets]
            parts += [f"of {' '.join(adapter.targets)}"] * bool(some)
        parts += [f"{self.frozen_layers} layers frozen"] * bool(self.frozen_layers)
        parts += [self.optimizer.value] * (self.optimizer is not Optimizer.ADAMW)
        parts += [f"{self.offload} offloaded"] * (self.offload is not Offload.NONE)
        flags = [one.name for one in fields(self) if one.default is False and getattr(self, one.name)]
        parts += [name.replace("_", " ") for name in flags] + ["pairs"] * (self.rows_per_sample == 2)
        parts += ["rows generated"] * (self.rollout is not None)
        return ", ".join([*parts, *(f"with a {one.role}" for one in self.beside)])


PLAIN = Recipe()
