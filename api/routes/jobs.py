"""The routes to what a trial ran as: its job's files, measured plans in the words of other programs, and the result
files of jobs that run elsewhere.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.concurrency import run_in_threadpool

from meshtune.api.dependencies import ID_PATTERN, CampaignId, ServiceHandle, TrialNumber, content_of, reads
from meshtune.api.errors import InvalidQuery, Unanswerable
from meshtune.api.openapi import problems
from meshtune.api.routes.records import attachment
from meshtune.runners.outcome import ResultMalformed
from meshtune.search_spaces.checks import InvalidValue, Problem, problems_as, raising
from meshtune.tuner.campaign.spec import job_of
from meshtune.tuner.campaign.units import measured_word
from meshtune.tuner.results.export import FORMATS, Export, ExportView, choose, export_of, exported
from meshtune.tuner.results.handover import README, pack, readme
from meshtune.tuner.results.views import view_of
from meshtune.tuner.service.job_files import MAX_BYTES
from meshtune.tuner.service.service import Service
from meshtune.tuner.service.views.trials import JobView
from meshtune.tuner.specs.document import InvalidSpec, parse_options

router = APIRouter(prefix="/v1", responses=problems(409), tags=["jobs"], dependencies=[reads])
reports = APIRouter(prefix="/v1", responses=problems(413), tags=["reports"])
_bearer = HTTPBearer(
    scheme_name="job",
    description="The token in the job's own folder: it opens this one job's report, until its time is over.",
    auto_error=False,
)
_EXAMPLES: dict[str, Any] = {
    "oom": {
        "summary": "A job that ran out of memory",
        "value": {"version": 1, "verdict": "oom", "reason": "rank 0 is out of memory", "failed_rank": 0},
    }
}
JobName = Annotated[str, Path(pattern=ID_PATTERN, max_length=200)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
_FORMAT = f"^({'|'.join(FORMATS)})$"
Format = Annotated[str, Path(pattern=_FORMAT, examples=["slurm"])]
FormatQuery = Annotated[str, Query(pattern=_FORMAT, examples=["slurm"])]
Selector = Annotated[
    str,
    Query(
        description="`recommended`, `fastest-once`, `fastest-confirmed`, `best`, or a trial's number.",
        pattern=r"^(recommended|fastest-once|fastest-confirmed|best|\d{1,9})$",
    ),
]
ARCHIVE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/gzip": {"schema": {"type": "string", "format": "binary"}}}}
}
Options = Annotated[
    list[Annotated[str, Query(max_length=1000)]] | None,
    Query(
        description="`name=value` for the format's scheduler or program; the value as YAML.",
        max_length=50,
        examples=[["partition=gpu"]],
    ),
]
# Options that may name a file on the service's machine.
FILE_OPTIONS = ("config",)


@router.get("/campaigns/{campaign_id}/trials/{number}/job")
def get_job(campaign_id: CampaignId, number: TrialNumber, service: ServiceHandle) -> JobView:
    """The job of a trial's last attempt, as its runner got or will get it, but for the limit that racing set."""
    campaign, trial = service.campaign(campaign_id), service.trial(campaign_id, number)
    spec, name = campaign.spec, trial.last.job_name
    script = FORMATS.get(spec.runner.kind)
    with raising(Unanswerable, "", InvalidValue):
        job = job_of(spec, trial.plan, name, service.home.job(campaign_id, name).resolve())
        job = replace(job, avoid=trial.last.avoid, labels=campaign.job_labels(number))
        files = script.render(Export(spec=spec, plan=trial.plan, job=job)) if script else job.files
    text = files[script.script] if script else None
    return view_of(JobView, job, directory=str(job.directory), script=text, files=files)


@router.get("/campaigns/{campaign_id}/trials/{number}/exports/{format}")
def export_trial(
    campaign_id: CampaignId, number: TrialNumber, format: Format, service: ServiceHandle, option: Options = None
) -> ExportView:
    """A measured trial's plan in the words of a scheduler or training program. 409 for what these cannot express,
    and for a trial that was not measured."""
    service.trial(campaign_id, number)
    return _export(service, campaign_id, str(number), format, option)


@router.get("/campaigns/{campaign_id}/exports/{format}")
def export_campaign(
    campaign_id: CampaignId,
    format: Format,
    service: ServiceHandle,
    trial: Selector = "recommended",
    option: Options = None,
) -> ExportView:
    """The winner's plan in the words of a scheduler or training program."""
    return _export(service, campaign_id, trial, format, option)


@router.get("/campaigns/{campaign_id}/trials/{number}/archive", response_class=Response, responses=ARCHIVE)
def archive_trial(
    campaign_id: CampaignId,
    number: TrialNumber,
    service: ServiceHandle,
    format: FormatQuery = "job",
    option: Options = None,
) -> Response:
    """All files of an export in one folder, with a README. 409 as of the export."""
    return _archive(export_trial(campaign_id, number, format, service, option), campaign_id)


@router.get("/campaigns/{campaign_id}/archive", response_class=Response, responses=ARCHIVE)
def archive_campaign(
    campaign_id: CampaignId,
    service: ServiceHandle,
    format: FormatQuery = "job",
    trial: Selector = "recommended",
    option: Options = None,
) -> Response:
    """The winner's export in one folder, with a README."""
    return _archive(export_campaign(campaign_id, format, service, trial, option), campaign_id)


@reports.put(
    "/reports/{job_name}",
    status_code=204,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object"}, "examples": _EXAMPLES}},
        }
    },
)
async def report_result(request: Request, job_name: JobName, bearer: Bearer, service: ServiceHandle) -> Response:
    """Hand in the result file of a job in flight. Where its folder has one, that one stays."""
    service.reports.check(job_name, "" if bearer is None else bearer.credentials, time.time())
    content = await content_of(request, MAX_BYTES)
    with raising(ResultMalformed, "not UTF-8", UnicodeDecodeError):
        text = content.decode("utf-8")
    # NotFound for a job that is not in flight.
    campaign_id = await run_in_threadpool(service.access.campaign_in_flight, job_name)
    await run_in_threadpool(service.reports.keep, campaign_id, job_name, text)
    return Response(status_code=204)


def _export(service: Service, campaign_id: str, selector: str, format: str, option: list[str] | None) -> ExportView:
    """Raises InvalidQuery, also for an option that would have the service read a file."""
    with raising(lambda words: InvalidQuery([Problem("option", words)]), "", InvalidSpec):
        options = parse_options(option or [])
    if named := [name for name in FILE_OPTIONS if isinstance(options.get(name), str)]:
        raise InvalidQuery([Problem(f"option.{name}", "must be a mapping here, not a file's name") for name in named])
    campaign, trials = service.store.recorded(campaign_id)
    entry = choose(campaign, trials, selector)
    directory = service.home.export(entry.trial.last.job_name).resolve()
    with problems_as(InvalidQuery, "option"):
        return exported(export_of(campaign, entry, directory, options), format)


def _archive(view: ExportView, campaign_id: str) -> Response:
    folder = f"{campaign_id}-trial-{view.trial}-{view.format}"
    made = measured_word(view.simulated)
    title = f"{view.plan_key}: trial {view.trial} of {campaign_id}, {made}, as {view.format}"
    # A scheduler's script names the folder that it runs in.
    directory = view.directory if FORMATS[view.format].script else ""
    text = readme(title, view.command, view.note, view.handover, directory)
    return Response(
        pack(folder, {README: text, **view.files}),
        media_type="application/gzip",
        headers=attachment(f"{folder}.tar.gz"),
    )
