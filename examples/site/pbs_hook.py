"""PBS Pro's queuejob hook: a job sent with `qsub -v MESHTUNE_FOR=MODEL@CLUSTER` gets the best known plan as
MESHTUNE_... variables. Whatever goes wrong, the job goes as it came, with a line in the server's log.

It runs in the PBS server, which takes no other request meanwhile: hence the short time limit. A job's comment cannot
name the model as under Slurm, for users may not set it in PBS. Not tried on a real PBS Pro. Installation:
docs/how-to/site-hooks.md.

    qmgr -c "create hook meshtune event=queuejob"
    qmgr -c "set hook meshtune alarm=5"
    qmgr -c "import hook meshtune application/x-python default pbs_hook.py"
"""

import re
import subprocess

import pbs

# Lines NAME=VALUE: url, and cluster where MESHTUNE_FOR need not name it.
SITE = "/etc/meshtune/site.conf"
# Of root alone, mode 0600: `header = "Authorization: Bearer TOKEN"`, or empty.
TOKEN = "/etc/meshtune/curl.conf"
LIMIT_S = 2
MOST_BYTES = 10000

FOR = re.compile(r"([A-Za-z0-9_.-]{1,100})(?:@([A-Za-z0-9_.-]{1,100}))?")
URL = re.compile(r"https?://[A-Za-z0-9_.:/-]+")
LINE = re.compile(r"(MESHTUNE_[A-Z_]+)=([A-Za-z0-9_.:/-]+)")
CHUNK = re.compile(r"([0-9]{1,6})(?:[:+]|$)")


class NoAnswer(Exception):
    """There is no recommendation; the message says why."""


def site():
    with open(SITE, encoding="utf-8") as file:
        pairs = (line.partition("=") for line in file if "=" in line)
        return {name.strip(): value.strip() for name, _, value in pairs}


def count_nodes(select):
    """Nodes of a select statement whose chunks lie on nodes of their own: 2:ncpus=8+1:ncpus=4 are 3."""
    counts = [CHUNK.match(chunk) for chunk in select.split("+")]
    return sum(int(count[1]) if count else 1 for count in counts)


def ask(settings, wanted, select):
    """The variables by name. Raises NoAnswer, OSError, subprocess.SubprocessError."""
    found = FOR.fullmatch(wanted)
    if found is None:
        raise NoAnswer("MESHTUNE_FOR must be MODEL or MODEL@CLUSTER")
    cluster = found[2] or settings.get("cluster", "")
    if FOR.fullmatch(cluster) is None or "@" in cluster:
        raise NoAnswer("MESHTUNE_FOR must name the cluster: MODEL@CLUSTER")
    url = settings.get("url", "")
    if URL.fullmatch(url) is None:
        raise NoAnswer(f"{SITE} names no url")
    query = f"model={found[1]}&cluster={cluster}&nodes={count_nodes(select)}&format=env"
    # The token stays out of the command line, where everybody sees it.
    limits = ["-m", str(LIMIT_S), "--max-filesize", str(MOST_BYTES), "--noproxy", "*"]
    done = subprocess.run(
        ["curl", "-q", "-sf", *limits, "--config", TOKEN, f"{url}/v1/recommendations?{query}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S + 1,
        check=False,
    )
    if done.returncode != 0:
        raise NoAnswer(f"{url} gave no answer within {LIMIT_S} s: curl's exit status {done.returncode}")
    lines = [LINE.fullmatch(line) for line in done.stdout[:MOST_BYTES].decode("ascii", "replace").splitlines()]
    if not lines or None in lines:
        raise NoAnswer(f"{url} gave an answer that is not lines of MESHTUNE_NAME=value")
    return {line[1]: line[2] for line in lines}


def recommend(job):
    """Set the variables one by one: PBS takes no new Variable_List."""
    variables = job.Variable_List or {}
    wanted = variables.get("MESHTUNE_FOR")
    if wanted is None:
        return
    found = ask(site(), str(wanted), str(job.Resource_List["select"] or "1"))
    for name, value in found.items():
        variables[name] = value
    pbs.logmsg(pbs.LOG_DEBUG, f"meshtune: {' '.join(f'{name}={value}' for name, value in found.items())}")


# PBS refuses a job whose hook raises.
try:
    recommend(pbs.event().job)
except Exception as error:
    pbs.logmsg(pbs.LOG_WARNING, f"meshtune: no recommendation, the job goes with its own defaults: {error}")
pbs.event().accept()
