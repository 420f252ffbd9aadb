"""Every rank finds its place in one mesh (pp, dp, tp), tp innermost.

Ranks of one node are consecutive, so tensor parallelism, which talks most, stays inside a node, and pipeline stages,
which talk least, lie farthest apart (Narayanan et al. 2021, section 3). Context and expert parallelism would be new
axes next to dp here; they do not exist yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True)
class Mesh:
    """The three axes as this rank sees them, and where it stands on each."""

    pp: DeviceMesh
    dp: DeviceMesh
    tp: DeviceMesh

    @property
    def stage(self) -> int:
        return self.pp.get_local_rank()

    @property
    def replica(self) -> int:
        return self.dp.get_local_rank()

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.pp.size() - 1


def build_mesh(plan: Plan, device_type: str) -> Mesh:
    """Collective: every rank of the job calls it, with the same plan."""
    whole = init_device_mesh(device_type, (plan.pp, plan.dp, plan.tp), mesh_dim_names=("pp", "dp", "tp"))
    return Mesh(whole["pp"], whole["dp"], whole["tp"])


def build_tie_group(plan: Plan, mesh: Mesh) -> dist.ProcessGroup | None:
    """The group of the first and the last stage's ranks that hold the same part of a tied weight.

    Collective. None on the stages between, which hold no copy.
    """
    if plan.pp == 2:
        return mesh.pp.get_group()
    per_stage = plan.dp * plan.tp
    pairs = [[rank, (plan.pp - 1) * per_stage + rank] for rank in range(per_stage)]
    own = None
    for pair in pairs:
        group = dist.new_group(pair)
        if dist.get_rank() in pair:
            own = group
    return own
