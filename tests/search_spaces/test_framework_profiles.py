"""The table of training codes: its values are of their fields' types, and its sections build on each other as told."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from meshtune.runners.documents import read_value
from meshtune.search_spaces.physics.framework_profiles import (
    DEEPSPEED,
    FRAMEWORKS,
    FSDP,
    FSDP_PURE_BF16,
    MEGATRON_CORE,
    TORCHTITAN_COMPILED,
    TRAINER,
    FrameworkProfile,
    Kept,
    Reports,
    compiled,
)
from meshtune.search_spaces.plan import LOSS_CHUNKS, Selective


@pytest.mark.parametrize("code", FRAMEWORKS)
def test_every_value_is_of_its_fields_type(code):
    profile = FRAMEWORKS[code]
    assert read_value(FrameworkProfile, asdict(profile)) == profile
    assert isinstance(profile.reports, Reports)
    assert isinstance(profile.kept.selective, Selective)
    assert isinstance(profile.attention_kernels, tuple)


def test_a_section_that_says_what_is_kept_keeps_nothing_of_its_base():
    assert FSDP.kept.autocast
    assert DEEPSPEED.kept == Kept(norm_bytes=4, copied_buckets=True)


def test_what_is_laid_over_leaves_the_rest_of_the_base():
    assert FSDP_PURE_BF16.kept == replace(FSDP.kept, autocast=False)


def test_later_bases_are_over_earlier_ones():
    eager, compiled_trainer = FRAMEWORKS["torchtitan"], compiled(TRAINER["bfloat16"])
    assert TORCHTITAN_COMPILED.hidden_passes == compiled_trainer.hidden_passes == 23 / 3 < eager.hidden_passes
    assert TORCHTITAN_COMPILED.parallel_logit_bytes == 0 < eager.parallel_logit_bytes
    assert MEGATRON_CORE["float32"].weight_bytes == 4 > MEGATRON_CORE["bfloat16"].weight_bytes


def test_the_trainers_chunks_are_those_of_its_loss():
    assert {profile.kept.loss_chunks for profile in TRAINER.values()} == {LOSS_CHUNKS}
