"""Reads `accelerate launch`: its words, over the YAML file that they name. By Accelerate 1.15.0 (commands/launch.py,
whose defaults these are)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from meshtune.runners.json_files import shown
from meshtune.runners.programs.dialects.base import CannotRead
from meshtune.runners.programs.dialects.bash.expansion import as_written
from meshtune.runners.programs.dialects.config_import import mapping_in, read_mapping
from meshtune.runners.programs.dialects.launcher_options import OF_ACCELERATE, tell
from meshtune.runners.programs.dialects.transformers.arguments import Words, arguments_of, quoted, truth
from meshtune.runners.programs.dialects.transformers.engine import (
    DS_FILE,
    Engine,
    ask_where_cpus_shard_nothing,
    offloads,
    resharding,
    settings_of,
    strategy,
)

_DEFAULT_FILE = "~/.cache/huggingface/accelerate/default_config.yaml"
_ENGINES = ("--use_deepspeed", "--use_fsdp", "--use_megatron_lm", "--multi_gpu")
_TYPES = {"--use_deepspeed": "DEEPSPEED", "--use_fsdp": "FSDP", "--use_megatron_lm": "MEGATRON_LM"}
_DTYPES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16"}
# A trial has the variables on every node; by hand, on one machine, nobody needs them. Braces of the shell are doubled.
_PEERS = (
    "--num_machines {nodes} --num_processes {world_size} --machine_rank ${{NODE_RANK:-0}} "
    "--main_process_ip ${{MASTER_ADDR:-127.0.0.1}} --main_process_port ${{MASTER_PORT:-29500}}"
)


def is_accelerate(launcher: Sequence[str]) -> bool:
    """Whether the words that start the processes are `accelerate launch`, in any of its forms."""
    names = [PurePath(word).name for word in launcher]
    return "accelerate-launch" in names or "accelerate.commands.launch" in names or "accelerate" in names


def is_file(name: str, text: str) -> bool:
    """Whether a text is a configuration that `accelerate config` writes."""
    return "distributed_type" in mapping_in(name, text, (".yaml", ".yml", ".json"))


def read_accelerate(words: Words, launcher: Sequence[str], files: Mapping[str, str]) -> Engine:
    """words: the script's, which take the questions. Raises CannotRead."""
    after = next(
        (at + 1 for at, word in enumerate(launcher) if word == "launch" or PurePath(word).name.endswith("launch")),
        len(launcher),
    )
    return _Reading(words, dict(arguments_of(launcher[after:])[0]), files).engine()


