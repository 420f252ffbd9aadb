"""What a spec says of a torchtitan run, its keys (`training.seq_len` in a file, `--training.seq_len` as a flag), and
which plans a release runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from meshtune.runners.programs.dialects.base import FlagOptions
from meshtune.runners.programs.dialects.config_import import at
from meshtune.runners.programs.table import WHOLE_CONTEXTS, Table, capabilities, table_of
from meshtune.search_spaces.checks import Checks, Whole
from meshtune.search_spaces.columns import Capabilities, Constraint, expert_tp


class Release(StrEnum):
    """Which torchtitan: until 0.2.2 a TOML file says everything; from 0.3.0 a function of Python, and flags over it.
    0.2.0 has the seed in another section than 0.2.1 and 0.2.2, and refuses theirs."""

    TOML_0_2_0 = "v0.2.0"
    TOML = "v0.2"
    FLAGS = "v0.3"

    @property
    def has_file(self) -> bool:
        return self is not Release.FLAGS


class Dtype(StrEnum):
    """The number format of matrix products; weights are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


TABLE = table_of("meshtune.runners.programs.torchtitan")
# Facts that trials alone have.
_TRIAL = frozenset({"steps", "seed", "folder"})
_COMPILED = ("compile.enable", "training.compile")
_EVEN = ("debug.moe_force_load_balance", "training.debug_moe_force_load_balance")
_ASYNC_TP = ("compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel")
# The keys that say plan, batch, sequence and format.
FROM_PLAN = frozenset(name for row in TABLE.rows if row.field not in _TRIAL for name in row.every_name)


def key_of(flag: str) -> tuple[str, bool]:
    """The key that a flag such as `--training.local-batch-size` stands for; False for the `no_` form of a switch."""
    section, dot, key = flag.removeprefix("--").replace("-", "_").rpartition(".")
    return f"{section}{dot}{key.removeprefix('no_')}", not key.startswith("no_")


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchtitanOptions(FlagOptions):
    """config: the user's own TOML, or its path (0.2). arguments: flags; those that a trial sets itself are left out."""

    release: Release = Release.FLAGS
    config: Mapping[str, Any] | str = field(default_factory=dict)
    dtype: Dtype = Dtype.BFLOAT16
    warmup_steps: Whole = 5

    def _check(self, checks: Checks) -> None:
        FlagOptions._check(self, checks)
        told = f"goes with release {Release.TOML} only, not {self.release}"
        checks.require(self.release.has_file or not self.config, "config", told)
        self._check_arguments(checks, "--module")

    @property
    def table(self) -> Table:
        return TABLE.variant(self.release)

    @property
    def compiled(self) -> bool:
        """Whether layers and loss are compiled."""
        return any(self._told(*_COMPILED))

    @property
    def even(self) -> bool:
        """Whether experts get equally many tokens by the tokens' places, not by the router."""
        return any(self._told(*_EVEN))

    @property
    def async_tp(self) -> bool:
        return any(self._told(*_ASYNC_TP))

    @property
    def float8(self) -> bool:
        """Whether the linear layers compute in 8 bits, by torchao; experts' grouped products may alone."""
        return any("float8" in str(found).replace("grouped_mm.float8", "") for found in self._told("model.converters"))

    def _told(self, *keys: str) -> list[Any]:
        """What the user's flags and configuration say of keys."""
        flags = [(key_of(flag), values) for flag, values in self.given.items()]
        return [values or on for (key, on), values in flags if key in keys] + [at(self.config, key) for key in keys]

    def keys_set(self, *, by_trials: bool) -> set[str]:
        """The keys that some plan sets, or those that every trial sets beside."""
        return {key for row in self.table.rows if (row.field in _TRIAL) is by_trials for key in row.written}


_SEQUENCE = Constraint(
    "torchtitan-sequence",
    "sequences are cut over tp and in two halves per context rank (parallel_dims.py: seq_len_divisor = tp * cp * 2)",
    lambda c, s: s.model.seq_len % (c["tp"] * c["cp"] * 2) == 0,
    lambda p, s: f"2 * tp({p.tp}) * cp({p.cp}) = {2 * p.tp * p.cp} does not divide seq_len({s.model.seq_len})",
)
_MIXED_PRECISION = Constraint(
    "torchtitan-mixed-precision",
    "v0.2 has bfloat16 products by FSDP, or by DDP alone; tensor and pipeline ranks without FSDP compute in float32 "
    "(distributed/utils.py, maybe_enable_amp)",
    lambda c, s: (c["dp"] * c["cp"] > 1) | (c["tp"] * c["pp"] == 1),
    lambda p, s: f"bfloat16 with tp({p.tp}), pp({p.pp}), dp(1), cp(1)",
)
_BORROWED_RANKS = Constraint(
    "torchtitan-ep-borrows",
    "v0.2.0 spreads experts over all context ranks first, and over all tensor ranks where it does not cut them "
    "(parallel_dims.py, _validate)",
    lambda c, s: (c["ep"] == 1) | (c["ep"] * expert_tp(c) % (c["tp"] * c["cp"]) == 0),
    lambda p, s: f"tp({p.tp}) * cp({p.cp}) does not divide etp({p.expert_tp}) * ep({p.ep})",
)


def capabilities_of(options: TorchtitanOptions) -> Capabilities:
    """Which plans this release can run."""
    half = options.release.has_file and options.dtype is Dtype.BFLOAT16
    rules = [WHOLE_CONTEXTS, _SEQUENCE, *([_MIXED_PRECISION] if half else [])]
    rules += [_BORROWED_RANKS] if options.release is Release.TOML_0_2_0 else []
    return capabilities(TABLE, options.release, rules)
