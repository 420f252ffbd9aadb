"""What can be chosen, in words for people: objectives and export formats."""

from __future__ import annotations

from collections.abc import Mapping

from meshtune.tuner.campaign.spec import Objective

OBJECTIVES: Mapping[Objective, str] = {
    Objective.TOKENS_PER_S_PER_DEVICE: "tokens that one device trains in a second",
    Objective.STEP_TIME: "the time of one optimizer step",
    Objective.TFLOPS_PER_DEVICE: "the model's own floating-point operations per second and device",
    Objective.MFU: "model FLOPs utilization: the share of the device's peak",
    Objective.COST: "what 10^9 tokens cost: device-hours, or money where the cluster has a price",
}
FORMATS: Mapping[str, str] = {
    "json": "the setting with its measurement, for programs",
    "job": "the files of the job that measured it, to run it again by hand",
    "megatron": "arguments and launch script of Megatron-LM or Megatron-DeepSpeed",
    "deepspeed": "a ds_config.json",
    "torchtitan": "torchtitan's flags, or its TOML file",
    "accelerate": "the YAML file of accelerate launch",
    "slurm": "a job script for sbatch that measures the setting again",
    "pbs": "a job script for qsub that measures the setting again",
    "jobset": "a Kubernetes JobSet that measures the setting again",
    "trainjob": "a TrainJob of Kubeflow Trainer that measures the setting again",
}
