"""`meshtune import --capture`: real bash scripts run with stand-ins, which start no training."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from command_lab import run_meshtune
from jobs import processes_where, wait_for

from meshtune.runners.programs.capture import sandbox
from meshtune.runners.programs.capture.session import Captured, capture
from meshtune.runners.programs.capture.stand_in import is_training, options_end
from meshtune.runners.programs.dialects.call import launch_of
from meshtune.runners.programs.dialects.job_variables import slurm_variables
from meshtune.tuner.specs.document import parse_yaml
from meshtune.tuner.specs.read import read_spec

pytestmark = pytest.mark.slow

SHAPES = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 51200"
REST = "--micro-batch-size 2 --global-batch-size 64 --bf16 --tensor-model-parallel-size 2"
run = partial(run_meshtune, Path())


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Started for real, it calls another launcher.
    (tmp_path / "pretrain_gpt.py").write_text("import os\nos.execlp('torchrun', 'torchrun', 'started.py')\n")
    return tmp_path


def captured(folder: Path, script: str, *words: str, time_limit_s: float = 60.0, **given: str) -> Captured:
    (folder / "launch.sh").write_text(script)
    found = capture(("bash", "launch.sh", *words), given, time_limit_s)
    assert not any("started.py" in call.words for call in found.calls)
    return found


def imported(*words: str) -> dict:
    done = run("import", "--capture", *words)
    assert done.code == 0, done.err
    return parse_yaml(done.out)


def test_a_sourced_helper_a_function_and_srun_bash_c_make_a_spec_that_holds(folder):
    (folder / "common.sh").write_text('start() { srun -N $SLURM_NNODES -l bash -c "$LAUNCHER pretrain_gpt.py $*"; }\n')
    (folder / "launch.sh").write_text(
        f"""#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gres=gpu:h100:8
source ./common.sh
export NCCL_DEBUG=INFO MY_API_TOKEN=hush
HEAD=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
LAUNCHER="torchrun --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes $SLURM_NNODES --rdzv_endpoint $HEAD:1234"
start {SHAPES} {REST} --data-path $DATA --lr $(python -c 'print(3e-4)')
"""
    )
    done = run("import", "--capture", "--set", "DATA=/d", "--cluster", "dgx-h100", "--", "bash", "launch.sh")
    assert done.code == 0
    assert "note: start 1: the value of MY_API_TOKEN is not copied: it may be a secret\n" in done.err
    spec, space = read_spec(parse_yaml(done.out), None)
    assert (spec.cluster.nodes, spec.global_batch_size, spec.baseline.tp, spec.baseline.dp) == (2, 64, 2, 8)
    assert spec.baseline in space
    options = spec.workload.options
    assert options["directory"] == str(folder)
    assert options["arguments"] == ["--vocab-size 51200", "--data-path /d", "--lr 0.0003"]
    assert options["env"] == {"NCCL_DEBUG": "INFO", "DATA": "/d"}
    assert "the value of MY_API_TOKEN is not copied" in done.out


def test_a_here_document_is_read_as_it_was_when_the_program_would_have_started(folder):
    (folder / "launch.sh").write_text(
        f"""for stage in 1 2; do
cat > ds.json <<EOF
{{"zero_optimization": {{"stage": $stage}}, "bf16": {{"enabled": true}}}}
EOF
deepspeed --num_nodes 1 --num_gpus 4 pretrain_gpt.py {SHAPES} --micro-batch-size $stage --deepspeed \\
    --deepspeed_config ds.json
