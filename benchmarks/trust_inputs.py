"""Documents and launch scripts with something wrong in them, given to the command line: `run --dry-run` and `import`.

What is started is the program's entry point, in this process: 12,000 interpreters would take hours to start."""

from __future__ import annotations

import copy
import io
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from traceback import format_exc
from typing import Any

import yaml
from odd_values import KEYS, ODD, places

from meshtune.tuner.cli.main import main

LIMIT_S = 5.0
EXAMPLES = Path(__file__).parents[1] / "examples"
# What a shell, and who reads it, may stumble over.
SHELL = (
    *("$", "${", "}", "$((", "))", "(", ")", '"', "'", "`", "\\", "#", ";", "&&", "|", "*", "~"),
    *("$HOME", "-1", "999999999999999999999"),
    *("\\\n", "\n", "<<E\n", "\0", "\x1b", "\u00e9"),
    *("A=$A$A\n", "if ", "fi\n", "for i in {1..99}; do ", "done\n", "case x in ", "esac\n", "f() {"),
    *("${A:-", "${A[@]}", "+=(", "eval ", "torchrun ", "srun bash -c '", "--num-layers ", "--fp16 "),
)


def mutated_spec(documents: list[Any], chance: random.Random) -> str:
    """A good spec with one to three things replaced, added or taken away, as YAML; one in four with broken text."""
    document = copy.deepcopy(chance.choice(documents))
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places(document))
        match chance.choice(["replace", "replace", "take", "add"]):
            case "replace":
                holder[key] = copy.deepcopy(chance.choice(ODD))
            case "take":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[chance.choice(KEYS)] = copy.deepcopy(chance.choice(ODD))
        if not places(document):
            break
    text: str = yaml.safe_dump(document, allow_unicode=True)
    return (
        text
        if chance.randrange(4)
        else mutated_text(text, chance, ("&a ", "*a", "<<: ", "- ", ": ", "[", "{", "\t", "!!python/name:os "))
    )


def mutated_text(text: str, chance: random.Random, fragments: tuple[str, ...]) -> str:
    """A text with one to five pieces cut out, doubled, moved, or put in from the fragments."""
    for _ in range(chance.randint(1, 5)):
        start = chance.randrange(len(text) + 1)
        end = min(len(text), start + chance.choice((1, 2, 8, 40, 200)))
        piece = text[start:end]
        match chance.randrange(4):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + piece * chance.choice((1, 2, 50)) + text[end:]
            case 2:
                place = chance.randrange(len(text) + 1)
                text = text[:place] + piece + text[place:]
            case 3:
                text = text[:start] + chance.choice(fragments) * chance.choice((1, 1, 1, 30)) + text[start:]
    return text


def _call(words: list[str]) -> tuple[str, float, str]:
    """What became of a command, its seconds, and what it printed."""
    printed, sys.argv = io.StringIO(), ["meshtune", *words]
    begun = time.monotonic()
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            main()
        end = "accepted"
    except SystemExit as error:
        end = {None: "accepted", 0: "accepted", 2: "refused"}.get(error.code, f"exit {error.code}")  # type: ignore[call-overload]
    except Exception:
        end = "traceback"
        printed.write(format_exc())
    return end, time.monotonic() - begun, printed.getvalue()


def attack(folder: Path, specs: int, scripts: int, seed: int) -> bool:
    """Print one row for each kind of input; True where no command raised, took too long or ended oddly."""
    chance = random.Random(seed)
    examples = [*sorted(EXAMPLES.glob("**/campaign.yaml")), *sorted(EXAMPLES.glob("*.yaml"))]
    documents = [yaml.safe_load(path.read_text()) for path in examples]
    texts = [path.read_text() for path in sorted(EXAMPLES.glob("**/launch.sh"))] + LAUNCHERS
    dry_run = ["run", "--dry-run", "--home", str(folder / "home")]
    sys.stdout.write(f"seed {seed}\n")
    found = _give(folder / "spec.yaml", specs, lambda: mutated_spec(documents, chance), dry_run)
    imported = ["import", "--cluster", "dgx-h100"]
    found += _give(folder / "launch.sh", scripts, lambda: mutated_text(chance.choice(texts), chance, SHELL), imported)
    return not found


def _give(path: Path, number: int, made: Callable[[], str], words: list[str]) -> int:
    """Write so many inputs to the file, one after the other, and give it to the command; how many findings there were.
    What made one is left beside the file."""
    ends, slowest_s, found = Counter[str](), 0.0, 0
    for index in range(number):
        path.write_text(made(), encoding="utf-8", errors="surrogatepass")
        end, seconds, printed = _call([words[0], str(path), *words[1:]])
        ends[end] += 1
        slowest_s = max(slowest_s, seconds)
        if end not in ("accepted", "refused") or seconds > LIMIT_S:
            found += 1
            sys.stdout.write(f"{path.name} {index}: {end} after {seconds:.1f} s\n{printed[-1500:]}\n")
            path.rename(path.with_name(f"finding-{index}-{path.name}"))
    told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    sys.stdout.write(f"{number} of {path.name}: {told}; the slowest {slowest_s:.1f} s; {found} findings\n")
    return found


# As people have them, beside those of examples/.
LAUNCHERS = [
    """#!/bin/bash
#SBATCH -N 2 --gpus-per-node=8 --time=00:30:00
set -euo pipefail
TP=${1:-4}; PP=$((16 / TP / 2))
ARGS="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
[ "$TP" -gt 1 ] && ARGS="$ARGS --sequence-parallel"
for extra in --bf16 --use-flash-attn; do ARGS+=" $extra"; done
cat > ds.json <<EOF
{"train_micro_batch_size_per_gpu": 2, "train_batch_size": 256, "zero_optimization": {"stage": 1}}
EOF
srun torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 pretrain_gpt.py \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --micro-batch-size 2 --global-batch-size 256 \\
    --vocab-size 50304 $ARGS --deepspeed --deepspeed_config ds.json
""",
    """export CONFIG=llama3_8b
NGPU=${NGPU:-8}
function launch() {
  torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d -m torchtitan.train --job.config_file ./${CONFIG}.toml "$@"
}
launch --training.seq_len 8192 --parallelism.tensor_parallel_degree 2
""",
    """deepspeed --num_gpus 8 train.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 \\
    --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64 --vocab-size 50304 --fp16
""",
]
