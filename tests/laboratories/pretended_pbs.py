"""Programs that pretend to be PBS Pro's and an MPI launcher on this machine: they really run what they are given.

Only what a job script meets is pretended. qsub gives it to a keeper of its own, which starts it in its turn, first come
first served, without the submitter's environment; qdel has it sent SIGTERM; qstat tells its state in the form of PBS;
mpiexec starts ranks and ends all with the first that fails. Whether the real ones do the same is not shown by this.
"""

from __future__ import annotations

import sys
from pathlib import Path

_QSUB = """
import os, re, subprocess, sys
number = len(os.listdir(JOBS)) + 1
id, folder = f"{number}.pretended", os.path.join(JOBS, f"{number}.pretended")
launched = re.search(r"mpiexec -n ([0-9]+)", open(sys.argv[1]).read())
draft = os.path.join(HOME, "draft")
os.mkdir(draft)
open(os.path.join(draft, "size"), "w").write(launched[1] if launched else "1")
os.rename(draft, folder)
nothing = subprocess.DEVNULL
subprocess.Popen([os.path.join(HOME, "bin", "keeper"), folder, sys.argv[1]], stdin=nothing, stdout=nothing,
                 stderr=nothing, env={"PATH": "/usr/bin:/bin"}, cwd="/", start_new_session=True)
print(id)
"""
_KEEPER = """
import os, signal, subprocess, sys, time
folder, script = sys.argv[1:]
me = int(os.path.basename(folder).split(".")[0])

def has(number, name):
    return os.path.exists(os.path.join(JOBS, f"{number}.pretended", name))

def size(number):
    return int(open(os.path.join(JOBS, f"{number}.pretended", "size")).read())

def my_turn():
    before = [number for number in range(1, me) if not has(number, "ended")]
    running = [number for number in before if has(number, "started")]
    return running == before and sum(map(size, [*running, me])) <= SLOTS

def leave(name, text=""):
    with open(os.path.join(folder, ".draft"), "w") as file:
        file.write(text)
    os.rename(os.path.join(folder, ".draft"), os.path.join(folder, name))

while not my_turn():
    if has(me, "deleted"):
        leave("ended")
        sys.exit()
    time.sleep(0.02)
leave("started")
environment = {"HOME": "/", "PATH": "/usr/bin:/bin", "PBS_O_HOST": "login1"}
environment |= {"PBS_JOBID": f"{me}.pretended", "PBS_NODEFILE": os.path.join(HOME, "nodes")}
with open(os.path.join(folder, "output"), "wb") as output:
    job = subprocess.Popen(["bash", script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
                           env=environment, start_new_session=True)
told = False
while job.poll() is None:
    if has(me, "deleted") and not told:
        told = True
        for name in os.listdir("/proc"):
            try:
                if name.isdecimal() and os.getsid(int(name)) == job.pid:
                    os.kill(int(name), signal.SIGTERM)
            except ProcessLookupError:
                pass
    time.sleep(0.02)
leave("ended", str(job.returncode if job.returncode >= 0 else 256 - job.returncode))
"""
_QSTAT = """
import json, os, sys, time
jobs = {}
for id in sys.argv[sys.argv.index("json") + 1:]:
    folder = os.path.join(JOBS, id)
    if not os.path.isdir(folder):
        continue
    jobs[id] = job = {"job_state": "Q", "substate": 10}
    if os.path.exists(os.path.join(folder, "started")):
        began = time.ctime(os.stat(os.path.join(folder, "started")).st_mtime)
        job |= {"job_state": "R", "substate": 42, "exec_host": "node1/0", "stime": began}
    if os.path.exists(os.path.join(folder, "ended")):
        code = open(os.path.join(folder, "ended")).read()
        job |= {"job_state": "F", "substate": 92 if code == "0" else 93, "mtime": time.ctime()}
        job |= {"Exit_status": int(code)} if code else {}
        job |= {"substate": 91} if os.path.exists(os.path.join(folder, "deleted")) else {}
print(json.dumps({"timestamp": 1, **({"Jobs": jobs} if jobs else {})}))
if not jobs:
    sys.exit("qstat: Unknown Job Id")
"""
_QDEL = """
import os, sys
for id in sys.argv[1:]:
    if os.path.exists(os.path.join(JOBS, id, "ended")):
        sys.exit(f"qdel: Job has finished {id}")
    open(os.path.join(JOBS, id, "deleted"), "w").close()
"""
_MPIEXEC = """
import os, signal, subprocess, sys, time
arguments = sys.argv[1:]
size = 1
while arguments[0].startswith("-"):
    option = arguments.pop(0)
    value = arguments.pop(0) if option in ("-n", "--ppn") else ""
    size = int(value) if option == "-n" else size
ranks = [subprocess.Popen(arguments, env={**os.environ, "PMI_RANK": str(rank)}) for rank in range(size)]
signal.signal(signal.SIGTERM, lambda *_: [rank.terminate() for rank in ranks])
while True:
    codes = [rank.poll() for rank in ranks]
    failed = [code for code in codes if code]
    if failed:
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait()
        sys.exit(max(failed))
    if None not in codes:
        sys.exit(0)
    time.sleep(0.01)
"""
_PROGRAMS = {"qsub": _QSUB, "qstat": _QSTAT, "qdel": _QDEL, "mpiexec": _MPIEXEC, "keeper": _KEEPER}


class PretendedPbs:
    """One PBS that holds so many processes at once, in a folder. programs: a folder for the front of PATH."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.jobs, self.programs = folder / "jobs", folder / "bin"
        for made in (folder, self.jobs, self.programs):
            made.mkdir()
        (folder / "nodes").write_text("127.0.0.1\n")
        # -I: this interpreter's own library only, and quickly.
        head = f"#!{sys.executable} -IS\nHOME, JOBS, SLOTS = {str(folder)!r}, {str(self.jobs)!r}, {slots}\n"
        for name, body in _PROGRAMS.items():
            (self.programs / name).write_text(head + body)
            (self.programs / name).chmod(0o755)

    def delete_all(self) -> None:
        for job in self.jobs.iterdir():
            (job / "deleted").touch()

    def idle(self) -> bool:
        return all((job / "ended").exists() for job in self.jobs.iterdir())
