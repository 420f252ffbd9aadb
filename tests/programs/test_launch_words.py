"""What another plan changes in a start: its words, and the text of its launcher, which starts with exactly those."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshtune.runners.programs.dialects.bash.launch import find_launches
from meshtune.runners.programs.launch_words import (
    CannotApply,
    applied,
    changed_options,
    changed_words,
    differences,
    groups,
    laid_over,
)

NEW = {"--mbs": ("8",), "--ga": ("1",), "--gc": None, "--zero": ("3",)}


def change(text: str, changes=NEW, number: int = 0, path: Path | None = None) -> str:
    """The text with the changes in one of its starts, which is read again here too."""
    old = find_launches(text, path=path)
    new = laid_over(old[number].words, changes)
    done = applied(text, old[number].words, new, lambda each: find_launches(each, path=path))
    again = find_launches(done, path=path)
    assert sorted(groups(again[number].words)) == sorted(groups(new))
    assert [start.words for start in again[:number]] == [start.words for start in old[:number]]
    assert [start.words for start in again[number + 1 :]] == [start.words for start in old[number + 1 :]]
    return done


def test_options_are_told_by_their_names():
    words = "torchrun --n 8 t.py --a 1 --gc --b=2 x=1 +y=2 --z 1 2 q=3 -m pkg --lr -1 --cfg k=v".split()  # noqa: SIM905
    assert list(groups(words)) == [
        ("", ("torchrun",)),
        ("--n", ("--n", "8")),
        ("", ("t.py",)),
        ("--a", ("--a", "1")),
        ("--gc", ("--gc",)),
        ("--b", ("--b=2",)),
        ("x", ("x=1",)),
        ("y", ("+y=2",)),
        ("--z", ("--z", "1", "2")),
        ("q", ("q=3",)),
        ("-m", ("-m", "pkg")),
        ("--lr", ("--lr", "-1")),
        ("--cfg", ("--cfg", "k=v")),
    ]


def test_hydra_s_marks_of_a_key_stay_and_come_with_an_added_one():
    old = ["x.py", "++a.b=1", "c.d=2"]
    assert laid_over(old, {"a.b": ("3",)}) == ["x.py", "++a.b=3", "c.d=2"]
    new = ["x.py", "++a.b=3", "c.d=2", "++e.f=4"]
    assert laid_over(old, differences(old, new)) == new


def test_a_choice_of_words_is_no_option():
    choice = {"{recompute}": {"none": "a=1", "full": "a=2"}}
    assert laid_over(["x.py", "--flag", choice, "b=1"], {"b": None}) == ["x.py", "--flag", choice]


def test_changed_words_are_marked():
    old = ["torchrun", "train.py", "--mbs", "4", "--gc", "--ga=2"]
    assert changed_words(old, old) == [(word, False) for word in old]
    marked = changed_words(old, ["torchrun", "train.py", "--mbs", "8", "--ga=1", "--zero", "3"])
    assert [word for word, changed in marked if changed] == ["8", "--ga=1", "--zero", "3"]


# A start, what stands for it behind the change, and what must not be there any more.
STYLES = {
    "one line": (
        "torchrun train.py --mbs 4 --ga 2 --gc --lr 1\n",
        "torchrun train.py --mbs 8 --ga 1 --zero 3 --lr 1\n",
    ),
    "joined": ("torchrun train.py --mbs=4 --ga=2 --lr=1 --gc\n", "torchrun train.py --mbs=8 --ga=1 --zero 3 --lr=1\n"),
    "lines that go on": (
        "#!/bin/bash\n# as --mbs 4\ntorchrun \\\n  train.py \\\n  --mbs 4 \\\n  --gc \\\n  --ga 2\n",
        "#!/bin/bash\n# as --mbs 4\ntorchrun \\\n  train.py \\\n  --mbs 8 \\\n  --zero 3 --ga 1\n",
    ),
    "the last line goes": (
        "torchrun train.py \\\n  --mbs 4 \\\n  --ga 2 \\\n  --gc\n",
        "torchrun train.py \\\n  --mbs 8 \\\n  --zero 3 --ga 1\n",
    ),
    "variables": (
        "MBS=4  # per device\nGA=2\ntorchrun train.py --mbs $MBS --ga ${GA} --gc --lr 1\n",
        "MBS=8  # per device\nGA=1\ntorchrun train.py --mbs $MBS --ga ${GA} --zero 3 --lr 1\n",
    ),
    "exported": (
        'export MBS="4"\nexport GA=2\ntorchrun train.py --mbs "$MBS" --ga=$GA --gc --lr 1\n',
        'export MBS="8"\nexport GA=1\ntorchrun train.py --mbs "$MBS" --ga=$GA --zero 3 --lr 1\n',
    ),
    "defaults": (
        "MBS=${MBS:-4}\ntorchrun train.py --mbs $MBS --ga ${GA:-2} --gc --lr 1\n",
        "MBS=${MBS:-8}\ntorchrun train.py --mbs $MBS --ga ${GA:-1} --zero 3 --lr 1\n",
    ),
    "arrays": (
        'BATCH=(--mbs 4 --ga 2)\nMORE=(\n  --lr 1\n  --gc\n)\ntorchrun train.py "${BATCH[@]}" ${MORE[@]}\n',
        'BATCH=(--mbs 8 --ga 1)\nMORE=(\n  --zero 3 --lr 1\n)\ntorchrun train.py "${BATCH[@]}" ${MORE[@]}\n',
    ),
    "a text of options": (
        'ARGS="--mbs 4 --ga 2"\nGC="--gc"\ntorchrun train.py $ARGS $GC\n',
        'ARGS="--mbs 8 --zero 3 --ga 1"\nGC=""\ntorchrun train.py $ARGS $GC\n',
    ),
    "a text of several lines": (
        'ARGS="\n    --mbs 4 \\\n    --ga 2 \\\n    --gc\n"\ntorchrun train.py $ARGS\n',
        'ARGS="\n    --mbs 8 \\\n    --zero 3 --ga 1\n"\ntorchrun train.py $ARGS\n',
    ),
    "a job script": (
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=4\nMBS=4\nGA=2\nsrun python t.py --mbs $MBS --ga $GA --gc\n",
        "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=4\nMBS=8\nGA=1\nsrun python t.py --mbs $MBS --zero 3 --ga $GA\n",
    ),
    "a variable of a variable": (
        "B=4\nMBS=$B\ntorchrun train.py --mbs $MBS --ga 2 --gc --lr 1\n",
        "B=8\nMBS=$B\ntorchrun train.py --mbs $MBS --ga 1 --zero 3 --lr 1\n",
    ),
    "a variable of two options": (
        "B=4\ntorchrun train.py --mbs $B --eval-bs $B --ga 2 --gc\n",
        "B=4\ntorchrun train.py --mbs 8 --eval-bs $B --zero 3 --ga 1\n",
    ),
    "a number that follows": (
        "MBS=4\nGA=$((8 / MBS))\ntorchrun train.py --mbs $MBS --ga $GA --gc --lr 1\n",
        "MBS=4\nGA=$((8 / MBS))\ntorchrun train.py --mbs 8 --ga 1 --zero 3 --lr 1\n",
    ),
    "a variable of the surroundings too": (
        "export OMP_NUM_THREADS=4\nMBS=$OMP_NUM_THREADS\ntorchrun train.py --mbs $MBS --ga 2 --gc --lr 1\n",
        "export OMP_NUM_THREADS=4\nMBS=$OMP_NUM_THREADS\ntorchrun train.py --mbs 8 --ga 1 --zero 3 --lr 1\n",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_the_change_is_made_where_the_value_stands(style):
    before, after = STYLES[style]
    assert change(before) == after


def test_only_the_one_start_is_changed():
    text = "MBS=4\ntorchrun train.py --mbs $MBS --gc --lr 1\ntorchrun eval.py --mbs $MBS --gc --lr 2\n"
    done = change(text, {"--mbs": ("8",), "--gc": None}, number=1)
    assert done == "MBS=4\ntorchrun train.py --mbs $MBS --gc --lr 1\ntorchrun eval.py --mbs 8 --lr 2\n"


def test_an_option_joined_by_an_equals_sign_takes_several_values_as_words():
    text = "torchrun train.py --mbs --ga=1 --tp\n"
    assert change(text, {"--mbs": None, "--ga": ("1", "2")}) == "torchrun train.py --ga 1 2 --tp\n"
    assert change(text, {"--ga": ()}) == "torchrun train.py --mbs --ga --tp\n"


def test_a_start_without_options_gets_some_behind_its_script():
    assert change("torchrun train.py\n", {"--mbs": ("8",)}) == "torchrun train.py --mbs 8\n"
    assert change("torchrun train.py a.b=1\n", {"a.b": ("2",), "c": ("3",)}) == "torchrun train.py c=3 a.b=2\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # One array of two starts; a name that is put together; a value that only the shell knows; a loop.
        (
            "A=(--mbs 4 --lr 1)\ntorchrun a.py ${A[@]}\ntorchrun b.py ${A[@]} --seed 1\n",
            "--mbs: .*write `--mbs 8` by hand",
        ),
        ("N=mbs\ntorchrun a.py --$N 4 --lr 1\n", "--mbs: .*by hand"),
        ("A=(--mbs 4 --lr 1)\nfor s in 1 2; do torchrun a.py ${A[@]} --seed $s; done\n", "--mbs: .*by hand"),
    ],
)
def test_what_one_place_does_not_change_alone_is_left_to_the_user(text, told):
    with pytest.raises(CannotApply, match=told):
        change(text, {"--mbs": ("8",)})


def test_words_of_another_file_are_refused():
    with pytest.raises(CannotApply, match="no starts of the file have the words `--mbs 5`"):
        applied("torchrun a.py --mbs 4\n", ["--mbs", "5"], ["--mbs", "6"], find_launches)


def test_the_words_of_a_script_that_another_starts_are_refused(tmp_path):
    (tmp_path / "inner.sh").write_text("torchrun a.py --mbs 4 --lr $1\n")
    outer = tmp_path / "outer.sh"
    with pytest.raises(CannotApply):
        change(f"bash {tmp_path}/inner.sh 3\n", {"--mbs": ("8",)}, path=outer)
    assert change(f"bash {tmp_path}/inner.sh 3\n", {}, path=outer) == f"bash {tmp_path}/inner.sh 3\n"


NAMES = st.sampled_from(["--mbs", "--ga", "--lr", "--tp", "--gc", "--pp"])
VALUES = st.sampled_from([(), ("1",), ("2",), ("4",), ("8",), ("a b",), ("1", "2"), ("-1",), ("$x",)])


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, min_size=1),
    st.dictionaries(NAMES, st.none() | VALUES, min_size=1),
    st.randoms(use_true_random=False),
)
def test_a_changed_launcher_starts_with_the_wanted_words_or_is_refused(options, changes, random):
    head, words = list[str](), list[str]()
    for at, (name, values) in enumerate(options.items()):
        quoted = shlex.join(values)
        style = random.randrange(6)
        if style == 0 and len(values) == 1:
            shared = random.choice(["V", f"V{at}"])
            head.append(f"{random.choice(['', 'export '])}{shared}={quoted}")
            words.append(f'{name} "${shared}"')
        elif style == 1 and len(values) == 1:
            words.append(f"{name}={quoted}")
        elif style == 2:
            head.append(f"A{at}=(\n  {name} {quoted}\n)")
            words.append(f'"${{A{at}[@]}}"')
        elif style == 3 and len(values) == 1:
            words.append(f"{name} ${{D{at}:-{quoted}}}")
        else:
            words.append(f"{name} {quoted}")
    text = "\n".join([*head, random.choice([" ", " \\\n  "]).join(["torchrun train.py", *words]), ""])
    old = find_launches(text)[0].words
    new = laid_over(old, changes)
    try:
        done = applied(text, old, new, find_launches)
    except CannotApply:
        return
    assert sorted(groups(find_launches(done)[0].words)) == sorted(groups(new))
    assert not differences(find_launches(done)[0].words, new)


def test_changed_options_are_told_with_what_they_were():
    old, new = ["a.py", "--mbs", "2", "--lr", "1", "--ckpt"], ["a.py", "--mbs", "4", "--lr", "1", "--zero", "2"]
    assert changed_options(old, new) == ["without --ckpt", "--mbs 2 -> 4", "--zero 2"]
