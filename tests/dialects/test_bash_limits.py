"""Any text at all is read as a launch script, or refused with its line, within a second."""

from __future__ import annotations

import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from dialect_cases import stored_for

from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.sources import read_source
from meshtune.tuner.specs.import_script import import_notes, render_spec, spec_document

pytestmark = pytest.mark.slow

GIVEN = stored_for(__name__)["given"]

FOLDER = TemporaryDirectory()
# On a busy machine; the worst takes less than a second on an idle one.
LIMIT_S = 3.0
START = "\ntorchrun x.py --num-layers 8 $A\n"
EXPANDED = "its variables make more than 500,000 characters and words of the script"
PASSING = "its variables make more than 20,000,000 characters and words of the script"
NESTED = "nested deeper than 50 levels"
NONE = "no line starts a Python program"
HANGS = {
    "a variable twice itself": ("A=ab\n" + "A=$A$A\n" * 60, f"line 18: {EXPANDED}"),
    "splits": ("A='x '\n" + "A=$A$A\n" * 15 + "B=($A)\n" * 5_000, PASSING),
    "copies of a list": ("A=(x)\n" + 'A=("${A[@]}" y)\n' * 2_800, PASSING),
    "jobs of submitters": ("python x " + "-- python x " * 3_000, ""),
    "scripts in scripts": ("bash -c 'bash -c \"bash -c x.py\\ y\"'\n" * 1_000, "more than 50,000 characters"),
    "empty words": ("A=('')\n" + 'A=("${A[@]}" "${A[@]}")\n' * 60, EXPANDED),
    "appended to itself": ("A=x\n" + "A+=$A\n" * 60, EXPANDED),
    "exported": ("A=xy\n" + "export A=$A$A\n" * 60, EXPANDED),
    "defaults": ("A=x\n" + "B=${C:-$A}${C:-$A}\nA=$B$B$A\n" * 40, EXPANDED),
    "the name of a file": ("A=x\n" + "cat > $A <<E\n$A$A\nE\nA=$A$A\n" * 40, EXPANDED),
    "a script in a word": ("run 'torchrun x.py --a 1; A=x;" + "A=$A$A;" * 60 + "'", EXPANDED),
    "scripts in words": (
        "A='torchrun x.py --a 1; torchrun x.py --a 1;'\n" + 'run "$A"\n' * 4_000,
        "more than 50,000 cha",
    ),
    "squares": ("X=9\n" + "X=$((X*X))\n" * 4_500, ""),
    "brackets in a sum": ("X=$((" + "(" * 20_000 + "1" + ")" * 20_000 + "))", ""),
    "signs in a sum": ("X=$((" + "-" * 45_000 + "1))", ""),
    "marks": ("A=" + "\1" * 49_000, "line 1: holds the control character 0x01"),
    "tests in tests": ("if [ a = a ]; then\n" * 2_400, f"line 50: its commands are {NESTED}"),
    "keywords in a row": ("if a; then " + "then " * 9_000, ""),
    "arrays in arrays": ("A=(" * 15_000, f"line 1: its brackets are {NESTED}"),
    "defaults in defaults": ("A=" + "${A:-" * 8_000 + "}" * 8_000, NESTED),
    "sums in sums": ("cat <<E > f\n" + "$((" * 16_000 + "\nE\n", NESTED),
    "commands": ("a\n" * 24_000, ""),
    "documents": ("cat <<E\nE\n" * 4_900, ""),
    "a document in an array": ("A=(x <<E)\nb\nE\n", ""),
    "lines of a document": ("cat <<E\n" + "x\n" * 24_000 + "E\n", ""),
    "quotes": ('A="' + '\\"' * 24_000 + '"', ""),
    "unending loops": ("while :; do A=$A$A; done; for i in {1..999999999}; do x; done; f() { f; }; f", ""),
    "words of a branch that is not followed": ("if unknown; then\n" + "a " * 9_000 + "\nfi\n", ""),
    "loops in loops": (
        "for i in {1..999}; do for j in {1..999}; do A=b; done; done\n",
        "line 1: the script's loops run more than 30,000 commands",
    ),
    "a loop of words": (
        "for i in {1..999}; do B='" + "x" * 40_000 + "'; run $B; done\n",
        "its variables make more than",
    ),
    "functions in functions": (
        "f0() { a; }\n" + "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; }}\n" for n in range(1, 20)) + "f19\n",
        "more than 30,000 commands",
    ),
    "a function in itself": ("f() { f; }; f\n", f"line 1: its commands are {NESTED}"),
    "branches in doubt": ("if a; then b=1; fi\n" * 1_200 + "".join(f"v{n}=1\n" for n in range(2_000)), ""),
    "variables and branches": ("".join(f"v{n}=1\n" for n in range(2_500)) + "if a; then b=1; fi\n" * 1_200, PASSING),
    "shells of their own": ("".join(f"v{n}=1\n" for n in range(2_500)) + "(a)\n" * 5_000, ""),
    "streams that never end": ("a <(" * 12_000, "never closed"),
    "changed by patterns": ("A=" + "a" * 900 + "\n" + "B=${A%%*a*a*b}\n" * 2_500, ""),
    "outputs in outputs": ("A=" + "$(echo " * 6_000 + ")" * 6_000, "line 1: its variables make more"),
    "globs": ("ls " + "/*" * 24_000, ""),
    "sbatch": ("#SBATCH" + "\n" * 49_000, ""),
    "one word": ("a" * 49_000, ""),
    "a long script": ("\n" * 60_000, "line 1: the script and those in its words have more than 50,000 characters"),
    "numbers": (
        f"torchrun --nnodes {'9' * 5000} x.py --num-layers {'9' * 5000} --hidden-size {'9' * 400} --topk \u00b2",
        "",
    ),
}


