"""Whether `[ a = b ]`, `[[ ... ]]` and `test` succeed, where their words say it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne

from meshtune.runners.programs.dialects.bash.expansion import is_known

TESTS: Mapping[str, str] = {"[": "]", "[[": "]]", "test": ""}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_COMPARE = {f"-{compare.__name__}": compare for compare in (eq, ne, lt, le, gt, ge)}


def holds(words: Sequence[str], files: Collection[str] = ()) -> bool | None:
    """Whether a test such as `[ a = b ]` succeeds, None where that is not known. files: that are there."""
    inner = list(words[1:-1] if TESTS[words[0]] and words[-1] == TESTS[words[0]] else words[1:])
    own = words[0] == "[["
    for joiner, decides in ((("||" if own else "-o"), True), (("&&" if own else "-a"), False)):
        if joiner in inner[1:]:
            at = inner.index(joiner, 1)
            sides = (inner[:at], inner[at + 1 :])
            found = [holds(["[[", *side, "]]"] if own else ["test", *side], files) for side in sides]
            return decides if decides in found else None if None in found else not decides
    negated = inner[:1] == ["!"]
    inner = inner[negated:]
    if not all(map(is_known, inner)):
        return None
    match inner:
        case ["-n", text] | [text]:
            found_ = bool(text)
        case ["-z", text]:
            found_ = not text
        case ["-f" | "-e" | "-s" | "-r", name] if name in files:
            found_ = True
        case [left, "=" | "==" | "!=" as compared, right]:
            same = fnmatchcase(left, right) if words[0] == "[[" else left == right
            found_ = same is not (compared == "!=")
        case [left, compared, right] if compared in _COMPARE and _WHOLE.fullmatch(left) and _WHOLE.fullmatch(right):
            found_ = _COMPARE[compared](int(left), int(right))
        case _:
            return None
    return found_ is not negated