done
rm ds.json
"""
    )
    asked = run("import", "--capture", "--", "bash", "launch.sh")
    assert asked.code == 2
    assert "choose one by --start N:\n  1  deepspeed --num_nodes 1" in asked.err
    for number in (1, 2):
        document = imported("--start", str(number), "--", "bash", "launch.sh")
        assert document["baseline"]["zero_stage"] == document["baseline"]["micro_batch_size"] == number
    assert "there is no start 3" in run("import", "--capture", "--start", "3", "--", "bash", "launch.sh").err


def test_a_variable_that_nothing_sets_is_asked_for(folder):
    script = f': "${{N:=4}}"\ntorchrun --nproc_per_node $N pretrain_gpt.py {SHAPES} {REST} --lr $LR ${{EXTRA:-}}\n'
    (folder / "launch.sh").write_text(script)
    done = run("import", "--capture", "--", "bash", "launch.sh")
    assert (done.code, done.out) == (2, "")
    assert "reads LR, which nothing sets" in done.err
    assert "--set LR=VALUE" in done.err
    document = imported("--set", "LR=1e-4", "--", "bash", "launch.sh")
    assert "--lr 1e-4" in document["workload"]["arguments"]


def test_what_fails_on_this_machine_is_told(folder):
    (folder / "launch.sh").write_text(f"cd /opt/none\nmodule load x\ntorchrun none.py {SHAPES} {REST}\n")
    done = run("import", "--capture", "--", "/bin/bash", "launch.sh")
    assert done.code == 0
    for told in (
        "line 1: cd: /opt/none: No such file",
        "line 2: module load x: status 127, command not found",
        "none.py is not in ",
    ):
        assert told in done.err
        assert told in done.out
    document = parse_yaml(done.out)
    assert document["name"] == "launch"
    # What the folder would be is asked, and not written.
    assert document["workload"]["directory"] is None
    assert document["open_questions"][0].startswith("workload.directory: bash told: launch.sh: line 1: cd: /opt/none")


@pytest.mark.parametrize(
    "start",
    [
        "torchrun pretrain_gpt.py --num-layers 2",
        "exec torchrun pretrain_gpt.py --num-layers 2",
        "PATH=$VENV:$PATH; torchrun pretrain_gpt.py --num-layers 2",
        "$VENV/torchrun pretrain_gpt.py --num-layers 2",
        "PATH=$VENV:$PATH; exec torchrun pretrain_gpt.py --num-layers 2",
        "$VENV/python -m torch.distributed.run pretrain_gpt.py --num-layers 2",
        "PATH=$VENV:$PATH srun sh -c 'torchrun pretrain_gpt.py --num-layers 2'",
        "mpirun -np 2 --mca btl tcp -x A=1 python -u pretrain_gpt.py",
        "srun -n2 --label python pretrain_gpt.py config.yaml",
    ],
)
def test_no_way_to_start_a_training_starts_one(folder, start):
    """VENV: as after `source venv/bin/activate`, real programs that stand before ours in PATH."""
    virtual = folder / "venv"
    virtual.mkdir()
    (virtual / "python").symlink_to(sys.executable)
    (virtual / "torchrun").write_text(f"#!{sys.executable}\nimport runpy, sys\nrunpy.run_path(sys.argv[1])\n")
    (virtual / "torchrun").chmod(0o755)
    found = captured(folder, start, VENV=str(virtual))
    (call,) = found.calls
    assert "pretrain_gpt.py" in call.words
    assert launch_of(call, "start 1").script == "pretrain_gpt.py"
    assert "meshtune-capture" not in str(call.environment)


def test_helpers_run_for_real(folder):
    (folder / "helper.py").write_text("import json, sys; print(json.dumps(sys.argv[1:]))\n")
    script = 'A=$(python helper.py --x 1); B=$(echo "print(7)" | python3 -); python --version > version\n'
    found = captured(folder, script + 'torchrun x.py --a "$A" --b "$B" $(< version)')
    assert found.calls[0].words[:-1] == ("x.py", "--a", '["--x", "1"]', "--b", "7", "Python")


def test_what_nothing_stands_in_for_is_refused_with_the_next_command(folder):
    def refused(script: str) -> str:
        (folder / "launch.sh").write_text(script)
        done = run("import", "--capture", "--", "bash", "launch.sh")
        assert (done.code, done.out) == (2, "")
        return done.err

    assert "write `torchrun` in a copy" in refused("/opt/conda/none/bin/torchrun pretrain_gpt.py --num-layers 2\n")
    told = refused("touch ran\n/usr/bin/srun -N 2 python x.py\n")
    assert "/usr/bin/srun, which a stand-in for srun cannot answer; nothing was run" in told
    assert not (folder / "ran").exists()
    assert "job.sh is not there. Next: make the file" in refused("sbatch --nodes=2 job.sh\n")
    assert "axolotl is started with c.yml, which cannot be read here" in refused(
        "accelerate launch -m axolotl.cli.train c.yml"
    )
    assert "with paths of its own" in refused(f"docker run --rm img bash -c 'torchrun pretrain_gpt.py {SHAPES}'")
    assert "ended with status 3: no data" in refused("echo no data >&2; exit 3")


def test_a_launcher_that_does_not_end_is_ended_with_all_it_started(folder):
    began = time.monotonic()
    found = captured(folder, "setsid sleep 312.5 &\ntorchrun x.py --a; tail -f /dev/null", time_limit_s=3)
    assert time.monotonic() - began < 20
    assert len(found.calls) == 1
    assert "did not answer within 3 s" in found.end
    assert not list(processes_where(lambda one: "312.5" in (one / "cmdline").read_text()))


def test_the_launcher_has_no_network(folder):
    found = captured(
        folder, "torchrun x.py $(python -c 'import socket; print([n for _, n in socket.if_nameindex()])')\n"
    )
    if not any("had the network" in note for note in found.notes):
        assert found.calls[0].words == ("x.py", "['lo']")


@pytest.mark.parametrize(
    ("start", "devices"),
    [
        ("torchrun --nnodes=2 --nproc-per-node=4 t.py", (2, 4)),
        ("torchrun t.py", (1, 1)),
        ("torchrun --nproc_per_node gpu t.py", (1, None)),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 t.py", (None, 8)),
        ("deepspeed t.py", (None, None)),
        ("srun -N2 --ntasks-per-node=8 python t.py", (2, 8)),
        ("srun -n 16 -N 2 python t.py", (2, 8)),
        ("srun -N 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc_per_node 8 t.py", (2, 8)),
        ("mpirun -np 16 -npernode 8 python t.py", (2, 8)),
        ("mpirun -np 16 python t.py", (None, None)),
        ("accelerate launch --num_machines 2 --num_processes=16 t.py", (2, 8)),
        ("accelerate launch --num_processes 4 t.py", (1, 4)),
        ("composer -n 8 --world_size 16 t.py c.yaml", (2, 8)),
        ("composer -n 8 t.py c.yaml", (1, 8)),
        ("mpiexec --envall -n 24 -ppn 12 -d 16 python3 -Wignore t.py", (2, 12)),
    ],
)
def test_devices_are_those_that_the_launcher_says(folder, start, devices):
    (call,) = captured(folder, start).calls
    launch = launch_of(call, "start 1")
    assert (launch.nodes, launch.devices_per_node) == devices


def test_the_directives_of_the_script_become_the_runner(folder):
    (folder / "env").mkdir()
    (folder / "env" / "cluster.sh").write_text("DATA_ROOT=/data\n")
    script = f"""#!/bin/bash
