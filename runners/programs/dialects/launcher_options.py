"""What the options of a launcher come to in trials, which start their ranks by themselves: each is read, kept, named as
left out with the reason, or asked about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from meshtune.runners.programs.dialects.base import Remarks
from meshtune.runners.programs.dialects.bash.expansion import as_written

_READ = ""
_PLACE = "each trial has its own nodes, devices and meeting point"
_CARE = "meshtune keeps the logs of trials, and ends and repeats them"
_SIGHT = "each rank of a trial sees all devices of its node"
_WHOLE = "ranks of a trial have all variables of their job"
# Names without dashes in front, and with dashes between. torch/distributed/run.py, deepspeed/launcher/runner.py,
# composer/cli/launcher.py, srun(1), mpirun(1) of Open MPI 5, mpiexec of MPICH and of HPE's PALS.
_TABLE: Mapping[str, Mapping[str, str]] = {
    "torchrun": {
        _READ: "nnodes nproc-per-node m module",
        _PLACE: "rdzv-backend rdzv-endpoint rdzv-id rdzv-conf standalone node-rank master-addr master-port local-addr",
        _CARE: "role log-dir r redirects t tee local-ranks-filter max-restarts monitor-interval event-log-handler "
        "signals-to-handle start-method logs-specs duplicate-stdout-filters duplicate-stderr-filters",
    },
    "deepspeed": {
        _READ: "num-gpus num-nodes module",
        _PLACE: "H hostfile i include e exclude master-port master-addr node-rank launcher launcher-args ssh-port "
        "no-ssh no-ssh-check force-multi",
        _CARE: "enable-each-rank-log save-pid no-local-rank",
    },
    # Its other options are kept.
    "accelerate": {
        _READ: "num-processes num-machines m module",
        _PLACE: "machine-rank main-process-ip main-process-port rdzv-backend rdzv-conf same-network gpu-ids "
        "deepspeed-hostfile deepspeed-multinode-launcher",
        _CARE: "role tee log-dir max-restarts",
    },
    "composer": {
        _READ: "n nproc world-size m module-mode",
        _PLACE: "base-rank node-rank master-addr master-port",
        _CARE: "stdout stderr v verbose",
    },
    "srun": {
        _READ: "nodes ntasks ntasks-per-node tasks-per-node cpus-per-task cpus-per-gpu gpus gpus-per-node gres time "
        "job-name container-image container-mounts partition account qos constraint reservation",
        _PLACE: "nodelist exclude relative exact exclusive overlap jobid het-group pack-group hetjob packjob chdir "
        "immediate array begin deadline dependency hold time-min no-allocate ntasks-per-gpu container-workdir "
        "test-only",
        _CARE: "label unbuffered output error input open-mode kill-on-bad-exit no-kill wait disable-status threads pty "
        "quiet verbose signal mail-type mail-user requeue no-requeue parsable multi-prog preserve-env get-user-env",
        _SIGHT: "gpus-per-task",
        _WHOLE: "export",
    },
    # mpiexec too.
    "mpirun": {
        _READ: "n np ppn N npernode pernode perhost x env genv",
        _PLACE: "H host hosts f hostfile machinefile rankfile prefix wdir wd oversubscribe nooversubscribe",
        _CARE: "tag-output timestamp-output output report-bindings display-map display-allocation line-buffer label l "
        "q quiet v verbose allow-run-as-root",
        _WHOLE: "envall genvall envnone envlist genvlist",
    },
}
_REASONS = {
    tool: {name: reason for reason, names in rows.items() for name in names.split()} for tool, rows in _TABLE.items()
}
OF_SRUN = frozenset(_REASONS["srun"])
OF_ACCELERATE = frozenset(_REASONS["accelerate"])


def options_of(words: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option's name, as the table has it, and its words: `--name=value`, or all up to the next option."""
    starts = [at for at, word in enumerate(words) if word.startswith("-") and " " not in word]
    for at, end in zip(starts, [*starts[1:], len(words)], strict=False):
        name = words[at].partition("=")[0].lstrip("-").replace("_", "-")
        yield name, tuple(words[at:end])


def tell(remarks: Remarks, tool: str, options: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Name what trials start without: in a note with the reason, in a question where it may change what is measured.
    options: as `options_of` has them; of a tool that the table does not have, nothing is told."""
    told: dict[str, list[str]] = defaultdict(list)
    reasons = _REASONS.get(tool)
    for name, words in options if reasons else ():
        text, reason = as_written(" ".join(words)), (reasons or {}).get(name)
        if reason is None:
            remarks.ask("", f"{tool} has `{text}`, and trials start without it")
        elif reason:
            told[reason].append(text)
    for reason, texts in told.items():
        remarks.note(f"{tool} has {', '.join(texts)}, left out: {reason}")


def binding_of(words: Sequence[str]) -> list[str]:
    """What of mpirun's words says where ranks run, or how they meet: all that the table does not have."""
    return [word for name, option in options_of(words) if name not in _REASONS["mpirun"] for word in option]


def exported(words: Sequence[str]) -> dict[str, str]:
    """The variables that mpirun's words set: `-x NAME=VALUE`, `-genv NAME VALUE`."""
    found = {}
    for name, (_, *values) in options_of(words):
        if name in ("x", "env", "genv") and values:
            variable, joined, value = values[0].partition("=")
            if joined or len(values) > 1:
                found[variable] = value if joined else values[1]
    return found
