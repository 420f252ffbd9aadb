"""The picture of rooms in docs/structure.md, made from the imports: `python docs/site/rooms.py [--check]`.

Rooms and their order are the layers of import-linter's contracts in pyproject.toml, of the runners those that are
folders; --check changes nothing and fails where the page is out of date."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "structure.md"
BEGIN, END = "<!-- rooms: begin -->\n", "<!-- rooms: end -->\n"
PACKAGE = "meshtune"


def rooms() -> list[str]:
    """From the top, below the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [each for each in project["tool"]["importlinter"]["contracts"] if each["type"] == "layers"]
    layers = [[one for layer in contract["layers"] for one in layer.split(" | ")] for contract in contracts]
    (folders,) = (each for each in layers if f"{PACKAGE}.runners" in each)
    inner = [each for each in layers if each is not folders]
    found: list[str] = []
    for folder in folders:
        own = [room for each in inner for room in each if room.startswith(f"{folder}.")]
        found += [room for room in own if (ROOT / room.removeprefix(f"{PACKAGE}.").replace(".", "/")).is_dir()]
        if folder != f"{PACKAGE}.tuner":
            found.append(folder)
    return [room.removeprefix(f"{PACKAGE}.") for room in found]


def picture() -> str:
    """A row for each room: how many imports it has of each other one, named by its number."""
    names = rooms()
    graph = grimp.build_graph(PACKAGE, cache_dir=None)

    def room_of(module: str) -> str:
        inside = module.removeprefix(f"{PACKAGE}.")
        return max((name for name in names if f"{inside}.".startswith(f"{name}.")), key=len, default="")

    arrows = Counter(
        (room_of(module), room_of(other))
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    )
    width = 3 + max(map(len, names))
    lines = [" " * width + "".join(f"{number:4}" for number in range(1, len(names) + 1))]
    for number, name in enumerate(names, 1):
        counts = ["." if name == other else str(arrows[name, other] or "") for other in names]
        lines.append(f"{number:2} {name}".ljust(width) + "".join(f"{count:>4}" for count in counts))
    return "\n".join(f"    {line.rstrip()}" for line in lines) + "\n"


def main(argv: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    now = f"{before}{BEGIN}\n{picture()}\n{END}{after}"
    if argv == ["--check"]:
        return int(now != page)
    PAGE.write_text(now, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
