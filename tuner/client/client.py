"""The client of a service: `Client` for blocking code, `AsyncClient` for asyncio; the same calls.

    with Client("https://meshtune.example.org", token) as client:
        campaign = client.create("spec.yaml")
        for event in campaign.follow():
            print(event.kind, event.data)
        print(campaign.best().recommendation.reason)

Answers are the values of meshtune itself: what the REST API serializes is read back into the dataclass that it was. A
service that is away for a while, or says that it is busy, is asked again; nothing is done twice."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from typing_extensions import Unpack

from meshtune.runners.untrusted_text import SLOW_LIMITS, read_file
from meshtune.search_spaces.plan import Plan
from meshtune.tuner.access.tokens import TOKEN_FILE, WhoamiView, own_token
from meshtune.tuner.campaign.campaign import CampaignState
from meshtune.tuner.client.campaign import AsyncCampaign, Campaign, fields_of
from meshtune.tuner.client.errors import ServiceError
from meshtune.tuner.client.requests import Calls, Steps, get, place, post
from meshtune.tuner.client.transport import AsyncLink, Awaiting, Blocking, BlockingLink, step
from meshtune.tuner.prediction.fit import FitAnswer
from meshtune.tuner.prediction.projection import Projection
from meshtune.tuner.prediction.quote import Explanation, Quote
from meshtune.tuner.results.comparison import Comparison
from meshtune.tuner.results.known_best import BestKnown, LaunchQuestion
from meshtune.tuner.service.views.campaigns import CampaignBrief, CampaignBriefPage, CampaignPage, CampaignView
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.import_script import ImportedSpec
from meshtune.tuner.specs.named_files import with_local_files

URL_VARIABLE = "MESHTUNE_SERVER"
DEFAULT_URL = "http://127.0.0.1:8000"
MAX_PAGE = 500
Handle = TypeVar("Handle")
Spec = Mapping[str, Any] | str | Path


class CampaignFilters(TypedDict, total=False):
    """Of lists of campaigns. Times are from `after` on, until `before`."""

    states: Sequence[CampaignState | str]
    owner: str | None
    project: str | None
    name: str
    model: str | None
    cluster: str | None
    tag: str
    created_after: datetime | str | None
    created_before: datetime | str | None
    updated_after: datetime | str | None
    updated_before: datetime | str | None
    min_devices: int | None
    max_devices: int | None
    sort: str


class ClientCalls(Calls, Generic[Handle]):
    """Methods raise ServiceError."""

    _handle: type[Handle]
    _kind: type[BlockingLink | AsyncLink]

    def __init__(self, url: str = "", token: str = "", *, patience_s: float = 60.0) -> None:
        address = (url or os.environ.get(URL_VARIABLE, "") or DEFAULT_URL).rstrip("/")
        if not address.startswith(("http://", "https://")):
            raise ServiceError(f"the service's address must begin with http:// or https://, not {address!r}")
        try:
            secret = token or own_token()
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ServiceError(f"{TOKEN_FILE}: {os.environ[TOKEN_FILE]}: {why}") from None
        self._link = self._kind(address, {"Authorization": f"Bearer {secret}"} if secret else {}, patience_s)

    def _of(self, view: CampaignView) -> Handle:
        return self._handle(self._link, view)  # type: ignore[call-arg]  # both handles are made so

    @step
    def campaigns(self, *, limit: int | None = None, **filters: Unpack[CampaignFilters]) -> Steps[list[Handle]]:
        """The campaigns that the token may read, the newest first unless `sort` says otherwise. name: a part of it.
        limit: so many at the most; None: all."""
        path, query = place("campaigns"), _query_of(filters)
        views = yield from self._paged(path, CampaignPage, lambda page: page.campaigns, query, limit, MAX_PAGE)
        return [self._of(view) for view in views]

    @step
    def brief(self, *, limit: int | None = None, **filters: Unpack[CampaignFilters]) -> Steps[list[CampaignBrief]]:
        """As `campaigns`, a line of each, which is a tenth of the bytes."""
        path, query = place("campaigns"), {**_query_of(filters), "view": "brief"}
        return (yield from self._paged(path, CampaignBriefPage, lambda page: page.campaigns, query, limit, MAX_PAGE))

    @step
    def campaign(self, id: str) -> Steps[Handle]:
        """The campaign of this id. Raises NotFound."""
        return self._of((yield from self._ask(get(place("campaigns", id), CampaignView))))

    @step
    def create(self, spec: Spec, *, key: str = "") -> Steps[Handle]:
        """Start a campaign. spec: a document, the path of a file, or a text in YAML, which is kept as it is written.

        key: a name for this request; within 24 h the same key with the same spec starts nothing again and gives the
        campaign that it started before. By default each call has one of its own, for its own tries."""
        return self._of((yield from self._ask(post(place("campaigns"), CampaignView, body_of(spec), key=key))))

    @step
    def estimate(self, spec: Spec, *, to_run: bool = False) -> Steps[Quote]:
        """What a campaign of this spec would meet and cost, predicted; nothing is started. to_run: its runner is
        checked as by `create`, for which the token must allow to launch."""
        body = body_of(spec)
        if to_run:
            return (yield from self._ask(post(place("campaigns"), Quote, body, {"dry_run": True})))
        return (yield from self._ask(post(place("estimates"), Quote, body)))

    @step
    def project(self, spec: Spec, *, nodes: Sequence[int] = (), plan: str = "") -> Steps[Projection]:
        """As `projection` of a campaign, before there is one."""
        body = {"spec": document_of(spec), "nodes": nodes, "plan": plan}
        return (yield from self._ask(post(place("projections"), Projection, body)))

    @step
    def import_script(self, script: str, /, **words: Any) -> Steps[ImportedSpec]:
        """The spec that a launch script, a command line or a configuration comes to. words: others of SentScript: name,
        files (the texts that it reads, by name), cluster, set (the variables that it finds) and start."""
        return (yield from self._ask(post(place("imports"), ImportedSpec, {"script": script, **words})))

    @step
    def fit(self, model: str = "", *, on: str, words: Mapping[str, Any] | None = None) -> Steps[FitAnswer]:
        """Whether a training fits, how fast it is, and what to change; without a model the largest that fits. words:
        others of FitWords, such as seq, method and program."""
        return (yield from self._ask(post(place("fit"), FitAnswer, {**(words or {}), "model": model, "on": on})))

    @step
    def why(self, spec: Spec, plan: Plan | Mapping[str, Any] | str) -> Steps[Explanation]:
        """Why a plan is not legal for a spec, or not its best. Of what a mapping leaves out, dp and grad_accum_steps
        follow; the rest is as by default."""
        body = {"spec": document_of(spec), "plan": fields_of(plan)}
        return (yield from self._ask(post(place("spaces", "why"), Explanation, body)))

    @step
    def compare(self, ids: Sequence[str]) -> Steps[Comparison]:
        """Campaigns side by side, 2 to 20: what each found, how it scales, and what keeps them from being compared."""
        return (yield from self._ask(get(place("comparison"), Comparison, {"campaign": ids})))

    @step
    def whoami(self) -> Steps[WhoamiView]:
        """What the token allows, and what of its quotas is used."""
        return (yield from self._ask(get(place("whoami"), WhoamiView)))

    @step
    def recommend(self, /, *, model: str, cluster: str, nodes: int, **words: Any) -> Steps[BestKnown]:
        """The best known plan for a model on some nodes: measured, or projected and said to be. words: others of
        LaunchQuestion, such as software (versions by name). Raises NotFound where nothing near was measured."""
        question = LaunchQuestion(model=model, cluster=cluster, nodes=nodes, **words)
        software = ",".join(f"{name}={version}" for name, version in question.software.items())
        query = {**asdict(question), "software": software or None}
        return (yield from self._ask(get(place("recommendations"), BestKnown, query)))


class Client(ClientCalls[Campaign], Blocking, AbstractContextManager["Client"]):
    """A service. url: default MESHTUNE_SERVER, else a service on this machine. token: default MESHTUNE_TOKEN, else what
    the file holds that MESHTUNE_TOKEN_FILE names. patience_s: for how long a call tries while the service is away."""

    _handle, _kind = Campaign, BlockingLink

    def close(self) -> None:
        self._link.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient(ClientCalls[AsyncCampaign], Awaiting, AbstractAsyncContextManager["AsyncClient"]):
    """As `Client`, for asyncio: its calls are awaited."""

    _handle, _kind = AsyncCampaign, AsyncLink

    async def close(self) -> None:
        await self._link.close()

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _query_of(filters: CampaignFilters) -> dict[str, object]:
    return {"state" if name == "states" else name: value for name, value in filters.items()}


def body_of(spec: Mapping[str, Any] | str | Path) -> Mapping[str, Any] | str:
    """A spec as it is sent: as its text, which the service keeps with its comments, wherever the text stands alone.
    spec: a document, a text in YAML, or a file: a Path, or a text of one line that ends in .yaml, .yml or .json.
    Files that it names beside itself are read into it. Raises OSError, UnreadableText, InvalidSpec and InvalidValue."""
    if isinstance(spec, Mapping):
        return spec
    if isinstance(spec, str) and ("\n" in spec or not spec.endswith((".yaml", ".yml", ".json"))):
        return spec
    path = Path(spec)
    text = read_file(path, SLOW_LIMITS.max_bytes, regular=False)
    document = parse_yaml(text)
    if not isinstance(document, dict):
        return text
    whole = with_local_files(document, path.parent)
    return text if whole is document else whole


def document_of(spec: Mapping[str, Any] | str | Path) -> Any:
    """The same as a document. Raises as `body_of`."""
    body = body_of(spec)
    return parse_yaml(body) if isinstance(body, str) else body
