"""Launchers are removed from the front of a command, and tell the size of the cluster."""

from __future__ import annotations

import shlex

import pytest

from trainer.launch_scripts.launchers import Sizes, peel, sizes, slurm_sizes

TRAIN = "train.py --lr 1"

CASES = [
    (
        "torchrun --nproc_per_node 8 --nnodes=2 --master_addr h train.py --lr 1",
        f"python {TRAIN}",
        Sizes(nodes=2, gpus_per_node=8),
    ),
    ("torchrun --standalone --nproc-per-node=4 train.py --lr 1", f"python {TRAIN}", Sizes(nodes=1, gpus_per_node=4)),
    ("torchrun --nproc-per-node gpu -m team.train --lr 1", "python -m team.train --lr 1", Sizes()),
    (
        "python3 -u -m torch.distributed.run --nproc_per_node 8 train.py --lr 1",
        f"python {TRAIN}",
        Sizes(gpus_per_node=8),
    ),
    ("python -u train.py --lr 1", f"python -u {TRAIN}", Sizes()),
    (
        "srun -N2 -l --ntasks-per-node 8 --container-image=a.sqsh python train.py --lr 1",
        f"python {TRAIN}",
        Sizes(nodes=2, tasks_per_node=8),
    ),
    ("srun --nodes 4 torchrun --nproc-per-node 8 train.py --lr 1", f"python {TRAIN}", Sizes(nodes=4, gpus_per_node=8)),
    (
        "mpirun --allow-run-as-root -np 16 -npernode 8 --mca btl tcp,self python train.py --lr 1",
        f"python {TRAIN}",
        Sizes(nodes=2, gpus_per_node=8, tasks=16),
    ),
    (
        "accelerate launch --num_processes 16 --num_machines 2 --multi_gpu train.py --lr 1",
        f"python {TRAIN}",
        Sizes(nodes=2, gpus_per_node=8, tasks=16),
    ),
    (
        "nohup numactl --cpunodebind=0 nsys profile -o out --stats=true python train.py --lr 1",
        f"python {TRAIN}",
        Sizes(),
    ),
    ("uv run --no-sync python train.py --lr 1", f"python {TRAIN}", Sizes()),
    ("torchrun --nproc_per_node 4 --use_env train.py --lr 1", f"python {TRAIN}", Sizes(gpus_per_node=4)),
    ("torchrun --nproc_per_node 4 --no_python python train.py --lr 1", f"python {TRAIN}", Sizes(gpus_per_node=4)),
    ("torchrun --nproc_per_node 4 --new-switch train.py --lr 1", f"python {TRAIN}", Sizes(gpus_per_node=4)),
    ("srun --exact -lu -O -N 2 python train.py --lr 1", f"python {TRAIN}", Sizes(nodes=2)),
    ("srun -lN 2 -pgpu -J torchrun --overcommit python train.py --lr 1", f"python {TRAIN}", Sizes(nodes=2)),
    ("mpirun -allow-run-as-root -np 4 python train.py --lr 1", f"python {TRAIN}", Sizes(tasks=4)),
    (
        "python -W ignore -X dev -uB -m torch.distributed.run --nproc_per_node 8 train.py --lr 1",
        f"python {TRAIN}",
        Sizes(gpus_per_node=8),
    ),
    ("time A=1 torchrun --nproc_per_node 8 train.py --lr 1", f"python {TRAIN}", Sizes(gpus_per_node=8)),
    ("singularity exec --nv -B /a:/b image.sif env A=1 python train.py --lr 1", f"python {TRAIN}", Sizes()),
]


@pytest.mark.parametrize(("line", "command", "said"), CASES)
def test_a_launcher_comes_off_with_what_it_says(line: str, command: str, said: Sizes) -> None:
    words = shlex.split(line)
    start = peel(words)
    rank = [*(start.python or "").split(), *(words[index] for index in start.command)]
    assert (shlex.join(rank), sizes(start.peeled)) == (command, said)


def test_every_word_of_the_line_is_in_a_launcher_or_in_the_command() -> None:
    for line, _, _ in CASES:
        words = shlex.split(line)
        start = peel(words)
        starters = [word for each in start.peeled for word in each.words]
        kept = [*starters, *start.within, *(words[index] for index in start.command)]
        assert kept == [word for word in words if word != "A=1"], line


def test_variables_that_a_launcher_sets_are_found() -> None:
    start = peel(shlex.split("mpirun -np 2 -x A=1 -x B env C=3 python train.py"))
    assert dict(start.env) == {"A": "1", "C": "3"}


@pytest.mark.parametrize(
    "words", ["srun --export=ALL,A=1,B,C=3", "srun --export ALL,A=1,C=3", "apptainer exec --env A=1,C=3 img"]
)
def test_variables_between_commas_are_found(words: str) -> None:
    assert dict(peel(shlex.split(f"{words} python train.py")).env) == {"A": "1", "C": "3"}


@pytest.mark.parametrize(
    ("words", "gpu", "count"),
    [
        ("--gres=gpu:h100:8", "h100", 8),
        ("--gres gpu:4", None, 4),
        ("--gpus-per-node=b200:8", "b200", 8),
        ("--gpus-per-node 8 --constraint=h200", "h200", 8),
    ],
)
def test_slurm_words_name_the_gpus_of_a_node(words: str, gpu: str | None, count: int) -> None:
    said = slurm_sizes(shlex.split(words))
    assert (said.gpu, said.gpus_per_node) == (gpu, count)


@pytest.mark.parametrize(
    ("given", "within"),
    [
        ("conda run -n moe python train.py", "conda run --no-capture-output -n moe"),
        ("conda run --live-stream -n moe python train.py", "conda run --live-stream -n moe"),
        ("uv run python train.py", "uv run"),
    ],
)
def test_conda_hands_on_what_a_rank_prints_at_once(given: str, within: str) -> None:
    assert peel(given.split()).within == tuple(within.split())
