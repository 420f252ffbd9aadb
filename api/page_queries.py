"""What may be asked of pages of campaigns and trials: every parameter is typed and bounded, an unknown one is a 422.

Page tokens are opaque: where the page before ended, and which question it was a page of. A token with another question
(another order or other filters) is refused, since it would skip or repeat entries. Trials in the order of their numbers
have no need of it: their token is the last number, which fits every filter.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from meshtune.api.dependencies import MAX_NUMBER, MAX_PER_PAGE
from meshtune.api.errors import InvalidQuery
from meshtune.runners.base import Cause
from meshtune.runners.outcome import Verdict
from meshtune.runners.untrusted_text import Limits, read_json
from meshtune.search_spaces.checks import Problem
from meshtune.search_spaces.knob_values import KNOB_NAME, KNOB_WORD, KnobValue, readings
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.listing import NUMBER, CampaignKey, CampaignsWanted, Cursor, Order, TrialKey, TrialsWanted
from meshtune.tuner.campaign.trial import Origin, TrialState
from meshtune.tuner.results.quantities import SORT_KEYS

MAX_LISTED = 1000
MAX_VALUES = 1000
# A name of 100 characters, each six bytes of JSON at the most, and a third more in base64.
MAX_TOKEN = 1200
_TOKEN_LIMITS = Limits(max_bytes=MAX_TOKEN, max_depth=2, max_values=10)
Token = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=MAX_TOKEN,
        description="`next_page_token` of the page before, for the same order and filters.",
    ),
]
Text = Annotated[str, Field(max_length=200)]
KnobText = Annotated[str, Field(pattern=rf"^{KNOB_NAME.pattern}:({KNOB_WORD.pattern})?$", max_length=101)]
Whole = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
if TYPE_CHECKING:
    CampaignSort = str
    TrialSort = str
else:
    CampaignSort, TrialSort = (
        Literal[tuple(sign + key for sign in ("", "-") for key in keys)] for keys in (CampaignKey, SORT_KEYS)
    )


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        words = "must be a time by RFC 3339 or a date, its + sent as %2B, not {text}"
        raise PydanticCustomError("moment", words, {"text": repr(text[:40])}) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


Moment = Annotated[datetime, BeforeValidator(_moment)]


def _any_of(description: str) -> Any:
    return Field(default_factory=list, max_length=MAX_VALUES, description=f"Only {description}; repeated: any of.")


_AFTER, _BEFORE = (
    Field(None, description=f"A time by RFC 3339, or a date, in UTC: only what was so {end}.")
    for end in ("then or later", "then or earlier")
)


def _ends(keys: Sequence[str], times: Sequence[str]) -> list[tuple[str, str, str]]:
    """Each number or time with the names of its limits."""
    numbers = [(key, f"min_{key}", f"max_{key}") for key in keys]
    return numbers + [(f"{time}_at", f"{time}_after", f"{time}_before") for time in times]


_CAMPAIGN_ENDS, _TRIAL_ENDS = _ends(["devices"], ["created", "updated"]), _ends(SORT_KEYS, ["finished"])


def _limits(query: BaseModel, ends: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """at_least and at_most. Raises InvalidQuery for those that leave nothing."""
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for key, low, high in ends:
        for limits, end in ((least, getattr(query, low)), (most, getattr(query, high))):
            if end is not None:
                limits[key] = end.timestamp() if isinstance(end, datetime) else end
        if key in least and key in most and least[key] > most[key]:
            given = f"which is {getattr(query, high)}, not {getattr(query, low)}"
            raise InvalidQuery([Problem(low, f"must be at most {high}, {given}")])
    return {"at_least": least, "at_most": most}


class CampaignQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: Literal["full", "brief"] = Field("full", description="Whole campaigns, or one line for each.")
    state: list[CampaignState] = _any_of("campaigns in this state")
    owner: Text | None = Field(None, description="Only campaigns that this token created; empty: the command line.")
    project: Text | None = Field(None, description="Only campaigns of this project; empty: of none.")
    name: Text = Field("", description="Only campaigns with this in their names.")
    model: Text | None = Field(None, description="Only campaigns of the model with this name.")
    cluster: Text | None = Field(None, description="Only campaigns on the cluster with this name.")
    tag: Text = Field("", description="Only campaigns with this tag.")
    created_after: Moment | None = _AFTER
    created_before: Moment | None = _BEFORE
    updated_after: Moment | None = _AFTER
    updated_before: Moment | None = _BEFORE
    min_devices: Whole | None = Field(None, description="Only campaigns on so many devices or more.")
    max_devices: Whole | None = Field(None, description="Only campaigns on so many devices or fewer.")
    sort: CampaignSort = Field("-created_at", description="With a leading -: the largest first.")
    page_size: int = Field(50, ge=1, le=MAX_PER_PAGE, description="Most entries on this page.")
    page_token: Token | None = None

    @property
    def question(self) -> str:
        """What a page token is good for."""
        return f"campaigns {self.model_dump_json(exclude={'view', 'page_size', 'page_token'})}"

    def wanted(self) -> CampaignsWanted:
        """The page and one entry more, which tells whether there is a next one. Raises InvalidQuery."""
        return CampaignsWanted(
            order=Order(CampaignKey(self.sort.removeprefix("-")), self.sort.startswith("-")),
            **self.model_dump(include={"state", "owner", "project", "name", "model", "cluster", "tag"}),
            **_limits(self, _CAMPAIGN_ENDS),
            after=None if self.page_token is None else _cursor(self.question, self.page_token),
            limit=self.page_size + 1,
        )

    def next_token(self, value: float | str, id: str) -> str:
        return _token(self.question, Cursor(value, id))


class _TrialFilters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: Literal["full", "brief"] = Field("full", description="Whole trials, or one line of numbers for each.")
    verdict: list[Verdict] = _any_of("trials that ended so")
    state: list[TrialState] = _any_of("trials in this state")
    origin: list[Origin] = _any_of("trials that were chosen so")
    failure: list[Cause] = _any_of("trials that failed for this cause")
    number: list[Whole] = _any_of("trials with this number")
    knob: list[KnobText] = Field(
        default_factory=list,
        max_length=MAX_VALUES,
        description="Only plans with this value of a knob, as name:value; `name:` where it is inactive. Repeated: any "
        "of the values of one name, and all names.",
        examples=[["fp8:tensorwise"]],
    )


_Number = Annotated[float, Field(allow_inf_nan=False)] | None
# With a filter for each axis of a plan, and limits of each number that trials are sorted by.
if TYPE_CHECKING:
    _PlanFilters = _TrialFilters
else:
    _PlanFilters = create_model(
        "_PlanFilters",
        __base__=_TrialFilters,
        **{
            axis.name: (list[Whole if axis.kind is int else axis.kind], _any_of("plans with this value"))
            for axis in AXES
        },
        **{
            f"{end}_{key}": (_Number, Field(None, description=f"Only trials with a {key} {words} this."))
            for key in SORT_KEYS
            for end, words in (("min", "of at least"), ("max", "of at most"))
        },
    )


class TrialQuery(_PlanFilters):
    finished_after: Moment | None = _AFTER
    finished_before: Moment | None = _BEFORE
    sort: TrialSort = Field("number", description="With a leading -: the largest first. What lacks it comes last.")
    page_size: int = Field(100, ge=1, le=MAX_LISTED, description="Most entries on this page; 500 of whole trials.")
    page_token: Token | None = None

    @property
    def question(self) -> str:
        return f"trials {self.model_dump_json(exclude={'view', 'page_size', 'page_token'})}"

    @property
    def order(self) -> Order[TrialKey]:
        return Order(TrialKey(self.sort.removeprefix("-")), self.sort.startswith("-"))

    def wanted(self) -> TrialsWanted:
        """The page and one entry more, which tells whether there is a next one. Raises InvalidQuery."""
        if self.view == "full" and self.page_size > MAX_PER_PAGE:
            raise InvalidQuery([Problem("page_size", f"must be at most {MAX_PER_PAGE} with view=full")])
        after, token = None, self.page_token
        if token is not None and self.order.key != NUMBER:
            after = _cursor(self.question, token)
        elif token is not None:
            if not re.fullmatch(r"-1|[0-9]{1,10}", token) or int(token) > MAX_NUMBER:
                raise InvalidQuery([Problem("page_token", f"must be the number of a trial, up to {MAX_NUMBER}, or -1")])
            after = Cursor(int(token), int(token))
        return TrialsWanted(
            order=self.order,
            **self.model_dump(include={"verdict", "state", "origin", "failure", "number"}),
            plan=self.model_dump(include=set(PLAN_FIELDS)),
            knobs=knobs_named(self.knob),
            **_limits(self, _TRIAL_ENDS),
            after=after,
            limit=self.page_size + 1,
        )

    def next_token(self, value: float | None, number: int) -> str:
        if self.order.key == NUMBER:
            return str(number)
        return _token(self.question, Cursor(value, number))


def knobs_named(texts: Sequence[str]) -> dict[str, tuple[KnobValue | None, ...]]:
    """The values that texts of the form name:value may mean, by name; None for an empty one."""
    values: dict[str, tuple[KnobValue | None, ...]] = {}
    for text in texts:
        name, _, value = text.partition(":")
        values[name] = values.get(name, ()) + (readings(value) if value else (None,))
    return values


def _token(question: str, cursor: Cursor) -> str:
    text = json.dumps([_digest(question, cursor), cursor.value, cursor.name], separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _cursor(question: str, token: str) -> Cursor:
    """The cursor that `_token` was given with this question. Raises InvalidQuery."""
    try:
        padded = token + "=" * (-len(token) % 4)
        digest, value, named = read_json(urlsafe_b64decode(padded.encode()), _TOKEN_LIMITS)
    except (ValueError, TypeError):
        raise InvalidQuery([Problem("page_token", "is no page token")]) from None
    cursor = Cursor(value, named)
    if digest != _digest(question, cursor):
        raise InvalidQuery([Problem("page_token", "is of a page in another order or with other filters; start again")])
    return cursor


def _digest(question: str, cursor: Cursor) -> str:
    """Over the cursor, too: what was altered is refused before its types can surprise the database."""
    return blake2b(f"{question} {cursor!r}".encode(), digest_size=6).hexdigest()
