"""Writes a job script for sbatch that can be submitted as it is, for `--to slurm`: one rank per task.

srun starts the ranks, not torchrun: Slurm binds and ends each task, and a dead rank ends the job. RANK, WORLD_SIZE and
the like, which torch.distributed reads, are made from SLURM_*.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from autotune.export.script import expanded_words, exports, first_line, prepared, rank_command, setup
from autotune.export.target import Context, Target
from trainer.frameworks import framework_of
from trainer.launch_scripts.jobs import job_lines
from trainer.launch_scripts.writing import array, comment
from trainer.launchers.slurm.argv import unless_theirs
from trainer.recipe import Recipe
from trainer.recipe.launching import SlurmSettings, slurm_settings

WORKDIR, QUOTED_PWD = "--container-workdir", '"$PWD"'
RANK = (
    "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID "
    'LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE; exec "$@"'
)


def render(recipe: Recipe, context: Context) -> str:
    """Returns the script. Raises BadInputError for an unknown version of the framework."""
    command = rank_command(recipe, context)
    settings = slurm_settings(recipe.burst.launcher)
    prefix = f"{shlex.join(settings.prefix)} " if settings.prefix else ""
    apart = bool(
        settings.container_image or settings.prefix
    )  # the lines that prepare the shell run inside the container
    rank = "\n".join([*(prepared(recipe) if apart else ()), RANK])
    lines = [
        first_line(recipe),
        *_resources(recipe),
        "#",
        *(comment(line) for line in (f"{recipe.name}: a Slurm job written by moe-autotune.", *context.origin)),
        *_only_the_user_knows(recipe, on_mock_data=command.on_mock_data),
        *(comment(f"NOT EXPRESSED: {each}") for each in command.lost),
        *(() if apart else setup(recipe)),
        "",
        "set -euo pipefail",
        *exports(command.variables, expanded_words(recipe)),
        'export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}',
        "export MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}",
        "",
        *array("COMMAND", command.argv, expanded_words(recipe)),
        "",
        *_container(settings),
        "",
        'srun --kill-on-bad-exit=1 ${CONTAINER_ARGS[@]+"${CONTAINER_ARGS[@]}"} \\',
        f'  {prefix}bash -c {shlex.quote(rank)} rank "${{COMMAND[@]}}" "$@"',
    ]
    return "\n".join(lines) + "\n"


def _resources(recipe: Recipe) -> Iterator[str]:
    """Yields the #SBATCH lines, which must precede the first command."""
    per_node = recipe.cluster.gpus_per_node or recipe.hardware.gpus_per_node
    yield f"#SBATCH --job-name={shlex.quote(recipe.name)}" if recipe.name.isprintable() else "#SBATCH --job-name=tuned"
    yield f"#SBATCH --nodes={recipe.cluster.nodes}"
    yield f"#SBATCH --ntasks-per-node={per_node}"
    if not recipe.hardware.is_cpu:
        yield f"#SBATCH --gpus-per-node={per_node}"
    theirs = job_lines(slurm_settings(recipe.burst.launcher))
    # the whole node: --exclusive takes its cores and GPUs, --mem=0 its memory
    yield from (f"#SBATCH {word}" for word in [*unless_theirs(["--exclusive", "--mem=0"], theirs), *theirs])
    yield "#SBATCH --output=%x-%j.log"


def _container(settings: SlurmSettings) -> Iterator[str]:
    """Yields the lines that define the container of `burst.launcher`; the variables CONTAINER and MOUNTS override
    it."""
    workdir = f"{WORKDIR}="
    of_pyxis = [word for word in settings.srun if word.startswith(("--container-", "--no-container-"))]
    folder = next((word.removeprefix(workdir) for word in of_pyxis if word.startswith(workdir)), None)
    further = shlex.join(word for word in of_pyxis if not word.startswith(workdir))
    if settings.container_image:
        yield f"CONTAINER=${{CONTAINER:-{shlex.quote(settings.container_image)}}}"
    if settings.container_mounts:
        yield f"MOUNTS=${{MOUNTS:-{shlex.quote(','.join(settings.container_mounts))}}}"
    yield "CONTAINER_ARGS=()"
    yield 'if [ -n "${CONTAINER:-}" ]; then'
    yield '  CONTAINER_ARGS=(--container-image "$CONTAINER" --container-mounts "${MOUNTS:-$PWD:$PWD}")'
    yield f"  CONTAINER_ARGS+=({WORKDIR} {shlex.quote(folder) if folder else QUOTED_PWD})"
    if further:
        yield f"  CONTAINER_ARGS+=({further})"
    yield "fi"


def _only_the_user_knows(recipe: Recipe, *, on_mock_data: bool) -> Iterator[str]:
    yield "#"
    yield "# Fill in, as options of sbatch or as #SBATCH lines above:"
    settings = slurm_settings(recipe.burst.launcher)
    if settings.allocate is None:
        yield "#   --account=ACCOUNT --partition=PARTITION --time=HH:MM:SS, where your cluster asks for them"
    default = "that below" if settings.container_image or settings.prefix else "the shell's environment"
    yield f"#   CONTAINER=IMAGE [MOUNTS=FROM:TO,...]  run it in a container (pyxis); default {default}"
    if on_mock_data:
        yield "#   data, tokenizer, schedule, checkpoints: it trains 50 steps on mock data; arguments after the"
        yield "#     script's name are passed on, and the last value of a flag wins"
        yield f"#   the folder of {framework_of(recipe).title}: submit it from there"
    else:
        yield "# The trainer's own command is unchanged, its data and checkpoints included; submit it from the folder"
        yield "# where that command starts. Arguments after the script's name are passed on."
    if recipe.cluster.nodes > 1:
        yield "#   NCCL_SOCKET_IFNAME, NCCL_IB_HCA: where NCCL does not find the network by itself"


TARGET = Target(name="slurm", render=render, framework=framework_of)
