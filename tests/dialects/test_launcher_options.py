"""Every option of an imported launcher is kept, read, named as left out, or asked about."""

from __future__ import annotations

import pytest

from meshtune.runners.programs.dialects.base import Imported
from meshtune.runners.programs.dialects.bash.launch import find_launch
from meshtune.runners.programs.dialects.job_script import with_job
from meshtune.runners.programs.dialects.programs import read_start

SLURM = "#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=4\n"
PBS = "#PBS -l select=2:ngpus=4\n"
PROGRAM = (
    "pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 4096 "
    "--max-position-embeddings 4096 --vocab-size 32000 --mock-data --train-iters 9 --micro-batch-size 2 "
    "--global-batch-size 256 --tokenizer-type NullTokenizer --bf16"
)


def imported(start: str, head: str = SLURM) -> Imported:
    text = f"#!/bin/bash\n{head}{start} {PROGRAM}\n"
    launch = find_launch(text)
    return with_job(read_start(launch), text, launch)


def remarks(found: Imported) -> tuple[str, str]:
    """The questions and the notes, but for those that the program has anyway."""
    return "\n".join(map(str, found.questions)), "\n".join(found.notes)


@pytest.mark.parametrize(
    ("start", "head", "runner"),
    [
        ("srun --cpu-bind=none python", SLURM, {"cpu_bind": "none"}),
        ("srun --gpu-bind closest --mpi=pmix python", SLURM, {"gpu_bind": "closest", "mpi": "pmix"}),
        ("srun -m block:cyclic python", SLURM, {"srun_arguments": ["--distribution=block:cyclic"]}),
        ("srun --hint=nomultithread python", SLURM, {"srun_arguments": ["--hint=nomultithread"]}),
        ("srun --export=ALL,NCCL_DEBUG=WARN python", SLURM, {"environment": {"NCCL_DEBUG": "WARN"}}),
        ("salloc -p gpu -N 2 --gres=gpu:4 srun --mpi=pmix python", "", {"partition": "gpu", "mpi": "pmix"}),
        ("mpiexec -n 8 --bind-to none python", PBS, {"binding": "--bind-to none"}),
        ("mpirun -np 8 -bind-to core -map-by slot:PE=4 python", PBS, {"binding": "-bind-to core -map-by slot:PE=4"}),
        ("mpirun -np 8 --mca btl ^openib python", PBS, {"binding": "--mca btl '^openib'"}),
    ],
)
def test_what_the_runner_can_say_is_kept(start, head, runner):
    found = imported(start, head)
    assert {name: found.runner.get(name) for name in runner} == runner
    assert remarks(found)[0] == ""


@pytest.mark.parametrize("option", ["-x NCCL_DEBUG=WARN", "-genv NCCL_DEBUG WARN", "--env NCCL_DEBUG=WARN"])
@pytest.mark.parametrize("head", [SLURM, PBS])
def test_the_variables_of_mpirun_are_those_of_the_program(option, head):
    assert imported(f"mpirun -np 8 {option} -x PATH python", head).workload["env"] == {"NCCL_DEBUG": "WARN"}


def test_a_job_of_ray_is_its_program_with_the_variables_of_its_environment():
    runtime = '{"working_dir": ".", "env_vars": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "abc", "N": 2}}'
    start = f"ray job submit --no-wait --address=http://head:8265 --runtime-env-json='{runtime}' -- torchrun"
    found = imported(f"{start} --nnodes 2 --nproc_per_node 4", "")
    assert found.workload["env"] == {"NCCL_DEBUG": "WARN", "N": "2"}
    assert (found.nodes, found.devices_per_node) == (2, 4)
    questions, notes = remarks(found)
    assert questions == ""
    assert "hands the start to a cluster" in notes
    assert "--no-wait" not in str(found.workload)


def test_a_secret_among_the_variables_of_mpirun_is_not_copied():
    found = imported("mpirun -np 8 -x HF_TOKEN=abc -x A=$(hostname) python")
    assert "env" not in found.workload
    assert "HF_TOKEN is not copied" in remarks(found)[1]
    assert "the value of A is not known" in remarks(found)[1]


