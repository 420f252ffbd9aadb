"""`meshtune` with a fault that strikes as soon as a file is there: `python faulty_service.py FAULT FILE serve ...`"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshtune.api import stream_hub
from meshtune.tuner.cli.main import main
from meshtune.tuner.service.driving.rounds import Rounds
from meshtune.tuner.service.leases import Holder
from meshtune.tuner.store import Store
from meshtune.tuner.store.access import Keys


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def broken() -> None:
    raise MemoryError("for a test")


# Before which function each strikes, and how.
FAULTS: dict[str, tuple[object, str, Callable[[], None]]] = {
    "killed before acting": (Store, "create_campaign", killed),
    "killed before answering": (Keys, "keep", killed),
    "the driver dies": (Rounds, "go", broken),
    "the reader of events dies": (stream_hub, "frame_of", broken),
    "the heartbeat dies": (Holder, "renew", broken),
}


def faulty(real: Callable[..., Any], strike: Callable[[], None], when: Path) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if when.exists():
            strike()
        return real(*args, **kwargs)

    return function


if __name__ == "__main__":
    place, name, strike = FAULTS[sys.argv[1]]
    setattr(place, name, faulty(getattr(place, name), strike, Path(sys.argv[2])))
    sys.argv[1:] = sys.argv[3:]
    main()
