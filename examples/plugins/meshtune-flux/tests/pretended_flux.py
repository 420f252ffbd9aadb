"""A program that pretends to be Flux on this machine, of two nodes of four cores: it really runs what it is given.

Only what the plug-in asks is pretended, in the forms that flux-core 0.88 showed: `batch` reads the
script's directives and gives it to a keeper, which starts it in its turn, first come first served, as task 0 of an
instance of its own; `run` starts its tasks, and ends all when `job raise` says so; `cancel` sends SIGTERM and SIGHUP to
all of a job; `jobs --json` tells what became of it. Whether Flux does the same is shown by the tests under a real one.
"""

from __future__ import annotations

import sys
from pathlib import Path

_FLUX = """
import json, os, shlex, signal, subprocess, sys, time

program, *words = sys.argv[1:]
LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

def plain(number):
    text = ""
    while number:
        number, rest = divmod(number, 58)
        text = LETTERS[rest] + text
    return "f" + text

def number_of(id):
    number = 0
    for letter in id[1:]:
        number = 58 * number + LETTERS.index(letter)
    return number

def leave(folder, name, text=""):
    with open(os.path.join(folder, ".draft"), "w") as file:
        file.write(text)
    os.rename(os.path.join(folder, ".draft"), os.path.join(folder, name))

def read(id, name):
    try:
        return open(os.path.join(JOBS, id, name)).read()
    except OSError:
        return None

def known():
    return sorted(os.listdir(JOBS), key=number_of)

def option(words, name, otherwise=""):
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), otherwise)

def batch():
    head = [line[7:] for line in open(words[0]) if line.startswith("#flux: ")]
    given = [word for line in head for word in shlex.split(line)]
    nodes = int(option(given, "nodes"))
    tasks = int(option(given, "nslots", "0"))
    number = (len(known()) + 1) << 24
    job = {"given": given, "nodes": nodes, "slots": tasks, "at": time.time()}
    draft = os.path.join(HOME, "draft")
    os.mkdir(draft)
    leave(draft, "job", json.dumps(job))
    leave(draft, "script", open(words[0]).read())
    os.rename(draft, os.path.join(JOBS, plain(number)))
    carried = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    nothing = subprocess.DEVNULL
    subprocess.Popen([sys.argv[0], "keeper", plain(number)], stdin=nothing, stdout=nothing, stderr=nothing,
                     env=carried, cwd="/", start_new_session=True)
    print(plain(number))

def fits(id):
    # As sched-simple does: in the order of arrival, node by node.
    wanted = json.loads(read(id, "job"))
    free = [CORES, CORES]
    for other in known():
        if other == id:
            break
        if read(other, "ended") is None:
            place = read(other, "started")
            if place is None:
                return None
            for node, cores in json.loads(place):
                free[node] -= cores
    share = wanted["slots"] // wanted["nodes"]
    one = "host:node1" in " ".join(wanted["given"])
    nodes = [node for node in range(1 if one else 2) if free[node] >= share][: wanted["nodes"]]
    return [[node, share] for node in nodes] if len(nodes) == wanted["nodes"] else None

def keeper():
    id = words[0]
    folder = os.path.join(JOBS, id)
    while (place := fits(id)) is None:
        if read(id, "cancelled") is not None:
            leave(folder, "ended", json.dumps([time.time(), None]))
            return
        time.sleep(0.02)
    leave(folder, "started", json.dumps(place))
    given = json.loads(read(id, "job"))["given"]
    environment = {**os.environ, "FLUX_ENCLOSING_ID": id, "PRETENDED_SIZE": str(len(place))}
    with open(option(given, "output"), "wb") as output:
        job = subprocess.Popen(["bash", os.path.join(folder, "script")], stdin=subprocess.DEVNULL, stdout=output,
                               stderr=output, cwd=option(given, "cwd"), env=environment, start_new_session=True)
    told = False
    while job.poll() is None:
        if read(id, "cancelled") is not None and not told:
            told = True
            for number in (signal.SIGTERM, signal.SIGHUP):
                for name in os.listdir("/proc"):
                    try:
                        if name.isdecimal() and os.getsid(int(name)) == job.pid:
                            os.kill(int(name), number)
                    except ProcessLookupError:
                        pass
                time.sleep(0.05)
        time.sleep(0.02)
    code = job.returncode
    leave(folder, "ended", json.dumps([time.time(), code if code >= 0 else 128 - code]))

def shown(id):
    job, place, end = json.loads(read(id, "job")), read(id, "started"), read(id, "ended")
    hosts = [f"node{node + 1}" for node, _ in json.loads(place)] if place else []
    answer = {"id": number_of(id), "jobid": id, "name": option(job["given"], "job-name"), "t_submit": job["at"],
              "urgency": 16, "priority": 16, "nnodes": job["nodes"], "dependencies": [], "annotations": {},
              "exception": {"occurred": False}, "state": "SCHED", "status": "SCHED"}
    if place:
        began = os.stat(os.path.join(JOBS, id, "started")).st_mtime
        answer |= {"state": "RUN", "status": "RUN", "t_run": began, "nodelist": ",".join(hosts)}
    if end:
        at, code = json.loads(end)
        result = "COMPLETED" if code == 0 else "FAILED"
        if read(id, "cancelled") is not None:
            result = "CANCELED"
            answer["exception"] = {"occurred": True, "severity": 0, "type": "cancel", "note": ""}
        answer |= {"state": "INACTIVE", "status": result, "result": result, "success": result == "COMPLETED",
                   "t_cleanup": at, "t_inactive": at, "returncode": -128 if code is None else code}
    return answer

def jobs():
    ids = [word for word in words if not word.startswith("-")]
    if ids:
        there = [id for id in ids if id in known()]
        for id in ids:
            if id not in there:
                print(f"JobID {id} unknown", file=sys.stderr)
        if len(ids) == 1:
            if not there:
                sys.exit(1)
            print(json.dumps(shown(there[0])))
            return
    else:
        name = option(words, "name")
        there = [id for id in known() if not name or shown(id)["name"] == name]
        there = [id for id in there if "-a" in words or shown(id)["state"] != "INACTIVE"]
    print(json.dumps({"jobs": [shown(id) for id in there]}))

def cancel():
    failed = False
    for id in known() if "--all" in words else words:
        told = "unknown job id" if id not in known() else "job is inactive" if read(id, "ended") else ""
        if told and "--all" not in words:
            print(f"flux-cancel: ERROR: {id}: {told}", file=sys.stderr)
            failed = True
        elif not told:
            leave(os.path.join(JOBS, id), "cancelled")
    sys.exit(failed)

def getattr_():
    print(os.environ["PRETENDED_SIZE"])

def job():
    if words[0] == "raise":
        os.kill(int(words[-2]), signal.SIGUSR1)
        return
    form, id = words[1].removeprefix("--to="), words[2]
    print(number_of(id) if form == "dec" else id)

def run():
    on_each, nodes = int(option(words, "tasks-per-node")), int(option(words, "nodes"))
    command = words[words.index("sh"):]
    # A group of its own, as Flux gives it, in the session by which `cancel` finds them here.
    ranks = []
    for rank in range(nodes * on_each):
        own = {"FLUX_TASK_RANK": rank, "FLUX_TASK_LOCAL_ID": rank % on_each, "FLUX_JOB_ID": os.getpid()}
        environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
        ranks.append(subprocess.Popen(command, process_group=0, env=environment))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda *_: end(ranks))
    sys.exit(max(rank.wait() for rank in ranks))

def end(ranks):
    # To the group that each task is: the shell and what it started.
    for rank in ranks:
        try:
            os.killpg(rank.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass

known_programs = {"batch": batch, "keeper": keeper, "jobs": jobs, "cancel": cancel, "getattr": getattr_, "job": job}
(known_programs | {"run": run})[program]()
"""


def write_programs(folder: Path, cores: int) -> Path:
    """The folder of a `flux` whose nodes hold so many processes each, for the front of PATH."""
    jobs, programs = folder / "jobs", folder / "bin"
    jobs.mkdir(parents=True)
    programs.mkdir()
    # -I: this interpreter's own library only, and quickly.
    head = f"#!{sys.executable} -IS\nHOME, JOBS, CORES = {str(folder)!r}, {str(jobs)!r}, {cores}\n"
    (programs / "flux").write_text(head + _FLUX)
    (programs / "flux").chmod(0o755)
    return programs