@pytest.mark.parametrize(
    ("launcher", "options", "reason"),
    [
        ("srun {} python", "--label", "logs"),
        ("srun {} python", "--kill-on-bad-exit=0", "logs"),
        ("srun {} python", "--output=out.log", "logs"),
        ("srun {} python", "--gpus-per-task=1", "sees all devices"),
        ("srun {} python", "--export=NONE", "all variables"),
        ("srun {} python", "--nodelist=n1", "own nodes"),
        ("mpirun -np 8 {} python", "--hostfile hosts", "own nodes"),
        ("mpirun -np 8 {} python", "--tag-output", "logs"),
        ("mpirun -np 8 {} python", "--bind-to none", "bound to cores"),
        ("aprun -n 8 -N 4 {} python", "--cc depth", "bound to cores"),
        ("ccc_mprun -N 2 -n 8 {} python", "-K", "logs"),
        ("torchrun --nnodes 2 {} --nproc_per_node 4", "--rdzv_backend c10d", "own nodes"),
        ("torchrun --nnodes 2 {} --nproc_per_node 4", "--max-restarts=3", "logs"),
        ("python -u -m torch.distributed.run --nnodes 2 {} --nproc-per-node 4", "--local-ranks-filter 0", "logs"),
        ("torchrun --nnodes 2 {} --nproc_per_node 4", "--log-dir logs", "logs"),
        ("deepspeed --num_gpus 4 {}", "--hostfile hosts", "own nodes"),
        ("deepspeed --num_gpus 4 {}", "--include a:0,1,2,3", "own nodes"),
        ("deepspeed --num_gpus 4 {}", "--launcher_args '-p x'", "own nodes"),
    ],
)
def test_what_belongs_to_one_start_is_named_with_the_reason(launcher, options, reason):
    _, notes = remarks(imported(launcher.format(options)))
    (line,) = (line for line in notes.splitlines() if "left out" in line)
    assert options.replace("'", "") in line
    assert reason in line


@pytest.mark.parametrize(
    ("launcher", "option"),
    [
        ("torchrun --nnodes 2 {} --nproc_per_node 4", "--numa-binding node"),
        ("deepspeed --num_gpus 4 {}", "--bind_cores_to_rank"),
        ("deepspeed --num_gpus 4 {}", "--bind_core_list 0-3"),
    ],
)
def test_what_may_change_the_speed_and_has_no_place_is_asked(launcher, option):
    asked, notes = remarks(imported(launcher.format(option)))
    assert f"has `{option}`, and trials start without it" in asked
    assert "left out" not in notes


@pytest.mark.parametrize(
    ("start", "wrapper"),
    [
        ("srun --label ./select_gpu --cores 7 python", "./select_gpu --cores 7"),
        ("srun /opt/site/bind srun --mpi=pmix python", "/opt/site/bind"),
        ("mpiexec -n 8 env A=1 bind.sh python", "bind.sh"),
        ("srun $STEP $IMAGE torchrun --nnodes 2 --nproc_per_node 4", "$STEP $IMAGE"),
    ],
)
def test_a_program_before_the_launcher_is_asked(start, wrapper):
    assert f"`{wrapper}` stands before the launcher, and trials run without it" in remarks(imported(start))[0]


@pytest.mark.parametrize(
    "start", ["/usr/bin/env A=/b", "timeout 9h /bin/bash -c 'exec", "time nohup", "mpirun -pernode"]
)
def test_what_only_starts_the_launcher_is_not_asked(start):
    text = f"#!/bin/bash\n{SLURM}{start} python {PROGRAM}" + "'\n" * start.count("'")
    assert "stands before" not in remarks(read_start(find_launch(text)))[0]


def test_the_options_of_sbatch_and_of_what_it_wraps_are_kept():
    text = (
        f"sbatch -N 2 -A me --ntasks-per-node=8 --gpus-per-node=8 --mem=0 --wrap='srun --mpi=pmix python {PROGRAM}'\n"
    )
    launch = find_launch(text)
    found = with_job(read_start(launch), text, launch)
    assert found.runner == {"kind": "slurm", "account": "me", "extra_lines": ["#SBATCH --mem=0"], "mpi": "pmix"}
    assert remarks(found)[0] == ""


def test_variables_that_srun_reads_stand_before_it_in_trials():
    found = imported("export SLURM_CPU_BIND=cores SRUN_CPUS_PER_TASK=9 OMP_NUM_THREADS=9\nsrun python")
    assert found.runner["environment"] == {"SLURM_CPU_BIND": "cores", "SRUN_CPUS_PER_TASK": "9"}
    assert found.workload["env"] == {"OMP_NUM_THREADS": "9"}


