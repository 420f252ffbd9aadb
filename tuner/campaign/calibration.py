"""A stored calibration: the physics' constants as measured on one device under one training code, and how much of them
holds for another release or description of the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshtune.runners.registry import SIMULATED
from meshtune.search_spaces.cluster import DeviceSpec
from meshtune.search_spaces.physics.constants import DEFAULTS, UNCALIBRATED, Calibration
from meshtune.search_spaces.physics.framework_profiles import FrameworkProfile
from meshtune.search_spaces.physics.rates import ATTENTION_LENGTH, SUSTAINED_SHARE, Rates
from meshtune.search_spaces.physics.training import Training
from meshtune.tuner.campaign.campaign import Lesson
from meshtune.tuner.campaign.spec import CampaignSpec, workload_of

# The name of the search that makes a campaign one that calibrates.
CALIBRATION = "calibration"
# A fit of fewer measured trials is refused.
LEAST_TRIALS = 3
# The share of what was learnt that is believed under another release of the framework: judged.
OTHER_RELEASE_SHARE = 0.5
# The libraries that a training code may be, the outermost first: versions of the inner ones are not looked at.
LIBRARIES = ("torchtitan", "nanotron", "megatron-core", "megatron_core", "deepspeed", "transformers", "torch")
# The numbers of a fit beside its constants and their covariance.
OF_FIT = ("time_log_sd", "memory_log_sd", "times", "memories", "ooms")
# Of simulated jobs.
HIDDEN_CLUSTER = "hidden cluster"
_RELEASE = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationKey:
    """The subject of a calibration. device: its name. workload: its kind, since simulated jobs play real training
    codes. program: the user's, see `Workload.program`. framework, dtype: of the training code's profile."""

    device: str
    workload: str
    program: str
    framework: str
    dtype: str

    @property
    def subject(self) -> str:
        """The device and the training code, in words."""
        code = self.program or (self.workload if self.workload == SIMULATED else "")
        return f"{self.device} and {self.framework}{f' ({code})' if code else ''}"


def key_of(spec: CampaignSpec) -> CalibrationKey:
    workload = workload_of(spec)
    return CalibrationKey(
        device=spec.cluster.device.name,
        workload=spec.workload.kind,
        program=workload.program,
        framework=workload.framework.name,
        dtype=workload.framework.dtype,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCalibration(CalibrationKey):
    """What one calibration campaign measured. version: the framework's library with its version, such as `torch 2.5.1`;
    empty where no trial named one. model, cluster, devices: measured with. trials: measured ones. described: the device
    as it was described then, whose speeds the efficiencies are shares of. owner, project: as of the campaign."""

    campaign: str
    created_at: float
    version: str
    model: str
    cluster: str
    devices: int
    trials: int
    described: DeviceSpec
    calibration: Calibration
    owner: str = ""
    project: str = ""

    def believed(self, version: str) -> float:
        """The share of it that is believed under this version; empty: unknown, taken to be the same."""
        return 1.0 if not version or release_of(version) == release_of(self.version) else OTHER_RELEASE_SHARE

    def lesson(self, version: str) -> Lesson:
        """As a campaign under this version learns from it."""
        return Lesson(campaign_id=self.campaign, trials=self.trials, weight=self.believed(version), calibration=True)

    def holding_for(self, training: Training, version: str) -> Calibration:
        """The constants for this training's device as it is described now, under this version.

        Another description of the same device changes no speed: where its rate is said to be twice as high, the
        efficiency is half. Under another release the covariance lies between the measured one and the prior's.
        """
        framework, now = training.framework, training.cluster.device
        dtype = framework.dtype
        factors = {
            "matmul_efficiency": (_sustained(self.described, dtype), _sustained(now, dtype)),
            "attention_efficiency": (_attention(self.described, framework), _attention(now, framework)),
            "memory_efficiency": (self.described.memory_bandwidth_bytes_per_s, now.memory_bandwidth_bytes_per_s),
        }
        learnt, share = self.calibration, self.believed(version)
        ratios = {name: then / today for name, (then, today) in factors.items() if then and today}
        changed = {name: getattr(learnt.constants, name) * ratio for name, ratio in ratios.items()}
        covariance = share * learnt.covariance + (1 - share) * UNCALIBRATED.covariance
        return replace(learnt, constants=replace(learnt.constants, **changed), covariance=covariance)


def best_of(stored: Sequence[StoredCalibration], version: str) -> StoredCalibration | None:
    """The newest of those of one key (newest first) that hold for the version; else the newest."""
    return next((one for one in stored if one.believed(version) == 1.0), next(iter(stored), None))


def framework_version(software: Mapping[str, str]) -> str:
    """The framework's library with its version, by what a trial says of its software; empty where it says nothing."""
    return next((f"{name} {software[name]}" for name in (*LIBRARIES, HIDDEN_CLUSTER) if name in software), "")


def release_of(version: str) -> str:
    """The version to its minor one, with what stands before; the whole text where it has none."""
    release = _RELEASE.search(version)
    return version if release is None else version[: release.end()]


def _attention(device: DeviceSpec, framework: FrameworkProfile) -> float | None:
    """FLOP/s forward, with usual heads."""
    known = framework.dtype in device.peak_flops
    return Rates(device, framework, DEFAULTS).kernel_per_s(128, ATTENTION_LENGTH)[0] if known else None


def _sustained(device: DeviceSpec, dtype: str) -> float | None:
    if dtype not in device.peak_flops:
        return None
    return device.sustained_flops.get(dtype, SUSTAINED_SHARE * device.peak_flops[dtype])
