"""What the service answers how fast, by a real `meshtune serve` and a client in a process of its own.

`python benchmarks/service.py` fills a SQLite file and a PostgreSQL database with 200 campaigns of 1,000 trials each and
prints how long the requests take that pages poll, 50 of them in flight: the list of campaigns, the best settings and
the pages of trials of any campaign. First: each answer is asked for once after the service has started, so all of them
are made. Then: again and again, at random, as pages that poll do. `--sizes 1k,10k,100k,1M` prints what one request
costs against the number of trials in the database, with nothing else in flight, and what the database and the service
hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from service_fill import Filled, fill
from service_process import Server, postgres, serving

from tuner.store import Store

CLIENT = Path(__file__).parent / "service_load.py"
PAGE = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """What so many requests took, in ms, and how many of them a second were answered."""

    took_ms: Sequence[float]
    seconds: float

    def quantile(self, share: float) -> float:
        ordered = sorted(self.took_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def cells(self) -> list[str]:
        figures = [f"{self.quantile(share):.1f}" for share in (0.5, 0.95, 0.99)]
        return [str(len(self.took_ms)), *figures, f"{max(self.took_ms):.1f}", f"{len(self.took_ms) / self.seconds:.0f}"]


def ask(server: Server, paths: Sequence[str], in_flight: int) -> Latency:
    """By a client in a process of its own."""
    order = {
        "host": server.host,
        "port": server.port,
        "token": server.token,
        "in_flight": in_flight,
        "paths": list(paths),
    }
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, CLIENT], input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    took_ms: list[float] = json.loads(done.stdout)
    return Latency(took_ms, time.perf_counter() - start)


def list_paths() -> list[str]:
    return ["/v1/campaigns"]


def best_paths(filled: Filled) -> list[str]:
    return [f"/v1/campaigns/{id}/best" for id in filled.campaign_ids]


def page_paths(filled: Filled) -> list[str]:
    """Every page of every campaign, in the order of the numbers."""
    starts = range(-1, filled.trials_each - 1, PAGE)
    query = f"view=brief&page_size={PAGE}&page_token="
    return [f"/v1/campaigns/{id}/trials?{query}{start}" for id in filled.campaign_ids for start in starts]


def latencies(server: Server, filled: Filled, in_flight: int, requests: int) -> Iterator[list[str]]:
    """The rows of the table."""
    kinds = {"list": list_paths(), "best": best_paths(filled), "trials": page_paths(filled)}
    rng = random.Random(1)
    for name, paths in kinds.items():
        yield ["first", name, *ask(server, paths, in_flight).cells()]
    for name, paths in kinds.items():
        yield ["again", name, *ask(server, rng.choices(paths, k=requests), in_flight).cells()]
    mixed = [rng.choice(rng.choice(list(kinds.values()))) for _ in range(requests)]
    yield ["again", "all three", *ask(server, mixed, in_flight).cells()]


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/meshtune.db"
    else:
        with postgres() as url:
            yield url


def filled_store(url: str, campaigns: int, trials_each: int) -> Filled:
    with Store.open(url) as store:
        return fill(store, campaigns, trials_each)


def size_row(kind: str, size: int, trials_each: int) -> list[str]:
    """What one request costs, in ms, first and again (the median of 50), with so many trials in the database."""
    with tempfile.TemporaryDirectory() as folder, database(kind, Path(folder)) as url:
        filled = filled_store(url, max(1, size // trials_each), trials_each)
        stored = sum(path.stat().st_size for path in Path(folder).glob("meshtune.db*")) / 2**20
        with serving(url, Path(folder)) as server:
            cells = []
            for paths in (list_paths(), best_paths(filled), page_paths(filled)):
                first, again = ask(server, paths[-1:], 1), ask(server, paths[-1:] * 50, 1)
                cells += [f"{first.quantile(0.5):.1f}", f"{again.quantile(0.5):.1f}"]
            memory = server.memory_bytes / 2**20
    return [kind, f"{size:,}", *cells, f"{stored:.0f}" if stored else "", f"{memory:.0f}"]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    sys.stdout.write("".join(f"| {' | '.join(cells)} |\n" for cells in lines))


def size_of(text: str) -> int:
    """1k, 10k, 1M, or a plain number."""
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1:], 1)
    return int(text.rstrip("kM")) * factor


def tell(cells: Sequence[str]) -> list[str]:
    sys.stderr.write(f"{' '.join(cells)}\n")
    return list(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", default="sqlite,postgres", help="which, with commas")
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--trials", type=int, default=1000, help="of each campaign")
    parser.add_argument("--in-flight", type=int, default=50)
    parser.add_argument("--requests", type=int, default=5000, help="of each kind")
    parser.add_argument("--sizes", default="", help="numbers of trials, with commas: the cost against the size")
    arguments = parser.parse_args()
    kinds = arguments.databases.split(",")
    if arguments.sizes:
        sizes = [size_of(text) for text in arguments.sizes.split(",")]
        rows = [tell(size_row(kind, size, arguments.trials)) for kind in kinds for size in sizes]
        asked = [f"{name}, {time} ms" for name in ("list", "best", "trials") for time in ("first", "again")]
        print_table(["database", "trials", *asked, "database MiB", "service MiB"], rows)
        return
    rows = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, database(kind, Path(folder)) as url:
            filled = filled_store(url, arguments.campaigns, arguments.trials)
            with serving(url, Path(folder)) as server:
                found = latencies(server, filled, arguments.in_flight, arguments.requests)
                rows += [tell([kind, *row]) for row in found]
    print_table(["database", "time", "request", "requests", "p50 ms", "p95 ms", "p99 ms", "max ms", "per s"], rows)


if __name__ == "__main__":
    main()