def test_a_value_that_the_shell_makes_is_asked():
    found = imported("srun --task-prolog=`pwd`/start.sh python")
    assert "srun_arguments" not in found.runner
    assert "runner.srun_arguments: srun has --task-prolog=`pwd`/start.sh: name the real value" in remarks(found)[0]


def test_an_srun_that_is_its_own_job_asks_for_the_runner():
    asked, _ = remarks(imported("srun -p gpu -A me --cpu-bind=none -N 2 --ntasks-per-node 4 python", ""))
    assert "--partition=gpu --account=me --cpu-bind=none: say where trials run" in asked


def test_a_binding_whose_value_is_not_known_is_asked():
    found = imported("mpiexec -n 8 --cpu-bind $BINDING python", PBS)
    assert "binding" not in found.runner
    assert "runner.binding: mpiexec has `--cpu-bind $BINDING`" in remarks(found)[0]


@pytest.mark.parametrize(
    ("start", "script"),
    [
        ("srun ./rank.sh", 'exec python "$@"'),
        ("srun bash rank.sh extra", 'shift; python "$@"'),
        ("apptainer exec i.sif ./rank.sh", 'export X=1\nsrun -n 8 python -u "$@"'),
    ],
)
def test_a_script_that_the_launcher_starts_is_followed_with_its_arguments(tmp_path, start, script):
    (tmp_path / "rank.sh").write_text(f"#!/bin/bash\n{script}\n")
    launch = find_launch(f"#!/bin/bash\n{SLURM}{start} {PROGRAM}\n", path=tmp_path / "job.sh")
    assert (launch.script, *launch.words) == tuple(PROGRAM.split())
    assert (launch.nodes, launch.devices_per_node) == (2, 4)
    assert launch.place == f"line 3, rank.sh line {2 + script.count(chr(10))}"


def test_a_script_that_starts_itself_ends(tmp_path):
    text = f"#!/bin/bash\nbash job.sh\npython {PROGRAM}\n"
    (tmp_path / "job.sh").write_text(text)
    assert find_launch(text, path=tmp_path / "job.sh").place == "line 3"


@pytest.mark.parametrize("prefix", ["env -u HOSTS A=b", "A=b env -u HOSTS time -p"])
def test_what_env_sets_is_kept_and_what_it_takes_away_is_asked(prefix):
    found = imported(f"srun {prefix} python" if prefix.startswith("env") else f"{prefix} srun python")
    assert found.workload["env"] == {"A": "b"}
    assert "`env -u HOSTS` stands before the launcher" in remarks(found)[0]


@pytest.mark.parametrize("account", ["project_462000999", "myth", "todoran", "changes", "queue1", "yourself"])
def test_a_word_that_begins_like_a_placeholder_is_none(account):
    assert imported("srun python", f"#SBATCH -A {account}\n{SLURM}").runner["account"] == account


@pytest.mark.parametrize(
    "account", ["CHANGE_ME", "your_account", "<account>", "xxxx", "project_XXX", "my_account", "TODO"]
)
def test_a_placeholder_is_asked(account):
    assert "account" not in imported("srun python", f"#SBATCH -A '{account}'\n{SLURM}").runner


def test_a_job_by_qsub_has_its_options_and_variables(tmp_path):
    (tmp_path / "job.pbs").write_text(f"#PBS -l select=1:ngpus=4\nmpiexec -n 8 -ppn 4 python {PROGRAM} --seed $SEED\n")
    text = "qsub -l select=2:ngpus=4 -v SEED=7 -A physics job.pbs"
    launch = find_launch(text, path=tmp_path / "submit.sh")
    found = with_job(read_start(launch), text, launch)
    assert launch.words[-2:] == ("--seed", "7")
    assert found.runner == {"kind": "pbs", "select": "ngpus=4", "project": "physics"}
    assert found.workload["env"] == {"SEED": "7"}


