"""Records a home: `python record_database.py FOLDER`, what real campaigns left in it.

Run with the meshtune of commit 5fdd07bf, the last one whose newest schema is 0100, it made tests/store/schema_0100. The
service, its runners and its commands are real: simulated campaigns, a user's script on the local runner, programs that
ask and tell. The service is killed at the end, so that its lease is there. Later runs would record another schema.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import toy
import yaml
from recorded_home import PLACE, RECORDED, dump
from service_lab import ServiceLab
from service_process import meshtune
from slurm_lab import SlurmLab
from specs import tiny

from meshtune.tuner.campaign.campaign import Home
from meshtune.tuner.store import Store

# Ends in as many ways as a job can, by its plan; a lost one is measured when it is repeated.
SCRIPT = """
import os, sys
from pathlib import Path
from meshtune.runners.base import Cause
from meshtune.runners.hardware import HardwareKind
from meshtune.runners.outcome import Measurement, Outcome, Verdict, write_result
from meshtune.runners.step_breakdown import Profile
size, threads, folder = int(sys.argv[1]), os.environ["OMP_NUM_THREADS"], Path.cwd()
measured = Measurement(
    step_times_s=tuple(0.5 / size * (1 + 0.01 * (step % 3)) for step in range(6)), warmup_times_s=(2.0, 0.6),
    tokens_per_step=128, devices=1, model_flops_per_token=1e6 / 3, peak_flops_per_device=5e10,
    first_losses=(5.5, 5.25), peak_memory_bytes=(2**33 + size,), peak_held_bytes=(2**34 + size,),
    software={"torch": "2.13"}, attention_kernels=("flash", "math"), knobs={"threads": int(threads)}, compile_s=12.5,
    hardware=(HardwareKind(device="H100", memory_bytes=2**36, clock_mhz=1980, driver="550.1", nodes=("node1",)),),
    profile=Profile(step_time_s=0.5, parts_s=({"compute": 0.4, "dp": 0.1},), waiting_s=({"dp": 0.01},),
                    own_times_s=((0.1, 0.11, 0.12),), stages=(0,), serialised=True),
)
if size == 1:
    outcome = Outcome(verdict=Verdict.OK, measurement=measured)
elif size == 2 and threads == "2":
    outcome = Outcome(verdict=Verdict.CRASHED, cause=Cause.HANG, reason="NaN: \\u00fcber", failed_rank=0,
                      phase="backward", log_tail="step 1\\nBoom \\U0001f4a5")
elif size == 2:
    outcome = Outcome(verdict=Verdict.PRUNED, partial=measured, reason="slower than the incumbent")
elif size == 4:
    outcome = Outcome(verdict=Verdict.OOM, reason="CUDA out of memory", failed_rank=0, phase="forward")
elif folder.name.endswith("-a1"):
    outcome = Outcome(verdict=Verdict.LOST, cause=Cause.NODE_FAULT, reason="the node went away")
else:
    outcome = Outcome(verdict=Verdict.OK, measurement=measured)