class _Reading:
    """What the launcher's words and its file say together; words come first."""

    def __init__(self, script: Words, given: Mapping[str, tuple[str, ...]], files: Mapping[str, str]) -> None:
        self._script, self._files = script, files
        self._words = Words(arguments=given, place=script.place, questions=script.questions, notes=script.notes)
        self._file = self._read_file()

    def _read_file(self) -> dict[str, Any]:
        """The keys of the file and of its sections, side by side, as the launcher has them."""
        named = self._words.arguments.get("--config_file")
        if not named:
            if not any(map(self._words.has, _ENGINES)):
                told = (
                    f"no --config_file: Accelerate reads {_DEFAULT_FILE} where it is there; name it, and import again"
                )
                self._words.ask("baseline.zero_stage", told)
            return {}
        text = self._files.get(named[0])
        if text is None:
            raise CannotRead(
                f"{self._words.place}: Accelerate's settings, {as_written(named[0])}, are not there; without them "
                f"neither what shards the model nor its number format is known. Next: make the file, and import again"
            )
        document = read_mapping(named[0], text)
        flat = {key: value for key, value in document.items() if not isinstance(value, dict)}
        for section, values in document.items():
            for key, value in (values if isinstance(values, dict) else {}).items():
                flat[f"fsdp_{key}" if section == "fsdp_config" and not key.startswith("fsdp") else key] = value
        return flat

    def _value(self, key: str, default: Any = None) -> Any:
        if self._words.has(f"--{key}"):
            return self._words.text(f"--{key}", "") if self._words.arguments[f"--{key}"] else True
        value = self._file.get(key)
        return default if value is None else value

    def _degree(self, key: str) -> int:
        value = str(self._value(key, 1))
        if value.isdecimal() and int(value) > 0:
            return int(value)
        self._words.ask("", f"{key} is {shown(value)}, and no degree: correct the baseline by it")
        return 1

    def engine(self) -> Engine:
        chosen = next((name for name in _ENGINES if self._words.has(name)), "")
        kind = _TYPES.get(chosen, "MULTI_GPU") if chosen else str(self._file.get("distributed_type", "NO"))
        processes, nodes = self._value("num_processes"), self._value("num_machines", 1)
        common: dict[str, Any] = {
            "dtype": self._dtype(),
            "nodes": int(nodes) if str(nodes).isdecimal() else None,
            "processes": int(processes) if str(processes).isdecimal() and int(processes) > 0 else None,
        }
        match kind:
            case "FSDP":
                return self._fsdp(common)
            case "DEEPSPEED":
                return self._deepspeed(common)
            case "MEGATRON_LM":
                return self._megatron(common)
            case "MULTI_GPU" | "NO" | "MULTI_XPU" | "MULTI_NPU" | "MULTI_HPU" | "MULTI_MLU" | "MULTI_CPU":
                head = self._head(drop=("multi_gpu",), add=("--multi_gpu",) if kind == "MULTI_GPU" else ())
                return Engine(framework="fsdp", plan={"zero_stage": 0}, fixed=True, head=head, **common)
        raise CannotRead(f"{self._words.place}: distributed_type {shown(kind)} is none that meshtune has words for")

    def _dtype(self) -> str | None:
        said = self._value("mixed_precision", "no")
        # YAML reads a bare no as false.
        name = "no" if said is False else str(said).lower()
        if name not in (*_DTYPES, "no"):
            self._words.ask("workload.dtype", f"mixed_precision {shown(said)}: write the format of most products")
        return _DTYPES.get(name)

    def _head(self, *, drop: Sequence[str] = (), add: Sequence[str] = ()) -> tuple[str, ...]:
        """The launcher's words for a trial; each is a word of the shell, with placeholders."""
        # Who starts where is told to each trial anew.
        anew = {name: plain for name in self._words.arguments if (plain := name[2:].replace("_", "-")) in OF_ACCELERATE}
        tell(self._words, "accelerate", [(anew[name], (name, *self._words.arguments[name])) for name in anew])
        gone = anew.keys() | {f"--{name}" for name in drop}
        others = {name: values for name, values in self._words.arguments.items() if name not in gone}
        kept = [quoted(word) for name, values in others.items() for word in (name, *values)]
        return ("accelerate", "launch", *kept, *add, *_PEERS.split())

    def _fsdp(self, common: dict[str, Any]) -> Engine:
        version = str(self._value("fsdp_version", 1))
        if version == "2":
            stage = resharding(self._words, self._value("fsdp_reshard_after_forward", True))
            option = {2: ("--fsdp_reshard_after_forward", "false"), 3: ("--fsdp_reshard_after_forward", "true")}
        else:
            said = self._value("fsdp_sharding_strategy", self._value("fsdp_reshard_after_forward", "FULL_SHARD"))
            stage = strategy(self._words, str(said))
            option = {2: ("--fsdp_sharding_strategy", "SHARD_GRAD_OP"), 3: ("--fsdp_sharding_strategy", "FULL_SHARD")}
        plan: dict[str, Any] = {} if stage is None else {"zero_stage": stage}
        if truth(self._value("use_cpu", self._value("cpu", False))) or self._script.flag("--use_cpu", ""):
            ask_where_cpus_shard_nothing(self._words)
        offloaded = truth(self._value("fsdp_offload_params", False))
        if offloaded:
            self._words.note(
                "fsdp_offload_params: weights lie on the host; it stays so, and predictions do not know it"
            )
        checkpoints = truth(self._value("fsdp_activation_checkpointing", False))
        if checkpoints:
            plan["recompute"] = "full"
        mesh, words = self._mesh()
        plan |= mesh
        sharded = {each: ("--use_fsdp", "--fsdp_version", version, *option[each]) for each in (2, 3)}
        whole = not (offloaded or checkpoints or mesh)
        stages = {0: ("--multi_gpu",), **sharded} if whole else sharded
        drop = (*("use_fsdp", "multi_gpu", "fsdp_version", "fsdp_reshard_after_forward", "fsdp_sharding_strategy"),)
        head = self._head(drop=(*drop, *(word.removeprefix("--") for word in words[::2])), add=words)
        return Engine(framework="fsdp", plan=plan, stages=stages, head=head, **common)

    def _mesh(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """tp and cp of FSDP2's mesh, and the words that ask for them."""
        sizes = {name: self._degree(f"parallelism_config_{name}_size") for name in ("tp", "cp", "sp")}
        replicas = self._degree("parallelism_config_dp_replicate_size")
        if replicas > 1:
            told = f"dp_replicate_size({replicas}) shards within groups of replicas, which a plan has no word for"
            self._words.ask("baseline.zero_stage", f"{told}: write 2 or 3, and compare")
        if sizes["sp"] > 1:
            raise CannotRead(f"{self._words.place}: parallelism_config_sp_size({sizes['sp']}) is not read by meshtune")
        found: dict[str, Any] = {name: sizes[name] for name in ("tp", "cp") if sizes[name] > 1}
        words = [word for name in found for word in (f"--parallelism_config_{name}_size", f"{{{name}}}")]
        if found:
            words += ["--parallelism_config_dp_shard_size", "{dp}"]
        if "tp" in found:
            found["sequence_parallel"] = False
        if "cp" in found:
            rotates = self._value("parallelism_config_cp_comm_strategy", "allgather")
            found["context"] = "ring" if rotates == "alltoall" else "all_gather"
        return found, tuple(words)

    def _deepspeed(self, common: dict[str, Any]) -> Engine:
        if named := self._value("deepspeed_config_file"):
            settings = settings_of(self._words, str(named), self._files)
            head = self._head(
                drop=("deepspeed_config_file", "use_deepspeed"),
                add=("--use_deepspeed", "--deepspeed_config_file", f"{{directory}}/{DS_FILE}"),
            )
            # The file's own format counts; the launcher's is what its `auto` stands for.
            return Engine(framework="deepspeed", settings=settings, head=head, fixed=offloads(settings), **common)
        devices = {part: str(self._value(f"offload_{part}_device", "none")) for part in ("optimizer", "param")}
        offloaded = {part: device for part, device in devices.items() if device.lower() not in ("none", "null")}
        for part, device in offloaded.items():
            self._words.note(f"offload_{part}_device: {device}; it stays so, and predictions do not know it")
        stage = str(self._value("zero_stage", 2))
        if stage not in ("0", "1", "2", "3"):
            self._words.ask("baseline.zero_stage", f"zero_stage {shown(stage)}: write 0, 1, 2 or 3")
        plan = {"zero_stage": int(stage)} if stage in ("0", "1", "2", "3") else {}
        told = ("--zero_stage", stage if offloaded else "{zero_stage}")
        head = self._head(
            drop=("use_deepspeed", "zero_stage", "gradient_accumulation_steps"),
            add=("--use_deepspeed", *told, "--gradient_accumulation_steps", "{grad_accum_steps}"),
        )
        return Engine(framework="deepspeed", plan=plan, head=head, fixed=bool(offloaded), **common)

    def _megatron(self, common: dict[str, Any]) -> Engine:
        """Accelerate's plugin of Megatron-LM: degrees that it is told, by names of its own."""
        degrees = {name: self._degree(f"megatron_lm_{name}_degree") for name in ("tp", "pp")}
        plan: dict[str, Any] = {
            **degrees,
            "zero_stage": int(truth(self._value("megatron_lm_use_distributed_optimizer", False)) or False),
            "sequence_parallel": degrees["tp"] == 1
            or bool(truth(self._value("megatron_lm_sequence_parallelism", False))),
            "recompute": "selective" if truth(self._value("megatron_lm_recompute_activations", False)) else "none",
        }
        words = ("--megatron_lm_tp_degree", "{tp}", "--megatron_lm_pp_degree", "{pp}")
        head = self._head(
            drop=("use_megatron_lm", "megatron_lm_tp_degree", "megatron_lm_pp_degree"),
            add=("--use_megatron_lm", *words),
        )
        return Engine(framework="megatron-deepspeed", plan=plan, head=head, fixed=True, **common)
