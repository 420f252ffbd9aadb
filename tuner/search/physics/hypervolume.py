"""Two objectives, both to be small: how much a point adds to what a front dominates.

Here they are log(seconds per token) and log(peak bytes), so an area is a product of two shares.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.columns import FloatColumn

Points = npt.NDArray[np.float64]


def front_of(points: Points) -> Points:
    """Those of the points (n x 2) that no other is at least as small as in both, by the first objective."""
    order = np.lexsort((points[:, 1], points[:, 0]))
    kept: list[int] = []
    lowest = np.inf
    for index in order:
        if points[index, 1] < lowest:
            kept.append(int(index))
            lowest = float(points[index, 1])
    return points[kept]


def dominated_area(front: Points, reference: FloatColumn) -> float:
    """The area between a front and the reference, which is no better than any point of interest (2)."""
    inside = front[np.all(front < reference, axis=1)]
    ends = np.append(inside[1:, 0], reference[0])
    return float(np.sum((ends - inside[:, 0]) * (reference[1] - inside[:, 1])))


def added_area(front: Points, reference: FloatColumn, points: Points) -> FloatColumn:
    """By how much each of the points (any shape x 2) extends the dominated area; 0 for a point beyond the reference.

    front: as `front_of` gives it. Between two neighbours of the front, a point adds what lies below the left one's
    second objective.
    """
    inside = front[np.all(front < reference, axis=1)]
    lefts = np.concatenate([[-np.inf], inside[:, 0]])
    rights = np.concatenate([inside[:, 0], [reference[0]]])
    ceilings = np.concatenate([[reference[1]], inside[:, 1]])
    total = np.zeros(points.shape[:-1])
    for left, right, ceiling in zip(lefts, rights, ceilings, strict=True):
        width = right - np.maximum(points[..., 0], left)
        total += np.maximum(width, 0.0) * np.maximum(ceiling - points[..., 1], 0.0)
    return total