write_result(folder, outcome)
"""
REPORT = "from meshtune.runners.report import report\nreport([0.1] * 15)\n"
UNEVEN = {"pp": [2], "first_stage_less_layers": [0, 1], "last_stage_less_layers": [0, 1], "vpp": [1]}
PLAN = {"tp": 2, "pp": 1, "micro_batch_size": 1, "zero_stage": 0}


def record(folder: Path) -> None:
    script = folder / "rich.py"
    script.write_text(SCRIPT)
    with ServiceLab(folder) as service:
        secrets: dict[str, str] = {}
        for name, *options in (
            ("ann", "--scope", "read", "--scope", "launch", "--project", "llm", "--trials", "500", "--campaigns", "9"),
            ("bob", "--scope", "read:all", "--device-hours", "2.5", "--expires", "never"),
            ("eve", "--scope", "admin"),
        ):
            secrets[name] = _meshtune(service, "token", "create", name, *options).strip()
        _meshtune(service, "token", "revoke", "eve")
        (service.home / "limits.yaml").write_text("devices: 1000\n")
        done = service.completed(yaml.safe_dump(toy.SPEC | {"name": "toy", "confirm": 1}))
        service.call("PATCH", f"/v1/campaigns/{done}", {"tags": ["nightly", "best"], "notes": "of 0.1.0\n"})
        service.call("POST", f"/v1/campaigns/{done}/trials/0:rerun")
        service.wait_state(done, "completed")
        faulty = toy.SPEC | {"name": "faults", "runner": {"kind": "simulated", "seed": 3, "fault_rate": 0.4}}
        service.completed(
            faulty | {"trial": {"time_limit_s": 21600, "racing": True}, "search": "physics", "space": UNEVEN}
        )
        own = {"kind": "command", "command": ["{python}", str(script), "{micro_batch_size}", "{grad_accum_steps}"]}
        knobs = {"threads": {"values": [1, 2], "env": "OMP_NUM_THREADS"}}
        service.completed(tiny(name="script", workload=own, knobs=knobs, budget={"trials": 8}))
        with SlurmLab(nodes=2, cpus=2) as slurm:
            _lose_a_node(service, slurm, folder)
        broken = {
            "kind": "command",
            "command": ["{python}", "-c", "exit('boom')", "{micro_batch_size}", "{grad_accum_steps}"],
        }
        failed = service.call("POST", "/v1/campaigns", tiny(name="broken", workload=broken))["id"]
        service.wait_state(failed, "failed", "completed")
        slow = toy.SPEC | {"runner": {"kind": "simulated", "seed": 1, "seconds_per_trial": 1.0, "slots": 1}}
        for name, verb, state in (("stopped", "cancel", "cancelled"), ("resting", "pause", "paused")):
            id = service.call("POST", "/v1/campaigns", slow | {"name": name}, **{"idempotency-key": name})["id"]
            service.wait(lambda: _states(service, id).count("done") >= 2, 60)  # noqa: B023
            service.call("POST", f"/v1/campaigns/{id}:{verb}")
            service.wait_state(id, state)
        service.call("POST", f"/v1/campaigns/{id}/trials", {"plan": PLAN})
        limit = {"trial": {"time_limit_s": 10**9}, "parallel": 3}
        asked = tiny(name="asked", runner="external", budget={"trials": 6}, project="llm", **limit)
        id = service.call("POST", "/v1/campaigns", asked, authorization=f"Bearer {secrets['ann']}")["id"]
        for steps in ([0.2, 0.21, 0.2], []):
            (given,) = service.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 20})["suggestions"]
            told = {"step_times_s": steps, "software": {"torch": "2.13"}} if steps else {"verdict": "oom"}
            service.call("POST", f"/v1/campaigns/{id}/trials/{given['trial']}:complete", told)
        service.wait(lambda: _states(service, id).count("done") == 2, 60)
        service.call("POST", f"/v1/campaigns/{id}:suggest", {"wait_s": 20}, **{"idempotency-key": "claim"})
        (folder / "spec.yaml").write_text(yaml.safe_dump(toy.SPEC))
        _meshtune(service, "calibrate", str(folder / "spec.yaml"), "--trials", "4")
        service.wait(lambda: "running" in _states(service, id), 60)
        gone = service.completed(toy.SPEC | {"name": "gone", "budget": {"trials": 1}})
        time.sleep(1.0)
        service.call("DELETE", f"/v1/campaigns/{gone}")
        service.kill()
    place = Home(service.home)
    with Store.open(place.database_url) as store:
        for campaign in store.campaigns(limit=99):
            table = ("export-data", campaign.id, "-o", str(RECORDED / f"{campaign.id.rpartition('-')[0]}.csv"))
            _meshtune(service, *table)
    host = socket.gethostname()
    words = {str(folder): PLACE, sys.prefix: "/usr", f'"{host}:': '"node1:'}
    words |= {f"{quote}{host}{quote}": f"{quote}node1{quote}" for quote in ('"', '\\"')}
    dump(service.home, words)


def _lose_a_node(service: ServiceLab, slurm: SlurmLab, folder: Path) -> None:
    """A campaign on a real Slurm, whose second trial is repeated on the node that lives."""
    script, held = folder / "report.py", folder / "held"
    script.write_text(f"import pathlib, time\nwhile pathlib.Path({str(held)!r}).exists(): time.sleep(0.1)\n{REPORT}")
    held.touch()
    os.environ.update(slurm.environment)
    own = {"kind": "command", "command": ["{python}", str(script), "{micro_batch_size}", "{grad_accum_steps}"]}
    site = {"kind": "slurm", "poll_s": 0.5, "cpus_per_device": 1}
    service.kill(signal.SIGTERM)
    service.start()
    id = service.call(
        "POST", "/v1/campaigns", tiny(name="nodes", workload=own, runner=site, budget={"trials": 2}, search="physics")
    )["id"]
    service.wait(lambda: "running" in _states(service, id), 60)
    node = slurm.run("squeue", "-h", "-o", "%N").strip()
    slurm.kill_node(node)
    slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=dead")
    held.unlink()
    service.wait_state(id, "completed")


def _meshtune(service: ServiceLab, *words: str) -> str:
    return subprocess.run(
        meshtune(*words, "--home", str(service.home)), check=True, capture_output=True, text=True, cwd=service.home
    ).stdout


def _states(service: ServiceLab, id: str) -> list[str]:
    return [trial["state"] for trial in service.call("GET", f"/v1/campaigns/{id}/trials")["trials"]]


if __name__ == "__main__":
    record(Path(sys.argv[1]).resolve())
