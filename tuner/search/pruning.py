"""Plans that surely run out of memory, since one that needs no more memory than they do already did.

Only rules that hold for every training code: with all else equal (accumulation follows from a fixed batch), a larger
micro-batch keeps more activations; a lower stage of ZeRO, where there is data parallelism, keeps more states; fewer
recomputed activations are more kept ones. That a plan *crashed* proves nothing, so only out-of-memory verdicts count.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from search_spaces.columns import RECOMPUTES, Columns, columns_of
from search_spaces.plan import PLAN_FIELDS, Plan, Recompute

# The more of its activations a plan computes again, the fewer it keeps.
KEPT = {Recompute.FULL: 0, Recompute.SELECTIVE: 1, Recompute.NONE: 2}
# A plan that differs in any other field is no witness. Accumulation only ever shrinks as the micro-batch grows.
LOOSE = ("micro_batch_size", "grad_accum_steps", "zero_stage", "recompute")
# ZeRO 2 and 3 hold buffers that 0 and 1 do not, so only stages that keep nothing of their own are compared.
WITHOUT_BUFFERS = 1


def surely_out_of_memory(columns: Columns, ran_out: Sequence[Plan]) -> npt.NDArray[np.bool_]:
    """True for each plan of `columns` that needs at least the memory of one of those that ran out."""
    kept = np.array([KEPT[recompute] for recompute in RECOMPUTES])
    doomed = np.zeros(len(columns["tp"]), dtype=np.bool_)
    tried = columns_of(ran_out)
    for row in range(len(ran_out)):
        here = {name: tried[name][row] for name in PLAN_FIELDS}
        same = np.all([columns[name] == here[name] for name in PLAN_FIELDS if name not in LOOSE], axis=0)
        batch = columns["micro_batch_size"] * columns["grad_accum_steps"]
        same &= batch == here["micro_batch_size"] * here["grad_accum_steps"]
        stage = columns["zero_stage"] == here["zero_stage"]
        stage |= (columns["zero_stage"] < here["zero_stage"]) & (here["zero_stage"] <= WITHOUT_BUFFERS)
        larger = columns["micro_batch_size"] >= here["micro_batch_size"]
        doomed |= same & stage & larger & (kept[columns["recompute"]] >= kept[here["recompute"]])
    return doomed
