"""Prints what `meshtune import` makes of the corpus, by family and case.

python tests/import_corpus/table.py [FOLDER] [--faults]: FOLDER holds the cases, by default those beside this file.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "laboratories"))

from import_cases import CASES, Verdict, cases, judge

if __name__ == "__main__":
    folders = [word for word in sys.argv[1:] if word != "--faults"]
    by_family: dict[str, Counter[Verdict]] = defaultdict(Counter)
    whole: Counter[Verdict] = Counter()
    unasked = 0
    for case in cases(Path(folders[0]) if folders else CASES):
        with tempfile.TemporaryDirectory() as folder:
            found = judge(case, Path(folder))
        by_family[case.expected["family"]][found.verdict] += 1
        asked = (found.document or {}).get("open_questions") or ()
        if case.wanted is Verdict.FULL:
            whole[found.verdict] += 1
            unasked += found.verdict is Verdict.FULL and not asked
        faults = found.faults if "--faults" in sys.argv else ()
        lines = [
            f"{case.name:44} wanted {case.wanted:8} {found.verdict:14} asks {len(asked)}",
            *(f"    {fault}"[:400] for fault in faults),
        ]
        sys.stdout.write("\n".join(" ".join(line.splitlines()) for line in lines) + "\n")
    sys.stdout.write(f"\n{'family':20}" + "".join(f"{verdict:>16}" for verdict in Verdict) + "\n")
    for family, counted in [*sorted(by_family.items()), ("all", sum(by_family.values(), Counter()))]:
        sys.stdout.write(f"{family:20}" + "".join(f"{counted[verdict]:16}" for verdict in Verdict) + "\n")
    share = f"{whole[Verdict.FULL]} of {whole.total()} whose files say everything"
    sys.stdout.write(f"\nimported whole: {share}, {unasked} of them without a question\n")