def test_gpus_of_a_task_are_named_and_variables_of_srun_without_a_job_left_out():
    assert (
        "sbatch has --gpus-per-task=1, left out"
        in remarks(imported("srun python", f"#SBATCH --gpus-per-task=1\n{SLURM}"))[1]
    )
    found = imported("export SLURM_CPU_BIND=cores\ntorchrun --nproc_per_node 4", "")
    assert "env" not in found.workload or not found.workload["env"]
    assert "SLURM_CPU_BIND, which runner slurm has as `environment`" in remarks(found)[1]


def test_a_size_that_sbatch_is_given_and_nobody_knows_is_left_open(tmp_path):
    (tmp_path / "job.sh").write_text(f"#SBATCH --ntasks-per-node=4 --gpus-per-node=4\nsrun python {PROGRAM}\n")
    launch = find_launch("sbatch --nodes=$1 job.sh", path=tmp_path / "submit.sh")
    assert (launch.nodes, launch.devices_per_node) == (None, 4)


# Where ranks are started by words that no table of programs has, on 2 nodes of 4 devices.
HEADS = {
    "slurm": "#SBATCH --nodes=2 --gpus-per-node=4\n",
    "slurm by ntasks": "#SBATCH --ntasks=8 --ntasks-per-node=4 --gres=gpu:4\n",
    "pbs": PBS,
    "sge": "#$ -l rt_F=2\n#$-cwd\n",
    "lsf": '#BSUB -n 8 -R "span[ptile=4]"\n#BSUB -gpu "num=4:mode=exclusive_process"\n',
    "oar": "#OAR -l /nodes=2/gpu=4,walltime=1:0:0\n",
    "flux": "# flux: -N 2 --gpus-per-node=4\n",
}
STAGE = "--zero-stage 2 --deepspeed --deepspeed_config ds.json"


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize(
    "start",
    [
        *("./wrap.sh python", "site-launch -x 3 python", "ibrun python", "ccc_mprun python", "prun python"),
        *(
            "aprun -n 8 -N 4 python",
            "ibrun -n 8 python",
            "jsrun -n2 -r1 -a4 -g4 ./wrap.sh python",
            "lrun -N2 -T4 python",
        ),
        *("jsrun --nrs 8 --rs_per_host 4 python", "flux run -N2 -n8 python", "mpiexec.hydra -n 8 -ppn 4 python"),
        *("mpirun --map-by ppr:4:node -np 8 python", "aprun -n $RANKS -N 4 python", "srun ./wrap.sh python"),
    ],
)
def test_an_unknown_word_starts_what_the_head_says_and_erases_nothing(head, start):
    found = imported(start, head)
    assert (found.nodes, found.devices_per_node) == (2, 4)
    assert "cluster.nodes" not in {question.path for question in found.questions}
    assert read_start(find_launch(f"#!/bin/bash\n{head}{start} {PROGRAM} {STAGE}\n")).plan["zero_stage"] == 2


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("mpirun -np 16 python", ["mpirun starts 16 ranks", "head 8"]),
        ("mpirun -pernode python", ["mpirun starts 1 ranks per node", "head 4"]),
        ("python", ["python starts 1 nodes", "head 2", "1 ranks per node", "head 4"]),
        ("uv run python", ["python starts 1 nodes", "head 2"]),
        ("torchrun --nproc_per_node 4", ["torchrun starts 1 nodes", "head 2"]),
        ("torchrun --nnodes 2 --nproc_per_node 8", ["torchrun starts 8 ranks per node", "head 4"]),
        ("torchrun --nnodes $N --nproc_per_node 4", ["torchrun has `--nnodes $N`", "4 ranks per node are known"]),
        ("torchrun $ARGS", ["torchrun starts what `$ARGS` says too"]),
        ("aprun -n 8 -N 4 python $LAUNCHER", ["`$LAUNCHER` says too", "2 nodes of 4 devices"]),
    ],
)
@pytest.mark.parametrize("head", ["slurm", "pbs", "sge", "lsf"])
def test_a_head_and_a_launcher_that_contradict_are_asked_once_with_both(head, start, told):
    found = imported(start, HEADS[head])
    [question] = [question for question in found.questions if question.path == "cluster.nodes"]
    assert all(word in question.text for word in told), question.text
    assert found.nodes is None


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("./wrap.sh python", (None, None)),
        ("mpirun -np 8 python", (None, None)),
        ("torchrun $ARGS", (None, None)),
        ("python $LAUNCHER", (None, None)),
        ("torchrun --nnodes 2 --nproc_per_node 4 --tee 3 $ARGS", (2, 4)),
        ("torchrun --nnodes 2 --nproc_per_node gpu", (2, None)),
        ("numactl -l python", (1, 1)),
        ("conda run -n env python", (1, 1)),
        ("mpirun_rsh -np 8 -ppn 4 python", (2, 4)),
    ],
)
def test_what_no_head_says_is_not_guessed(start, devices):
    found = imported(start, "")
    assert (found.nodes, found.devices_per_node) == devices


