"""Launch scripts in the styles that are found in the field: each is read as bash would run it, or asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.importing.found import Asked
from autotune.importing.reading import imported
from trainer.errors import BadInputError

FIELD = Path(__file__).with_name("field")


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a script says: layout as (nodes, GPUs of a node, TP, PP, EP), batch as (global, micro). `asks`: hints where
    nothing is `given`."""

    layout: tuple[int, int, int, int, int]
    batch: tuple[int, int]
    given: dict[str, str] = field(default_factory=dict)
    asks: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    last: tuple[str, ...] = ()  # words that the command ends with
    notes: tuple[str, ...] = ()


CASES = {
    "pyxis_heredoc.sbatch": Case(
        layout=(16, 8, 2, 4, 8),
        batch=(256, 1),
        env={"NVTE_FUSED_ATTN": "1", "NCCL_IB_TIMEOUT": "22"},
        last=("--vocab-size", "32000"),
        notes=("it runs in a container", "not done in it: module purge; module load gcc/12.2"),
    ),
    "torchrun_in_function.sh": Case(layout=(4, 8, 1, 1, 4), batch=(1024, 2), last=("--vocab-size", "151936")),
    "mpirun_job.sh": Case(
        layout=(4, 8, 1, 1, 8),
        batch=(128, 2),
        given={"NUM_NODES": "4"},
        asks=("--set NUM_NODES=VALUE",),
        env={
            "MEGATRON_DIR": "/opt/megatron",
            "PYTHONPATH": "/opt/megatron:${PYTHONPATH}",
            "NCCL_DEBUG": "WARN",
            "NCCL_IB_HCA": "mlx5",
        },
        last=("--distributed-backend", "nccl"),
    ),
    "options_by_getopts.sh": Case(
        layout=(2, 8, 2, 1, 1),
        batch=(256, 1),
        given={"@": "-t 2 -n 2 --fork-x 1"},
        asks=("--set '@=…' with the arguments that the script is started with, --set '@=' where there are none",),
        last=("--fork-x", "1"),
    ),
    "calls_inner.sbatch": Case(
        layout=(4, 8, 1, 2, 8),
        batch=(512, 1),
        setup=("source /opt/venvs/mcore/bin/activate", "cd /opt/Megatron-LM"),
        last=("--train-iters", "10"),
    ),
    "case_and_eval.sh": Case(
        layout=(1, 8, 4, 1, 2), batch=(256, 1), given={"1": "big"}, last=("--tokenizer-type", "NullTokenizer")
    ),
    "docker_line.sh": Case(
        layout=(1, 8, 1, 1, 8), batch=(256, 4), env={"NCCL_DEBUG": "INFO"}, notes=("it runs in a container",)
    ),
    "ssh_loop.sh": Case(
        layout=(4, 8, 1, 1, 8),
        batch=(512, 1),
        setup=("cd /data/Megatron-LM", "source /data/venv/bin/activate"),
        env={"NCCL_SOCKET_IFNAME": "bond0"},
        notes=("ssh starts it on other machines",),
    ),
    "command_in_a_variable.sbatch": Case(
        layout=(8, 8, 2, 1, 8),
        batch=(512, 1),
        last=("--train-iters", "1000"),
        notes=("--save ${CKPT_ROOT:?set it}/run1 stays", "CMD was left out: python -u -m torch.distributed.run"),
    ),
    "bridge_with_retries.sh": Case(
        layout=(1, 8, 1, 1, 8),
        batch=(512, 1),
        given={"NUM_GPUS": "8"},
        asks=("--set NUM_GPUS=VALUE",),
        env={"HF_HOME": "/cache/hf"},
        last=('dataset.blend=[["/data/a"],null]',),
    ),
    "writes_its_scripts.sh": Case(
        layout=(2, 8, 1, 1, 1), batch=(64, 1), setup=("module load cuda", "cd /opt/megatron"), last=("--mock-data",)
    ),
}


def read(name: str, given: dict[str, str]) -> Any:
    return imported(Asked(file=str(FIELD / name), gpu="h100", given=given))


@pytest.mark.parametrize("name", CASES)
def test_a_script_of_the_field_is_read_as_bash_runs_it(name: str) -> None:
    case = CASES[name]
    found = read(name, case.given)
    recipe = found.recipe
    trainer, layout, training = recipe.trainer, recipe.parallelism, recipe.training
    assert trainer is not None
    assert case.layout == (
        *(recipe.cluster.nodes, recipe.cluster.gpus_per_node, layout.tensor_model_parallel_size),
        *(layout.pipeline_model_parallel_size, layout.expert_model_parallel_size),
    )
    assert case.batch == (training.global_batch_size, training.micro_batch_size)
    assert (trainer.setup, trainer.env) == (case.setup, case.env)
    assert trainer.command[len(trainer.command) - len(case.last) :] == case.last
    assert all(any(said in note for note in found.found.notes) for said in case.notes), found.found.notes
    assert all(len(note) < 300 for note in found.found.notes)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.asks])
def test_what_only_running_it_could_tell_is_asked_by_the_name_that_the_user_knows(name: str) -> None:
    with pytest.raises(BadInputError) as asked:
        read(name, {})
    assert {problem.hint for problem in asked.value.problems} == set(CASES[name].asks)


def test_every_script_of_the_folder_has_its_case() -> None:
    inner = {"env_of_mpirun.sh", "inner_of_calls.sh"}
    assert {path.name for path in FIELD.iterdir()} - inner == set(CASES)
