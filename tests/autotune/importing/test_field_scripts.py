"""Launch scripts in the styles that teams use: each is read as bash would run it, or the import asks for what only the
user knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.export import export
from autotune.importing.found import ImportOptions
from autotune.importing.reading import imported
from tests.draws import few
from trainer.errors import BadInputError

FIELD = Path(__file__).with_name("field")


@dataclass(frozen=True, kw_only=True)
class Case:
    """The recipe expected of a script.

    `layout`: nodes, GPUs of a node, TP, PP, EP; `batch`: global, micro; `asks`: the hints of the errors that the import
    raises without `given`.
    """

    layout: tuple[int, int, int, int, int]
    batch: tuple[int, int]
    given: dict[str, str] = field(default_factory=dict)
    asks: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    last: tuple[str, ...] = ()  # words that the command ends with
    notes: tuple[str, ...] = ()
    expand: tuple[str, ...] = ()  # words that bash expands


CASES = {
    "pyxis_heredoc.sbatch": Case(
        layout=(16, 8, 2, 4, 8),
        batch=(256, 1),
        env={"NVTE_FUSED_ATTN": "1", "NCCL_IB_TIMEOUT": "22"},
        last=("--vocab-size", "32000"),
        notes=("it runs in a container", "which bursts do not run: module purge; module load gcc/12.2"),
    ),
    "torchrun_in_function.sh": Case(layout=(4, 8, 1, 1, 4), batch=(1024, 2), last=("--vocab-size", "151936")),
    "mpirun_job.sh": Case(
        layout=(4, 8, 1, 1, 8),
        batch=(128, 2),
        given={"NUM_NODES": "4"},
        asks=("--nodes N",),
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
        given={"@": "-t 2 -n 2 -- --fork-x 1"},
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
        given={"CKPT_ROOT": "/ckpt"},
        asks=("--set CKPT_ROOT=VALUE",),
        last=("--train-iters", "1000"),
        notes=("CMD was left out: it is calculated from what only the job knows",),
    ),
    "bridge_with_retries.sh": Case(
        layout=(1, 8, 1, 1, 8),
        batch=(512, 1),
        given={"NUM_GPUS": "8"},
        env={"HF_HOME": "/cache/hf"},
        last=('dataset.blend=[["/data/a"],null]',),
    ),
    "writes_its_scripts.sh": Case(
        layout=(2, 8, 1, 1, 1), batch=(64, 1), setup=("module load cuda", "cd /opt/megatron"), last=("--mock-data",)
    ),
    "env_set_a.sh": Case(
        layout=(2, 8, 1, 1, 8),
        batch=(256, 1),
        env={
            "TP_SIZE": "1",
            "PP_SIZE": "1",
            "EP_SIZE": "8",
            "MBS": "1",
            "NCCL_IB_SL": "1",
            "NVTE_FLASH_ATTN": "1",
            "MEGATRON_PATH": "/opt/megatron-lm",
            "DATA_PATH": "0.7 /data/web_text_document 0.3 /data/code_text_document",
            "OUT": "/results/qwen3",
        },
        last=(
            "--save",
            "/results/qwen3/ckpt",
            "--load",
            "/results/qwen3/ckpt",
            "--save-interval",
            "500",
            "--vocab-size",
            "151936",
        ),
        notes=("the script's arguments ($@) are not known",),
    ),
    "pet_env.sh": Case(
        layout=(4, 8, 1, 1, 8),
        batch=(512, 1),
        setup=("cd /workspace/Megatron-LM", "ulimit -l unlimited"),
        env={"NCCL_DEBUG": "WARN"},
        last=("--lr=4.2e-4", "--log-interval=1"),
    ),
    "pmix_bash_c.sbatch": Case(
        layout=(8, 8, 2, 2, 8),
        batch=(256, 1),
        setup=("cd /shared",),
        env={"MEGATRON": "/shared/Megatron-LM"},
        last=("--mock-data", "--train-iters", "2000", "--lr", "3e-4"),
        notes=("and so will bursts", "TRITON_CACHE_DIR was left out"),
    ),
    "loops_and_files.sh": Case(
        layout=(1, 8, 1, 2, 8),
        batch=(256, 2),
        last=("--mock-data", "--tokenizer-type", "NullTokenizer", "--num-workers", "2", "--vocab-size", "50304"),
    ),
    "mpirun_ranks.sh": Case(
        layout=(4, 8, 4, 1, 8), batch=(256, 1), env={"NCCL_IB_HCA": "mlx5_0,mlx5_1"}, last=("--save", "/ckpt/mixtral")
    ),
    "hostfile_ssh.sh": Case(
        layout=(2, 8, 1, 1, 8),
        batch=(512, 2),
        env={"NCCL_DEBUG": "INFO"},
        last=("--train-iters", "100", "--lr", "4e-4"),
        notes=("ssh starts it on other machines",),
    ),
    "functions_and_subst.sh": Case(
        layout=(1, 8, 1, 1, 8),
        batch=(512, 4),
        last=("--wandb-exp-name", "olmoe-$(date +%Y%m%d-%H%M%S)"),
        expand=("logs/olmoe-$(date +%Y%m%d-%H%M%S)/tb", "olmoe-$(date +%Y%m%d-%H%M%S)"),
    ),
    "submits_stdin.sh": Case(
        layout=(2, 8, 1, 1, 1),
        batch=(128, 1),
        last=("--save", "/ck/$SLURM_JOB_ID"),
        expand=("/ck/$SLURM_JOB_ID",),
    ),
    "in_tmux.sh": Case(
        layout=(1, 8, 1, 1, 1), batch=(64, 1), setup=("cd /opt/megatron",), last=("--train-iters", "10")
    ),
    "sweep.sh": Case(
        layout=(1, 8, 2, 1, 8),
        batch=(128, 1),
        given={"tp": "2", "ep": "8", "mbs": "1"},
        last=("--train-iters", "20"),
    ),
    "bridge_uv.sbatch": Case(
        layout=(2, 8, 1, 1, 8),
        batch=(512, 1),
        env={"UV_CACHE_DIR": "/lustre/uv"},
        last=("checkpoint.save=/lustre/ckpt/$SLURM_JOB_ID",),
        expand=("checkpoint.save=/lustre/ckpt/$SLURM_JOB_ID",),
        notes=("logger.wandb_api_key was left out", "and so will bursts"),
    ),
}


def read(name: str, given: dict[str, str]) -> Any:
    return _read(name, tuple(given.items()))


@cache
def _read(name: str, given: tuple[tuple[str, str], ...]) -> Any:
    return imported(ImportOptions(file=str(FIELD / name), gpu="h100", given=dict(given)))


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
    assert (trainer.setup, trainer.env, trainer.expand) == (case.setup, case.env, case.expand)
    assert trainer.command[len(trainer.command) - len(case.last) :] == case.last
    assert all(any(said in note for note in found.found.notes) for said in case.notes), found.found.notes
    assert all(len(note) < 300 for note in found.found.notes)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.asks])
def test_what_only_running_it_could_tell_is_asked_by_the_name_that_the_user_knows(name: str) -> None:
    with pytest.raises(BadInputError) as asked:
        read(name, {})
    assert {problem.hint for problem in asked.value.problems} == set(CASES[name].asks)


@pytest.mark.parametrize("name", few(CASES, 6))
def test_the_slurm_script_of_an_export_says_the_same_again(name: str, tmp_path: Path) -> None:
    recipe = read(name, CASES[name].given).recipe
    (tmp_path / "job.sbatch").write_text(export(recipe, "slurm"))
    again = imported(ImportOptions(file=str(tmp_path / "job.sbatch"), gpu="h100", name=recipe.name)).recipe
    assert recipe.trainer is not None
    assert again.trainer is not None
    assert (again.architecture, again.training, again.cluster) == (recipe.architecture, recipe.training, recipe.cluster)
    assert again.trainer.setup == recipe.trainer.setup
    if recipe.trainer.kind == "megatron-lm":
        demanded = {"CUDA_DEVICE_MAX_CONNECTIONS": 1}  # by Megatron-LM's parser, with TP before Blackwell
        assert again.parallelism == recipe.parallelism
        assert demanded | again.knobs == demanded | recipe.knobs
        env = {name: value.removesuffix(f":${{{name}}}") for name, value in recipe.trainer.env.items()}
        assert (again.trainer.command, again.trainer.env) == (recipe.trainer.command, env)


def test_a_command_keeps_what_chooses_its_python() -> None:
    for name in ("functions_and_subst.sh", "bridge_uv.sbatch"):
        recipe = read(name, CASES[name].given).recipe
        assert recipe.trainer is not None
        assert recipe.trainer.command[:4] == ("uv", "run", "--no-sync", "python")
        assert "uv" not in {each.name for each in read(name, CASES[name].given).found.started.launchers}


def test_a_bridge_line_has_the_sequence_length_of_its_flag_and_what_every_recipe_sets(tmp_path: Path) -> None:
    text = (FIELD / "bridge_uv.sbatch").read_text().replace("--seq_length 4096", "--seq_length=8192")
    (tmp_path / "b.sbatch").write_text(text)
    recipe = imported(ImportOptions(file=str(tmp_path / "b.sbatch"), gpu="h100")).recipe
    assert recipe.training.seq_length == 8192
    assert recipe.knob("moe_grouped_gemm") is True


def test_the_nodes_of_torchruns_own_variables_are_asked_for_where_they_are_not_known(tmp_path: Path) -> None:
    (tmp_path / "p.sh").write_text(
        (FIELD / "pet_env.sh")
        .read_text()
        .replace(": ${PET_NNODES:=4}\n", "")
        .replace("$(( PET_NNODES * PET_NPROC_PER_NODE * 16 ))", "512")
    )
    with pytest.raises(BadInputError) as asked:
        imported(ImportOptions(file=str(tmp_path / "p.sh"), gpu="h100"))
    assert [problem.hint for problem in asked.value.problems] == ["--nodes N"]


def test_a_python_program_is_refused_with_what_to_import_instead(tmp_path: Path) -> None:
    (tmp_path / "launch.py").write_text("import nemo_run as run\nrun.run(recipe)\n")
    with pytest.raises(BadInputError, match="a Python program, which is not read"):
        imported(ImportOptions(file=str(tmp_path / "launch.py"), gpu="h100"))


def test_every_script_of_the_folder_has_its_case() -> None:
    inner = {"env_of_mpirun.sh", "inner_of_calls.sh", "cluster_env.sh", "hostfile", "extra_args.txt", "more_args.txt"}
    assert {path.name for path in FIELD.iterdir()} - inner == set(CASES)