#SBATCH --partition=gpu --nodes=2 --gpus-per-node=a100:4 --time=00:10:00
source "$(dirname "$0")/env/cluster.sh"
srun python pretrain_gpt.py {SHAPES} {REST} --data-path $DATA_ROOT/x
"""
    (folder / "launch.sh").write_text(script)
    document = imported("--", "bash", "launch.sh")
    assert document["runner"] == {"kind": "slurm", "partition": "gpu", "gres": "gpu:a100"}
    # 10 minutes, less what Slurm's own limit has more than the trial's.
    assert document["trial"] == {"start_s": 300, "time_limit_cap_s": 480}
    assert "--data-path /data/x" in document["workload"]["arguments"]


def test_a_container_s_command_is_read_and_the_container_asked_about(folder):
    done = run_script(
        folder, f"srun -N 2 --ntasks-per-node 4 apptainer exec --nv i.sif python pretrain_gpt.py {SHAPES} {REST}"
    )
    assert done.code == 0, done.err
    assert (
        "open question: workload.python: start 1: the program runs in a container (`apptainer exec --nv i.sif`)"
        in done.err
    )
    (question,) = parse_yaml(done.out)["open_questions"]
    assert question.startswith("workload.python: ")
    assert parse_yaml(done.out)["workload"]["python"] is None


def run_script(folder: Path, script: str):
    (folder / "launch.sh").write_text(script)
    return run("import", "--capture", "--", "bash", "launch.sh")


@pytest.mark.parametrize(
    "start", ["python ./deepy.py train.py -d configs small", "python deepy.py train.py -d configs small.yml"]
)
def test_the_files_of_a_folder_that_the_words_name_are_recorded(folder, start):
    (folder / "configs").mkdir()
    (folder / "configs" / "small.yml").write_text("deepspeed_config_file: ds.json\n")
    (folder / "ds.json").write_text("{}")
    (call,) = captured(folder, start).calls
    assert call.files == {start.split()[-1]: "deepspeed_config_file: ds.json\n", "ds.json": "{}"}
    assert launch_of(call, "").launcher == ("python",)
    assert (launch_of(call, "").nodes, launch_of(call, "").devices_per_node) == (None, None)


@pytest.mark.parametrize(
    ("words", "under", "training"),
    [
        ("-c print(1)", True, False),
        ("--version", True, False),
        ("-", True, False),
        ("-m pip install x", True, False),
        ("train.py", False, False),
        ("train.py", True, True),
        ("-u -W ignore train.py --num-layers=2", False, True),
        ("-m torch.distributed.launch t.py", False, True),
        ("-mtorch.distributed.run t.py", False, True),
        ("deepy.py train.py config.yml", False, True),
        ("tools/preprocess_data.py --input x", False, False),
    ],
)
def test_which_pythons_start_a_training(words, under, training):
    assert is_training(words.split(), under) is training


@pytest.mark.parametrize(
    ("tool", "words", "command"),
    [
        ("srun", "-N2 -n 4 --label --cpu-bind=none --mpi pmix -- a b", "a b"),
        ("srun", "--kill-on-bad-exit=1 --container-image x.sqsh -K a", "a"),
        ("mpirun", "-np 2 --mca pml ob1 -x A --bind-to none a -x", "a -x"),
    ],
)
def test_where_the_command_begins(tool, words, command):
    assert words.split()[options_end(tool, words.split()) :] == command.split()


def test_slurm_s_variables_are_those_of_the_directives():
    found = slurm_variables("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node a100:8\n")
    asked = ("SLURM_NNODES", "SLURM_NTASKS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_NODELIST")
    assert [found[name] for name in asked] == ["4", "32", "8", "node[0-3]"]
    assert slurm_variables("echo --nodes=2") == {}


def test_slurm_writes_tasks_and_processors_of_each_node_in_its_own_form():
    found = slurm_variables(
        "#SBATCH --nodes=4 --ntasks-per-node=8 --cpus-per-task=9 --gpus-per-node=8 --partition=gpu --array=3-5"
    )
    assert found["SLURM_TASKS_PER_NODE"] == "8(x4)"
    assert found["SLURM_JOB_CPUS_PER_NODE"] == "72(x4)"
    assert (found["SLURM_JOB_PARTITION"], found["SLURM_ARRAY_TASK_ID"]) == ("gpu", "3")
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert slurm_variables("#SBATCH --nodes=1 --ntasks-per-node=4\n")["SLURM_TASKS_PER_NODE"] == "4"


@pytest.mark.parametrize(
    ("head", "hosts", "said"),
    [
        ("select=3:ncpus=64:mpiprocs=4:ngpus=4", "node0 node0 node0 node0 node1", ("3", "4", "12")),
        ("select=2:ncpus=64", "node0 node1", ("2", "1", "2")),
        ("nodes=2:ppn=3", "node0 node0 node0 node1", ("2", "3", "6")),
    ],
)
def test_pbs_s_variables_and_its_file_of_hosts_are_those_of_the_head(folder, head, hosts, said):
    script = f"""#!/bin/bash
