"""What the service answers how fast, by a real `meshtune serve` and clients in processes of their own.

`python benchmarks/service.py` fills a SQLite file and a PostgreSQL database with 200 campaigns of 1,000 trials each and
prints how long the requests take that pages poll, 50 of them in flight: the list of campaigns, the best settings and
the pages of trials of any campaign. First: each answer is asked for once after the start, so all of them are computed.
Again: at random, as pages that poll do. CPU is the service's, for each request. Other figures are asked for by name:

--sizes 1k,10k,100k,1M   what one request costs against the number of trials, and what database and service hold;
                         one database grows from size to size
--trials-in-flight 500   how long ticks take with so many simulated trials in flight
--idle 200               what so many campaigns cost whose one job each goes on
--streams 200            how late an event reaches each of so many streams
--soak 30m               how much memory the service holds while campaigns, streams and polling clients go on
--quick                  all of it, small
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from service_copy import stored_bytes
from service_fill import Filled, fill
from service_live import idle_row, late_ms, soak, tick_row
from service_process import Server, postgres, serving

from meshtune.tuner.store import Store

CLIENT = Path(__file__).parent / "service_load.py"
PAGE = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """What requests took, in ms, how long all of them together, and what they cost the service."""

    took_ms: Sequence[float]
    seconds: float
    cpu_s: float

    def cells(self) -> list[str]:
        figures = [f"{quantile(self.took_ms, share):.1f}" for share in (0.5, 0.95, 0.99, 1.0)]
        number = len(self.took_ms)
        return [str(number), *figures, f"{number / self.seconds:.0f}", f"{1e3 * self.cpu_s / number:.2f}"]


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ask(server: Server, paths: Sequence[str], in_flight: int) -> Latency:
    """By a client in a process of its own."""
    order = {
        "host": server.host,
        "port": server.port,
        "token": server.token,
        "in_flight": in_flight,
        "paths": list(paths),
    }
    start, cpu_s = time.perf_counter(), server.cpu_s
    done = subprocess.run(
        [sys.executable, CLIENT], input=json.dumps(order), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    took_ms: list[float] = json.loads(done.stdout)
    return Latency(took_ms, time.perf_counter() - start, server.cpu_s - cpu_s)


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


def size_row(url: str, home: Path, size: int, trials_each: int) -> list[str]:
    """What one request costs, in ms, first and again (the median of 50), with so many trials in the database, and
    how long it took to fill it up to them. The first answers are of the campaign that was added last."""
    begun = time.monotonic()
    with Store.open(url) as store:
        filled = fill(store, max(1, size // trials_each), trials_each)
        took_s, stored = time.monotonic() - begun, stored_bytes(store) / 2**20
    with serving(url, home) as server:
        cells = []
        for paths in (list_paths(), best_paths(filled), page_paths(filled)):
            first, again = ask(server, paths[-1:], 1), ask(server, paths[-1:] * 50, 1)
            cells += [f"{quantile(first.took_ms, 0.5):.1f}", f"{quantile(again.took_ms, 0.5):.1f}"]
        memory = server.memory_bytes / 2**20
    return [f"{size:,}", *cells, f"{stored:.0f}", f"{memory:.0f}", f"{took_s:.0f}"]


def size_rows(kind: str, sizes: Sequence[int], trials_each: int) -> Iterator[list[str]]:
    """One for each size, in one database that grows."""
    with tempfile.TemporaryDirectory() as folder, database(kind, Path(folder)) as url:
        for size in sorted(sizes):
            yield [kind, *size_row(url, Path(folder), size, trials_each)]


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """As Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    sys.stdout.write("".join(f"| {' | '.join(cells)} |\n" for cells in lines) + "\n")


def size_of(text: str) -> int:
    """1k, 10k, 1M, or a plain number."""
    factor = {"k": 1000, "M": 1_000_000}.get(text[-1:], 1)
    return int(text.rstrip("kM")) * factor


def tell(cells: Sequence[str]) -> list[str]:
    sys.stderr.write(f"{' '.join(cells)}\n")
    return list(cells)


def seconds_of(text: str) -> float:
    """30m, 90s, or a plain number of seconds."""
    return float(text.rstrip("ms")) * {"m": 60.0}.get(text[-1:], 1.0)


