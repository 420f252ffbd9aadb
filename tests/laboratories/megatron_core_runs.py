"""Runs of a program on ranks that are forked when Megatron-Core is imported, which takes longer than a run of theirs:
`python megatron_core_runs.py PROGRAM`, with the ranks and arguments of one run in each line of standard input.

On CPUs, by the stand-in `cuda_on_cpu`. Prints what the ranks print; ends with 1 where one of them fails."""

from __future__ import annotations

import os
import runpy
import socket
import sys
import traceback

import cuda_on_cpu


def run(program: str, ranks: int, arguments: list[str]) -> bool:
    """Whether all ranks ended well."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os._exit(_rank(program, rank, arguments))
        children.append(child)
    return not any([os.waitpid(child, 0)[1] for child in children])


def _rank(program: str, rank: int, arguments: list[str]) -> int:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> bool:
    cuda_on_cpu.install()
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel  # noqa: F401

    runs = [line.split() for line in sys.stdin]
    return all([run(sys.argv[1], int(ranks), arguments) for ranks, *arguments in runs])


if __name__ == "__main__":
    sys.exit(not main())