#PBS -l {head}
#PBS -q big
cd $PBS_O_WORKDIR
mpiexec python x.py $PBS_NUM_NODES $PBS_NUM_PPN $(wc -l < $PBS_NODEFILE) $PBS_QUEUE $(head -5 $PBS_NODEFILE)
"""
    (call,) = captured(folder, script).calls
    assert call.cwd == str(folder)
    assert call.words[1:5] == (*said, "big")
    assert " ".join(call.words[5:]).startswith(hosts)
    assert not any(name.startswith(("PBS_", "NCPUS")) for name in call.changed)


@pytest.mark.parametrize("mode", [0o755, 0o644])
def test_srun_searches_the_current_folder_after_path(folder, mode):
    (folder / "inner.sh").write_text("export RANK=$OMPI_COMM_WORLD_RANK\npython pretrain_gpt.py --size $SLURM_NTASKS\n")
    (folder / "inner.sh").chmod(mode)
    found = captured(folder, "#SBATCH --nodes=2\nsrun -N 2 --ntasks=8 inner.sh\n")
    assert found.calls[0].words == ("pretrain_gpt.py", "--size", "8")
    assert (found.unset, found.failed) == ((), ())


@pytest.mark.parametrize(
    ("line", "unset"),
    [
        ("D=lib; source $D/parts.sh; torchrun x.py ${PARTS[@]} ${#PARTS[@]}", ()),
        ("EMPTY=(); torchrun x.py ${EMPTY[@]} ${OTHER:-} ${OTHER+a} '$OTHER' \\$OTHER", ()),
        ("f() { local INNER=1; torchrun x.py $INNER; }; f", ()),
        ('export LIBS=$LIBS:/opt; [ -z "$ASKED" ] || exit 1; echo shown $SHOWN; torchrun x.py', ()),
        ("A=$(awk '{print $NF}' <<< 'a b'); torchrun x.py \"$(awk '{print $NF}' <<< 'a b')\"", ()),
        ("cat > f <<'E'\n$LITERAL\nE\ntorchrun x.py", ()),
        ("cat > f <<E\n{'stage': '$STAGE'}\nE\ntorchrun x.py", ("STAGE",)),
        ("if false; then LR=1; fi; torchrun x.py --lr $LR", ("LR",)),
        ("f() { torchrun x.py $lower ${BRACED}; }; f", ("BRACED", "lower")),
        ("X=$(echo $DEEP | head -1); torchrun x.py $X", ("DEEP",)),
        ("DATA=$DATA; torchrun x.py $DATA", ("DATA",)),
        ("srun bash -c 'torchrun x.py --lr $LR'", ("LR",)),
        ("set -u; exec &> log; torchrun x.py $LR", ("LR",)),
    ],
)
def test_bash_itself_says_what_is_read_and_not_set(folder, line, unset):
    (folder / "lib").mkdir()
    (folder / "lib" / "parts.sh").write_text("PARTS=(1 /d/text)\n")
    assert captured(folder, f"{line}\n").unset == unset


def test_a_script_of_sh_and_one_of_another_folder_are_asked_too(folder, monkeypatch):
    (folder / "launch.sh").write_text("torchrun x.py --lr $LR\n")
    (folder / "other").mkdir()
    monkeypatch.chdir(folder / "other")
    for shell in ("sh", "bash"):
        assert capture((shell, str(folder / "launch.sh")), {}).unset == ("LR",)


@pytest.mark.parametrize(
    "lines",
    [
        "set -e\nno-such load x 2> /dev/null\n",
        "set -e\nexec &> log\nno-such load x\n",
        "set -e\nf() { cd /opt/none; }\nf > log 2>&1\n",
        "set -eo pipefail\nsource ./none.sh 2> /dev/null\n",
        "set -ex\nno-such load x\n",
        "[ -d /opt/none ] || exit 3\n",
    ],
)
def test_what_stopped_a_launcher_is_named_wherever_its_errors_went(folder, lines):
    done = run_script(folder, f"#!/bin/bash\n{lines}torchrun pretrain_gpt.py {SHAPES} {REST}\n")
    assert (done.code, done.out) == (2, "")
    assert "stopped at launch.sh: " in done.err
    assert any(f"{named}: status" in done.err for named in ("no-such load x", "cd /opt/none", "/dev/null", "exit 3"))
    assert "_meshtune" not in done.err
    # The next command works.
    assert "meshtune import launch.sh, which reads" in done.err
    assert run("import", "launch.sh").code == 0


def test_reading_is_not_named_as_the_way_out_where_it_refuses_too(folder):
    done = run_script(folder, "set -e\nno-such load x\nfor n in 1 2; do run_the_training $n; done\n")
    assert "stopped at launch.sh: line 2: no-such load x: status 127, command not found" in done.err
    assert "meshtune import launch.sh" not in done.err


def test_a_wrapper_in_a_container_is_run_and_a_small_program_beside_it_is_no_training(folder):
    (folder / "wrap.sh").write_text('#!/bin/bash\nexport RANK=$SLURM_PROCID\npython -u "$@"\n')
    (folder / "wrap.sh").chmod(0o755)
    done = run_script(
        folder,
        f"""#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=8 --gpus-per-node=8