@pytest.mark.parametrize(
    ("lines", "start", "devices"),
    [
        ("--gpus-per-node=8", "srun --ntasks-per-node=8 python", (None, 8)),
        ("--gpus-per-node=8", "srun -N 2 --ntasks-per-node=8 python", (2, 8)),
        ("--gpus-per-node=8", "torchrun --nproc_per_node 8", (1, 8)),
        ("--gpus-per-node=8", "torchrun --nnodes $SLURM_NNODES --nproc_per_node 8", (None, 8)),
        ("--gpus-per-node=8 --gpus=16", "srun --ntasks-per-node=8 python", (2, 8)),
        ("--ntasks=16 --ntasks-per-node=8 --gres=gpu:8", "srun python", (2, 8)),
        ("--ntasks=1 --gres=gpu:8", "torchrun --nnodes $SLURM_NNODES --nproc_per_node 8", (1, 8)),
    ],
)
def test_nodes_that_no_line_of_slurm_says_are_no_fact(lines, start, devices):
    found = imported(start, f"#SBATCH {lines}\n")
    asked = [question for question in found.questions if question.path == "cluster.nodes"]
    assert (found.nodes if not asked else None, found.devices_per_node or 8) == devices
    assert bool(asked) == (None in devices)


@pytest.mark.parametrize(
    ("submitter", "ranks", "devices"),
    [
        ("python mason.py --num_nodes 4 --gpus 8", 8, (4, 8)),
        ("gantry run --replicas 4 --gpus 8", 32, (4, 8)),
        ("skylift --nodes 4 --gpus 8", 32, (4, 8)),
        ("skylift --nodes 4 --gpus 8", 8, (None, None)),
        ("skylift --nodes 4", 32, (None, None)),
    ],
)
def test_the_ranks_of_a_submitted_job_are_as_the_submitter_counts_them(submitter, ranks, devices):
    words = "train.py --model_name_or_path x/y --per_device_train_batch_size 1 --learning_rate 1 --output_dir o"
    found = read_start(find_launch(f"{submitter} -- accelerate launch --num_processes {ranks} {words}\n"))
    assert (found.nodes, found.devices_per_node) == devices
    assert any(submitter in text for text in (*found.notes, *(question.text for question in found.questions)))


@pytest.mark.parametrize("around", ["", "srun singularity exec --nv image.sif bash -c "])
def test_a_program_whose_place_is_held_is_asked_with_its_devices(around):
    words = "torchrun --standalone --nproc_per_node 4 /path/to/program --batch_size 9"
    text = f'#!/bin/bash\n#SBATCH --nodes=1 --gres=gpu:4\n{around}"{words}"\n' if around else words
    found = read_start(find_launch(text))
    assert (found.nodes, found.devices_per_node) == (1, 4)
    assert any("`/path/to/program` is a placeholder" in question.text for question in found.questions)


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("NNODES=2 NPROC_PER_NODE=4 swift sft", (2, 4)),
        ("export NPROC_PER_NODE=4\nswift sft", (1, 4)),
        ("NNODES=2 swift sft", (2, 1)),
        ("NPROC_PER_NODE=$GPUS swift sft", (1, None)),
        ("CUDA_VISIBLE_DEVICES=0 swift sft", (1, 1)),
        ("CUDA_VISIBLE_DEVICES=0,1 swift sft", (1, None)),
        ("NPROC_PER_NODE=4\nswift sft", (1, 1)),
        ("GPUS=8\nNPROC_PER_NODE=$GPUS megatron pt", (1, 8)),
    ],
)
def test_a_console_script_takes_its_ranks_from_variables(text, devices):
    launch = find_launch(f"{text} --model own\nswift infer --model own --external_plugins x.py\n")
    assert (launch.nodes, launch.devices_per_node) == devices
    assert launch.script.startswith("-m swift.cli.")
