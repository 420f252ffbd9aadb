"""What may be asked of pages of campaigns and trials: every parameter is typed and bounded, an unknown one is a 422."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from meshtune.api.dependencies import MAX_NUMBER, MAX_PER_PAGE
from meshtune.api.requests import page_tokens
from meshtune.runners.failure_cause import Cause
from meshtune.runners.outcome import Verdict
from meshtune.search_spaces.plan import AXES, PLAN_FIELDS
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.campaign.listing import CampaignKey, CampaignsWanted, Cursor, Order, TrialKey, TrialsWanted
from meshtune.tuner.campaign.trial import Origin, TrialState

MAX_LISTED = 1000
MAX_VALUES = 1000
Token = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=page_tokens.MAX_CHARACTERS,
        description="`next_page_token` of the page before, for the same order and filters.",
    ),
]
Text = Annotated[str, Field(max_length=200)]
Whole = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
CampaignSort = Literal[
    "created_at", "updated_at", "name", "state", "legal", "-created_at", "-updated_at", "-name", "-state", "-legal"
]
TrialSort = Literal[
    "number",
    "step_time_s",
    "tokens_per_s_per_device",
    "peak_memory_bytes",
    "device_seconds",
    "-number",
    "-step_time_s",
    "-tokens_per_s_per_device",
    "-peak_memory_bytes",
    "-device_seconds",
]


def _any_of(description: str) -> Any:
    return Field(default_factory=list, max_length=MAX_VALUES, description=f"Only {description}; repeated: any of.")


class CampaignQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    state: list[CampaignState] = _any_of("campaigns in this state")
    owner: Text | None = Field(None, description="Only campaigns that this token created; empty: the command line.")
    name: Text = Field("", description="Only campaigns with this in their names.")
    model: Text | None = Field(None, description="Only campaigns of the model with this name.")
    cluster: Text | None = Field(None, description="Only campaigns on the cluster with this name.")
    sort: CampaignSort = Field("-created_at", description="With a leading -: the largest first.")
    page_size: int = Field(50, ge=1, le=MAX_PER_PAGE, description="Most entries on this page.")
    page_token: Token | None = None

    @property
    def question(self) -> str:
        """What a page token is good for."""
        return f"campaigns {self.model_dump_json(exclude={'page_size', 'page_token'})}"

    def wanted(self) -> CampaignsWanted:
        """The page and one entry more, which tells whether there is a next one. Raises RequestValidationError."""
        return CampaignsWanted(
            order=Order(CampaignKey(self.sort.removeprefix("-")), self.sort.startswith("-")),
            states=tuple(self.state),
            owner=self.owner,
            name=self.name,
            model=self.model,
            cluster=self.cluster,
            after=None if self.page_token is None else page_tokens.decode(self.question, self.page_token),
            limit=self.page_size + 1,
        )

    def next_token(self, value: float | str, id: str) -> str:
        return page_tokens.encode(self.question, Cursor(value, id))


class _TrialFilters(BaseModel):
    model_config = ConfigDict(extra="forbid")

    view: Literal["full", "brief"] = Field("full", description="Whole trials, or one line of numbers for each.")
    verdict: list[Verdict] = _any_of("trials that ended so")
    state: list[TrialState] = _any_of("trials in this state")
    origin: list[Origin] = _any_of("trials that were chosen so")
    failure: list[Cause] = _any_of("trials that failed for this cause")
    number: list[Whole] = _any_of("trials with this number")


# With a filter for each axis of a plan.
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
    )


class TrialQuery(_PlanFilters):
    sort: TrialSort = Field("number", description="With a leading -: the largest first. What lacks it comes last.")
    page_size: int = Field(100, ge=1, le=MAX_LISTED, description="Most entries on this page; 500 of whole trials.")
    page_token: Token | None = None

    @property
    def question(self) -> str:
        """What a page token is good for."""
        return f"trials {self.model_dump_json(exclude={'view', 'page_size', 'page_token'})}"

    @property
    def order(self) -> Order[TrialKey]:
        return Order(TrialKey(self.sort.removeprefix("-")), self.sort.startswith("-"))

    def wanted(self) -> TrialsWanted:
        """The page and one entry more, which tells whether there is a next one. Raises RequestValidationError."""
        if self.view == "full" and self.page_size > MAX_PER_PAGE:
            raise page_tokens.refused("page_size", self.page_size, f"must be at most {MAX_PER_PAGE} with view=full")
        return TrialsWanted(
            order=self.order,
            verdicts=tuple(self.verdict),
            states=tuple(self.state),
            origins=tuple(self.origin),
            failures=tuple(self.failure),
            numbers=tuple(self.number),
            plan={name: tuple(getattr(self, name)) for name in PLAN_FIELDS},
            after=None if self.page_token is None else self._cursor(self.page_token),
            limit=self.page_size + 1,
        )

    def next_token(self, value: float | None, number: int) -> str:
        if self.order.key is TrialKey.NUMBER:
            return str(number)
        return page_tokens.encode(self.question, Cursor(value, number))

    def _cursor(self, token: str) -> Cursor:
        by_number = self.order.key is TrialKey.NUMBER
        return page_tokens.decode_number(token) if by_number else page_tokens.decode(self.question, token)