srun singularity exec -B $PWD img.sif ./wrap.sh pretrain_gpt.py {SHAPES} {REST}
singularity exec img.sif python3 tools/stats.py out.log
""",
    )
    assert done.code == 0, done.err
    assert parse_yaml(done.out)["workload"]["script"] == "pretrain_gpt.py"
    assert "2 nodes with 8 devices" in done.err
    assert "the program runs in a container (`singularity exec -B" in done.err


def tree(*folders: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for folder in folders
        for path in (folder, *folder.rglob("*"))
    }


# What a launcher does to what is not its own; D is a folder beside it.
HARM = """#PBS -l select=1
cd $PBS_O_WORKDIR; rm -rf $D/* ~/kept; mkdir -p $D/new logs; touch ~/new; echo y >> ~/kept
echo x > made.json; mv kept.json other.json
curl -O http://localhost/x; git clone http://localhost/x; pip install --no-index none; kill -9 $VICTIM
pkill -f 'sleep 61.75'
/bin/rm -rf $D/kept $SHARED; find $D -type f -delete; perl -e 'unlink "$ENV{D}/kept"'; : > $D/kept
> /dev/shm/made-by-capture
python3 -c 'import os, shutil; shutil.rmtree(os.environ["D"]); os.kill(int(os.environ["VICTIM"]), 9)'
python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("../daemon.sock")'
/usr/bin/env -i setsid /bin/sleep 62.75 &
/bin/sh -c '/bin/mv ~/kept /usr/local/made-by-capture; /bin/ln -sf x /etc/made-by-capture'; /bin/kill -9 $VICTIM
scp a b:; rsync -a . $D; dd if=/dev/zero of=$D/zero count=1; docker run x; chmod 000 $D; mktemp
"""


def test_a_launcher_changes_nothing_and_leaves_nothing_behind(tmp_path):
    home, beside, temporary = tmp_path / "home", tmp_path / "beside", tmp_path / "tmp"
    for folder in (home, beside, temporary):
        folder.mkdir()
        (folder / "kept").write_text("kept")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "kept.json").write_text("{}")
    (tmp_path / "work" / "launch.sh").write_text(f"{HARM}torchrun pretrain_gpt.py {SHAPES} {REST}\n")
    (tmp_path / "work" / "pretrain_gpt.py").touch()
    shared = Path("/dev/shm", f"kept-{os.getpid()}")
    shared.write_text("kept")
    with subprocess.Popen(["sleep", "61.75"]) as victim, socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "daemon.sock"))
        daemon.listen()
        daemon.setblocking(False)
        before = tree(tmp_path)
        given = {"HOME": str(home), "D": str(beside), "VICTIM": str(victim.pid), "SHARED": str(shared)}
        code = "from meshtune.tuner.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "import", "--capture", "--", "bash", "launch.sh"],
            env={**os.environ, **given, "TMPDIR": str(temporary)}, cwd=tmp_path / "work",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        with pytest.raises(BlockingIOError):
            daemon.accept()
        assert victim.poll() is None
        victim.kill()
    assert done.returncode == 0, done.stderr
    assert "not done, as it reaches beyond the launcher: curl -O" in done.stderr
    assert parse_yaml(done.stdout)["workload"]["directory"] == str(tmp_path / "work")
    assert shared.read_text() == "kept"
    shared.unlink()
    after = tree(tmp_path)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {str(tmp_path / "tmp")}
    assert not list(Path("/dev/shm").glob("made-by-capture*"))
    assert not list(processes_where(lambda one: "62.75" in (one / "cmdline").read_text()))


def test_where_the_kernel_makes_no_sandbox_nothing_is_run(folder):
    without = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    around = ("unshare", "--user", "--map-root-user", "sh", "-c", without, "sh")
    if subprocess.run([*around, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel makes no namespace at all")
    (folder / "launch.sh").write_text(f"touch ran\ntorchrun pretrain_gpt.py {SHAPES} {REST}\n")
    command = (sys.executable, "-c", "from meshtune.tuner.cli.main import main; main()", "import", "--capture", "--")
    done = subprocess.run([*around, *command, "bash", "launch.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "this kernel makes no sandbox" in done.stderr
    assert "nothing was run. Next: meshtune import launch.sh, which reads the script" in done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_s_launcher_writes_in_a_folder_of_a_group(tmp_path):
    """As on a cluster: a user's folder belongs to a project's group, and the one above it to root."""
    shared, scratch = tmp_path / "shared", tmp_path / "scratch"
    for path in (shared, shared / "logs", scratch, *(scratch / name for name in ("layers", "memory", "records"))):
        path.mkdir()
        os.chown(path, 65533, 65533 if scratch in (path, path.parent) else 54321)
        path.chmod(0o2770)
    for path in (tmp_path, *list(tmp_path.parents)[:-2]):
        path.chmod(path.stat().st_mode | 0o755)
    program = scratch / "sandbox.py"
    program.write_text(Path(sandbox.__file__).read_text())
    user = ("setpriv", "--reuid", "65533", "--regid", "65533", "--groups", "54321")
    words = ("bash", "-c", "mkdir logs/x && echo 1 > logs/x/y && cat logs/x/y && rm -r logs && echo done")
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if os.access(path, os.X_OK)), "")
    if not python:
        pytest.skip("no Python that every user may run")
    done = subprocess.run(
        [*user, python, "-SE", str(program), str(scratch), *words], cwd=shared,
        env={"PATH": os.defpath, "HOME": str(shared)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1\ndone\n", "")
    assert [path.name for path in shared.rglob("*")] == ["logs"]


def test_a_training_in_the_background_is_waited_for(folder):
    script = "nohup torchrun x.py --a > log 2>&1 &\n(sleep 1; torchrun x.py --a) > log 2>&1 &\n"
    assert len(captured(folder, script).calls) == 2


def test_a_folder_that_the_launcher_makes_itself_is_asked_for(folder):
    done = run_script(folder, f"mkdir run\ncp *.py run\ncd run\ntorchrun pretrain_gpt.py {SHAPES} {REST}\n")
    assert done.code == 0
    assert f"workload.directory: the script makes {folder}/run itself" in done.err


def test_the_stand_in_imports_nothing_of_ours():
    from meshtune.runners.programs.capture import stand_in

    # -S: without site-packages.
    done = subprocess.run([sys.executable, "-SE", stand_in.__file__, "scontrol"], env={**os.environ}, check=False)
    assert done.returncode == 0


JOB = f"torchrun --nnodes 2 --nproc_per_node 4 pretrain_gpt.py {SHAPES} {REST} --lr $LR"
HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4 --partition=big\n"


@pytest.mark.parametrize(
    ("script", "partition"),
    [
        ("sbatch --export=ALL,LR=2 -p own job.sh", "own"),
        ("ID=$(sbatch --parsable job.sh 2); sbatch -d afterok:$ID --wrap 'echo done'", "big"),
        (f"LR=2 sbatch <<'E'\n{HEAD}{JOB}\nE", "big"),
        ("export LR=2; sbatch -N2 --gpus-per-node=4 -pbig --wrap \"$(sed -n '$p' job.sh)\"", "big"),
        ("export LR=2; salloc -N 2 --gpus-per-node 4 -p big bash job.sh", "big"),
    ],
)
def test_the_script_of_a_job_is_run_with_the_variables_of_the_job(folder, script, partition):
    """It submits itself again, which is no second training."""
    (folder / "job.sh").write_text(f"{HEAD}sbatch job.sh\nLR=${{LR:-$1}}; DEVICES=$(nvidia-smi -L | wc -l)\n{JOB}\n")
    done = run_script(folder, f"{script}\n")
    assert done.code == 0, done.err
    document = parse_yaml(done.out)
    assert (document["runner"]["kind"], document["runner"]["partition"]) == ("slurm", partition)
    assert "extra_lines" not in document["runner"]
    assert "--lr 2" in document["workload"]["arguments"]
    assert "starts on 2 nodes with 4 devices each" in done.err


def test_the_script_of_a_pbs_job_is_run_with_its_hosts(folder):
    words = "torchrun --nnodes $(wc -l < $PBS_NODEFILE) --nproc_per_node $(nvidia-smi -L | wc -l) pretrain_gpt.py"
    done = run_script(folder, f"qsub -l select=3:ngpus=4 -q big <<'E'\n#!/bin/bash\n{words} {SHAPES} {REST}\nE\n")
    assert done.code == 0, done.err
    assert parse_yaml(done.out)["runner"] == {"kind": "pbs", "queue": "big", "select": "ngpus=4"}
    assert "starts on 3 nodes with 4 devices each" in done.err


@pytest.mark.parametrize(
    "counts",
    [
        "nvidia-smi -L | wc -l",
        "nvidia-smi --list-gpus | grep -c GPU",
        "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
        "nvidia-smi --query-gpu=index --format=csv | tail -n +2 | wc -l",
        "rocm-smi --showid | grep -c 'GPU\\['",
        "python -c 'import torch; print(torch.cuda.device_count())'",
    ],
)
def test_devices_are_counted_as_on_a_node_of_the_job(folder, counts):
    work = f"N=$({counts})\nBATCH=$((64 / N))\ntorchrun --nproc_per_node $N x.py --size $BATCH\n"
    (call,) = [one for one in captured(folder, f"#SBATCH --gpus-per-node=8\n{work}").calls if one.tool == "torchrun"]
    assert call.words == ("--nproc_per_node", "8", "x.py", "--size", "8")
    if "nvidia" in counts and not shutil.which("nvidia-smi"):
        done = run_script(folder, work)
        assert "Next: the same command with --set SLURM_GPUS_ON_NODE=DEVICES" in done.err
        found = captured(folder, work, SLURM_GPUS_ON_NODE="4")
        assert [one.words[1] for one in found.calls if one.tool == "torchrun"] == ["4"]


def test_a_variable_that_the_script_failed_to_work_out_is_not_asked_for(folder):
    done = run_script(folder, "N=$(grep -c GPU none)\nBATCH=$((64 / N))\ntorchrun x.py --size $BATCH\n")
    assert (done.code, done.out) == (2, "")
    assert "the script works out BATCH itself, which failed here: bash told: " in done.err
    assert "--set" not in done.err


def test_addresses_of_a_node_are_some(folder):
    script = """#SBATCH --nodes=2 --cpus-per-task=6 --ntasks-per-node=2
torchrun x.py $(hostname) $(hostname -I) $(getent hosts node1 | awk '{print $1}') $(nproc) \\
    $(ip -4 addr show ib0 | grep -oP '(?<=inet )[0-9.]+') $(scontrol show hostnames | wc -l)
"""
    (call,) = captured(folder, script).calls
    assert call.words == ("x.py", "node0", "10.0.0.1", "10.0.0.1", "12", "10.0.0.1", "2")


@pytest.mark.parametrize("name", ["ds.conf", "ds.json", "ds"])
def test_a_file_of_any_name_is_there(folder, name):
    (folder / "conf").mkdir()
    (folder / "conf" / name).write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    start = f"deepspeed --num_nodes 1 --num_gpus 4 pretrain_gpt.py {SHAPES} --micro-batch-size 2 --deepspeed"
    (folder / "launch.sh").write_text(f"{start} --deepspeed_config conf/{name}\n")
    for words in (("--capture", "--", "bash", "launch.sh"), ("launch.sh",)):
        done = run("import", *words)
        assert done.code == 0, done.err
        assert parse_yaml(done.out)["baseline"]["zero_stage"] == 2


def test_the_model_that_a_configuration_names_by_its_folder_is_read(folder):
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"num_hidden_layers": 3}')
    (folder / "sft.yaml").write_text(f"model_name_or_path: {folder}/model\n")
    (call,) = captured(folder, "trl sft --config sft.yaml\n").calls
    assert call.files[f"{folder}/model/config.json"] == '{"num_hidden_layers": 3}'


def test_what_is_started_behind_a_prefix_that_is_not_here_is_read(folder):
    (folder / "prepare.py").write_text("print(3)\n")
    done = run_script(
        folder,
        f"""set -e
module load cuda
N=$(uv run python prepare.py)
numactl --membind=0-3 uv run torchrun --nproc_per_node $N pretrain_gpt.py {SHAPES} {REST.replace("64", "60")}
""".replace("--tensor-model-parallel-size 2", ""),
    )
    assert done.code == 0, done.err
    assert "starts on 1 nodes with 3 devices each" in done.err
    for told in ("`numactl --membind=0-3` stands before", "`uv run` stands before", "module load cuda: status 127"):
        assert told in done.err


def test_a_machine_has_the_tools_of_one_maker(folder):
    script = "#SBATCH --gpus-per-node=4\nif command -v rocm-smi; then N=$(rocm-smi -i | wc -l); X=amd; "
    script += "else N=$(nvidia-smi -L | wc -l); X=nvidia; fi\ntorchrun x.py $X $N\n"
    assert captured(folder, script).calls[-1].words == ("x.py", "nvidia", "4")


def test_a_log_that_cannot_be_written_is_no_question(folder):
    log = "LOG=/no/such/folder/log\necho a >> $LOG\necho b >> $LOG\n"
    done = run_script(folder, f"{log}torchrun --nproc_per_node 4 pretrain_gpt.py {SHAPES} {REST}\n")
    assert done.code == 0, done.err
    assert done.err.count("/no/such/folder/log: No such file") == 1
    assert "open_questions" not in parse_yaml(done.out)


@pytest.mark.parametrize("end", ["failure", "nothing", *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)], ids=str)
def test_a_folder_is_the_same_however_a_capture_ends(tmp_path, end):
    """The user's folder, its times included, and nothing in the temporary one."""
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    (work / "package").mkdir(parents=True)
    temporary.mkdir()
    (work / "package" / "__init__.py").write_text("value = 1\n")
    (work / "package" / "helper.py").write_text("value = 2\n")
    (work / "train.py").write_text("import package.helper\n")
    lasting = isinstance(end, signal.Signals)
    # Of this case alone, beside others of another worker.
    nap = f"63.{end:02d}" if lasting else "63"
    (work / "launch.sh").write_text(
        "echo started > log.txt; mkdir -p out/checkpoints\n"
        'python -c \'import package.helper; open("made.json", "w").write("{}")\'\n'
        + (f"sleep {nap}\n" if lasting else "exit 3\n" if end == "failure" else "torchrun train.py\n")
    )
    before = tree(work)
    code = "from meshtune.tuner.cli.main import main; main()"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, "-c", code, "import", "--capture", "--", "bash", "launch.sh"],
        cwd=work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as process:  # fmt: skip
        sleeps = lambda one: nap in (one / "cmdline").read_text().split("\0")  # noqa: E731
        if lasting:
            wait_for(lambda: processes_where(sleeps), 30)
            process.send_signal(end)
        assert process.wait(60) == (128 + end if lasting else 2 if end == "failure" else 0)
    assert tree(work) == before
    assert list(temporary.iterdir()) == []
    assert not processes_where(sleeps)
