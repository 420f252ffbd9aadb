"""How many of the active campaigns each serving process takes: as many as any other, so that none waits for nobody.

Pure. Shares add up to all campaigns at least; nobody hands over for a small difference, since whoever takes a campaign
over has to build its space and search anew.
"""

from __future__ import annotations

from meshtune.tuner.store import Standing

# A process gives back what it has above its share, once that is more than a quarter of it, or than this many.
FEW = 2


def wanted(standing: Standing, holder: str) -> list[str]:
    """The campaigns that the holder takes now, oldest first: of those that nobody has, up to its share."""
    free = [id for id, driver in standing.drivers.items() if not driver]
    return free[: max(0, _share(standing) - len(_own(standing, holder)))]


def surplus(standing: Standing, holder: str) -> list[str]:
    """The campaigns that the holder gives back for others to take, the youngest."""
    own, share = _own(standing, holder), _share(standing)
    return own[share:] if len(own) - share > max(FEW, share // 4) else []


def _own(standing: Standing, holder: str) -> list[str]:
    return [id for id, driver in standing.drivers.items() if driver == holder]


def _share(standing: Standing) -> int:
    return -(-len(standing.drivers) // max(1, standing.servers))