def read(kind: str, text: str) -> str:
    """Why the text is refused; empty where a spec is made of it. Within the limit, and never a defect."""
    began = time.process_time()
    try:
        path = Path(FOLDER.name) / {"deepspeed": "x.json", "torchtitan": "x.toml"}.get(kind, "x.sh")
        path.write_text(text, errors="surrogatepass")
        imported = read_source(path, given={}, dialect=kind)
        document = spec_document(imported, name="x", cluster="", here=Path("/here"))
        made = render_spec(document, "x.sh", import_notes(imported, ""))
        assert len(made) < 20 * (len(text) + 5_000)
        return ""
    except CannotRead as error:
        return str(error)
    finally:
        assert time.process_time() - began < LIMIT_S


@pytest.mark.parametrize(("script", "message"), HANGS.values(), ids=HANGS)
def test_a_script_that_would_never_end_is_refused_with_its_line_and_limit(script, message):
    told = read("megatron", script + START)
    assert len(told) < 1_000
    assert message in told


def test_arithmetic_is_of_64_bits_and_rounds_as_bash_does():
    script = "A=9223372036854775807\nB=$((A + 1)); C=$((-7 % 4)); D=$((-7 / 2)); E=$((2 - (3 - 4) * 5)); F=$((010))\n"
    launch = find_launch(script + 'torchrun x.py --a "$B" "$C" "$D" "$E" "$F"')
    assert launch.words[1:5] == ("-9223372036854775808", "-3", "-3", "7")
    assert as_written(launch.words[5]) == "$((010))"


SCRIPT = GIVEN["script"]
JSON = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
 "zero_optimization": {"stage": 2, "x": [1, 2.5, "a"]}, "bf16": {"enabled": true}, "pipeline": {"a": {"b": null}}}"""
TOML = GIVEN["toml"]
FLAGS = "--training.local_batch_size 4 --parallelism.tensor_parallel_degree=2\nactivation-checkpoint:full --x 'a b'\n"
SEEDS = (*[("megatron", SCRIPT)] * 4, ("deepspeed", JSON), ("torchtitan", TOML), ("torchtitan", FLAGS))
PARTS = (
    *(
        "$",
        "${",
        "}",
        "$((",
        "))",
        "$(",
        ")",
        "(",
        "`",
        "'",
        '"',
        "\\",
        "\n",
        "<<E\n",
        "E\n",
        ";",
        "&&",
        "||",
        "|",
        "&",
    ),
    *(
        "if ",
        "then ",
        "else ",
        "fi\n",
        "[[ ",
        " ]]",
        "{",
        "for ",
        "done",
        "case ",
        "A=$A$A\n",
        "A+=($A)\n",
        "${A:-",
        "+=",
    ),
    *(
        'A=("${A[@]}" "${A[@]}")\n',
        "--num-layers ",
        "--micro-batch-size 0 ",
        "9" * 400,
        "-1",
        "08",
        "\u00b2",
        "\0",
        "\1",
    ),
    *(
        "\r",
        "\ud800",
        "#",
        "#SBATCH ",
        "x.py --a ",
        'bash -c "',
        " " * 50,
        "NaN",
        "[",
        "]",
        ",",
        '{"a":',
        "a.",
        '"""',
        "--5 ",
    ),
)


def mutated(rng: random.Random, text: str) -> str:
    """The text with one to five stretches replaced, repeated or taken away; at most 20,000 characters of it."""
    for _ in range(rng.randint(1, 5)):
        start = rng.randrange(len(text) + 1)
        end = start + rng.choice((0, 0, 1, 3, 20, 200))
        parts = "".join(rng.choices(PARTS, k=rng.choice((1, 1, 3))))
        new = rng.choice((parts * rng.choice((1, 2, 30, 1000)), "", text[start:end] * rng.choice((2, 40, 300))))
        text = (text[:start] + new + text[end:])[:20_000]
    return text


@pytest.mark.parametrize("count", [200, pytest.param(2000, marks=pytest.mark.long)])
def test_a_mutated_script_is_a_spec_or_a_reason(count):
    rng = random.Random(count)
    reasons = [read(kind, mutated(rng, text)) for kind, text in rng.choices(SEEDS, k=count)]
    # The mutants are neither all broken nor all harmless.
    assert count / 5 < reasons.count("") < count * 4 / 5


def test_a_program_of_a_name_that_no_file_can_have_is_read():
    assert read("megatron", f"torchrun {'x' * 5_000}.py --num-layers 8\n") == ""
