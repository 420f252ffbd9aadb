"""A wrong document hears of every mistake at once, each with its path and in words for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pytest

from meshtune.runners.documents import plain, read_value
from meshtune.search_spaces.checks import Checks, Closed, InvalidValue


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(Closed):
    inches: float
    spokes: int = 32

    def _check(self, checks: Checks) -> None:
        checks.require(self.inches > 0, "inches", f"must be positive, not {self.inches}")
        checks.require(self.spokes % 2 == 0, "", f"spokes({self.spokes}) must be even")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bicycle(Closed):
    name: str
    front: Wheel
    rear: Wheel | None = None
    colour: Colour = Colour.RED
    gears: tuple[int, ...] = (1,)
    extras: Mapping[str, float] = field(default_factory=dict)
    electric: bool = False


GOOD = {"name": "Rosinante", "front": {"inches": 28}}


def test_a_good_document_becomes_a_value():
    document = GOOD | {"rear": {"inches": 26.5, "spokes": 36}, "colour": "blue", "gears": [1, 2]}
    assert read_value(Bicycle, document) == Bicycle(
        name="Rosinante",
        front=Wheel(inches=28),
        rear=Wheel(inches=26.5, spokes=36),
        colour=Colour.BLUE,
        gears=(1, 2),
    )


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"front": ...}, ["front: is missing"]),
        ({"front": {}}, ["front.inches: is missing"]),
        ({"colr": "red"}, ["colr: is not a known key; did you mean 'colour'?"]),
        ({"zzz": 1}, ["zzz: is not a known key; known: colour, electric, extras, front, gears, name, rear"]),
        ({"front": {"inches": 1, "spoke": 3}}, ["front.spoke: is not a known key; did you mean 'spokes'?"]),
        ({"rear": {"inches": 1, "x": 3}}, ["rear.x: is not a known key; known: inches, spokes"]),
        ({"name": 3}, ["name: must be string, not 3"]),
        ({"front": 28}, ["front: must be a mapping of keys, not 28"]),
        ({"front": [28]}, ["front: must be a mapping of keys, not [28]"]),
        (
            {"rear": {"inches": "big"}},
            ["rear.inches: must be a valid number, unable to parse string as a number, not 'big'"],
        ),
        ({"gears": [1, 2.5]}, ["gears.1: must be a valid integer, got a number with a fractional part, not 2.5"]),
        ({"gears": 3}, ["gears: must be a list, not 3"]),
        ({"colour": "green"}, ["colour: must be 'red' or 'blue', not 'green'"]),
        ({"extras": [1]}, ["extras: must be a mapping of keys, not [1]"]),
        ({"extras": {"bell": None}}, ["extras.bell: must be number, not None"]),
        (
            {"front": {"inches": -1, "spokes": 7}},
            ["front.inches: must be positive, not -1.0", "front: spokes(7) must be even"],
        ),
        ({"rear": {"inches": 1, "spokes": 7}}, ["rear: spokes(7) must be even"]),
        ({"name": ["a" * 100]}, [f"name: must be string, not ['{'a' * 55}..."]),
        (
            {"name": ..., "colr": 1, "front": {"inches": 0}, "gears": ["a"]},
            [
                "front.inches: must be positive, not 0.0",
                "gears.0: must be a valid integer, unable to parse string as an integer, not 'a'",
                "colr: is not a known key; did you mean 'colour'?",
                "name: is missing",
            ],
        ),
    ],
)
def test_every_mistake_is_told_with_its_path(changes, problems):
    document = {key: value for key, value in (GOOD | changes).items() if value is not ...}
    with pytest.raises(InvalidValue) as caught:
        read_value(Bicycle, document)
    assert sorted(str(problem) for problem in caught.value.problems) == sorted(problems)


def test_the_plain_form_is_json_and_comes_back():
    value = read_value(Bicycle, GOOD | {"colour": "blue", "rear": {"inches": 0.1}, "extras": {"bell": 1.5}})
    assert read_value(Bicycle, json.loads(json.dumps(plain(value)))) == value
    assert type(plain(value)["colour"]) is str
