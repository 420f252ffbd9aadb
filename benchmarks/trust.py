"""What a service withstands, one command for each row of the table in docs/explanation/security.md:

    python benchmarks/trust.py kills --number 1000
    python benchmarks/trust.py changes --number 1000 --database sqlite
    python benchmarks/trust.py changes --number 1000 --database postgres
    python benchmarks/trust.py requests --cases 20000
    python benchmarks/trust.py inputs --specs 10000 --scripts 2000
    python benchmarks/trust.py neighbour --minutes 10

Exit code 1 where something was found; what, is printed."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import trust_changes
import trust_inputs
import trust_kills
import trust_neighbour
import trust_requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    attacks = parser.add_subparsers(dest="attack", required=True)
    kills = attacks.add_parser("kills", help="deaths of services, runner, ranks and PostgreSQL")
    kills.add_argument("--number", type=int, default=50)
    changes = attacks.add_parser("changes", help="deaths while campaigns are extended, enqueued, rerun, asked and told")
    changes.add_argument("--number", type=int, default=50)
    changes.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    requests = attacks.add_parser("requests", help="generated requests with two tokens")
    requests.add_argument("--cases", type=int, default=2000)
    inputs = attacks.add_parser("inputs", help="mutated specs and launch scripts")
    inputs.add_argument("--specs", type=int, default=500)
    inputs.add_argument("--scripts", type=int, default=100)
    neighbour = attacks.add_parser("neighbour", help="a campaign alone, and beside who wants to stop it")
    neighbour.add_argument("--minutes", type=float, default=1.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trust-"))
    match arguments.attack:
        case "kills":
            clean = trust_kills.attack(folder, arguments.number, arguments.seed)
        case "changes":
            sqlite = arguments.database == "sqlite"
            clean = trust_changes.attack(folder, arguments.number, arguments.seed, sqlite=sqlite)
        case "requests":
            clean = trust_requests.attack(folder, arguments.cases, arguments.seed)
        case "inputs":
            clean = trust_inputs.attack(folder, arguments.specs, arguments.scripts, arguments.seed)
        case _:
            clean = trust_neighbour.attack(folder, arguments.minutes)
    if clean:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        sys.stdout.write(f"its files are left in {folder}\n")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