@contextmanager
def empty_service(kind: str) -> Iterator[Server]:
    """On an empty database in a home of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        database(kind, Path(folder)) as url,
        serving(url, Path(folder)) as server,
    ):
        yield server


def print_latencies(kinds: Sequence[str], campaigns: int, trials_each: int, in_flight: int, requests: int) -> None:
    rows = []
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder, database(kind, Path(folder)) as url:
            filled = filled_store(url, campaigns, trials_each)
            with serving(url, Path(folder)) as server:
                rows += [tell([kind, *row]) for row in latencies(server, filled, in_flight, requests)]
    figures = ["requests", "p50 ms", "p95 ms", "p99 ms", "max ms", "per s", "CPU ms"]
    print_table(["database", "time", "request", *figures], rows)


def print_sizes(kinds: Sequence[str], sizes: Sequence[int], trials_each: int) -> None:
    rows = [tell(row) for kind in kinds for row in size_rows(kind, sizes, trials_each)]
    asked = [f"{name}, {time} ms" for name in ("list", "best", "trials") for time in ("first", "again")]
    print_table(["database", "trials", *asked, "database MiB", "service MiB", "filled in s"], rows)


def print_live(kinds: Sequence[str], head: Sequence[str], row: Callable[[Server], list[str]]) -> None:
    """A table with one row for each kind of database: of a service that drives campaigns, on an empty one."""
    rows = []
    for kind in kinds:
        with empty_service(kind) as server:
            rows.append(tell([kind, *row(server)]))
    print_table(["database", *head], rows)


def print_ticks(kinds: Sequence[str], trials: int, seconds: float, search: str) -> None:
    head = ["in flight", "ticks", "mean s", "p50 <= s", "p99 <= s", "longest <= s", "CPU cores"]
    print_live(kinds, head, lambda server: tick_row(server, trials, seconds, search))


def print_idle(kinds: Sequence[str], campaigns: int, seconds: float) -> None:
    print_live(kinds, ["active campaigns", "CPU cores"], lambda server: idle_row(server, campaigns, seconds))


def print_streams(kinds: Sequence[str], streams: int, moves: int) -> None:
    def row(server: Server) -> list[str]:
        late = late_ms(server, streams, moves)
        return [str(streams), str(moves), *(f"{quantile(late, share):.0f}" for share in (0.5, 0.99, 1.0))]

    print_live(kinds, ["streams", "events", "p50 ms", "p99 ms", "max ms"], row)


def print_soak(kinds: Sequence[str], seconds: float, every_s: float) -> None:
    """With the growth since the first sixth, in which caches fill: of 30 minutes the first five."""
    for kind in kinds:
        with empty_service(kind) as server:
            rows = [tell([kind, *row]) for row in soak(server, seconds, every_s, partial(ask, server, in_flight=5))]
        print_table(["database", "minutes", "trials that ended", "service MiB"], rows)
        settled, last = rows[max(0, len(rows) // 6 - 1)], rows[-1]
        growth = 100 * (float(last[3]) / float(settled[3]) - 1)
        sys.stdout.write(f"{kind}: growth since minute {settled[1]}: {growth:+.1f} %\n\n")


def print_quick(kinds: Sequence[str]) -> None:
    print_latencies(kinds, campaigns=6, trials_each=40, in_flight=10, requests=100)
    print_sizes(kinds, [40, 240], trials_each=40)
    print_ticks(kinds, 20, seconds=2.0, search="random")
    print_idle(kinds, 4, seconds=1.0)
    print_streams(kinds, 5, moves=2)
    print_soak(kinds, 4.0, every_s=1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--databases", default="sqlite,postgres", help="which, with commas")
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--trials", type=int, default=1000, help="of each campaign")
    parser.add_argument("--in-flight", type=int, default=50, help="requests")
    parser.add_argument("--requests", type=int, default=5000, help="of each kind")
    parser.add_argument("--search", default="physics", help="of the campaigns of --trials-in-flight")
    parser.add_argument("--sizes", metavar="TRIALS,...")
    parser.add_argument("--trials-in-flight", type=int, metavar="N")
    parser.add_argument("--idle", type=int, metavar="CAMPAIGNS")
    parser.add_argument("--streams", type=int, metavar="N")
    parser.add_argument("--soak", metavar="30m")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    kinds = arguments.databases.split(",")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    sys.stdout.write(f"load average before: {load}; {os.cpu_count()} processors\n\n")
    if arguments.quick:
        print_quick(kinds)
    elif arguments.sizes:
        print_sizes(kinds, [size_of(text) for text in arguments.sizes.split(",")], arguments.trials)
    # One service for each figure, since all campaigns of one share its simulated cluster.
    elif arguments.trials_in_flight:
        print_ticks(kinds, arguments.trials_in_flight, 60.0, arguments.search)
    elif arguments.idle:
        print_idle(kinds, arguments.idle, 30.0)
    elif arguments.streams:
        print_streams(kinds, arguments.streams, moves=20)
    elif arguments.soak:
        print_soak(kinds, seconds_of(arguments.soak), 60.0)
    else:
        print_latencies(kinds, arguments.campaigns, arguments.trials, arguments.in_flight, arguments.requests)


if __name__ == "__main__":
    main()
