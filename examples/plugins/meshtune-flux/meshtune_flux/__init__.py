"""Flux as a scheduler of meshtune: what the entry point of pyproject.toml names. It imports nothing of the rest, so a
mistake there is told to those who use it."""

from meshtune.runners.registry import Scheduler

FLUX = Scheduler(
    options="meshtune_flux.script:FluxOptions",
    runner="meshtune_flux.runner:create",
    script="meshtune_flux.script:render_script",
    words="a job script for flux batch that measures the setting again",
    script_file="job.flux",
    send="flux batch",
    question=("flux", "resource", "list", "--no-header"),
    allocation="FLUX_JOB_ID",
    # extra_lines may name files and programs, setup is shell.
    harmless=frozenset(
        {"queue", "bank", "requires", "cores_per_device", "gpus_per_device", "call_limit_s", "poll_s"},
    ),
)
