"""Checks with Megatron-Core itself, without a GPU, whether a layout builds and how much memory its hottest rank needs.

The dry run is a process of its own (`trainer.engines.megatron.dry_run`): this one never imports torch, and reports a
crash there as a message. Its result is compared with the closed form of the same recipe.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Any

from trainer.engines.megatron.substitutions import CANNOT_KNOW, substituted, substitutes
from trainer.errors import BadInputError, Problem, ToolError
from trainer.estimate.candidates import one
from trainer.estimate.memory.estimate import memory_of
from trainer.extras import refuse_without_megatron
from trainer.interpreter import module_command, with_packages
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of

GIB = 2**30
MODULE = "trainer.engines.megatron.dry_run"
STATE = ("weights", "gradients", "master_weights", "optimizer")  # parts that dry run and closed form both count
DEADLINE_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The place and reason of a dry run's early end, in the words of the error."""

    phase: str  # process groups, configuration, model, optimizer or step
    error: str  # the exception's name
    message: str
    where: str  # line of Megatron-Core that was running; empty if none was


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """The memory of one pipeline rank by part, GiB; parts that the run did not reach are absent.

    `peak_gib` is only a rough figure.
    """

    pp_rank: int
    rank: int  # global rank that was built: the first of that pipeline rank
    world_size: int
    refused: Ended | None  # Megatron-Core refused the layout: it does not build
    # the run reached something that fake tensors cannot show, which says nothing about the layout
    stopped: Ended | None
    parameters: dict[str, int]  # numbers of dense and of expert parameters
    by_part_gib: dict[str, float]
    closed_form_gib: dict[str, float]  # the closed form's figures for the same parts and substituted knobs
    difference_pct: float | None  # excess of the parts' sum over the closed form's; None if a part was not reached
    peak_gib: float
    peak_phase: str
    microbatches: int
    seconds: float
    stand_ins: list[dict[str, Any]]  # knobs that ran at other values: each with knob, asked, ran and why
    cannot_know: tuple[str, ...] = CANNOT_KNOW


def hottest_rank(recipe: Recipe) -> int:
    """Returns the pipeline rank that needs most memory by estimate."""
    return int(memory_of(one(recipe)).hottest[0])


def dry_run(recipe: Recipe, *, pp_rank: int) -> DryRun:
    """Builds one rank of the recipe's world and runs a step of it in a child process.

    Raises BadInputError if there is no such pipeline rank or GPTModel cannot build the model, ToolError if the child
    crashed or did not end within `DEADLINE_S`.
    """
    _refuse(recipe, pp_rank)
    refuse_without_megatron("a dry run")
    answer = _answer(json.dumps({"recipe": recipe.model_dump(mode="json"), "pp_rank": pp_rank}))
    measured = {part: size / GIB for part, size in answer["bytes"].items()}
    table = memory_of(one(recipe.replace(substitutes(recipe)))).by_part
    closed = {part: float(table[part][0, pp_rank]) for part in STATE}
    return DryRun(
        pp_rank=pp_rank,
        rank=answer["rank"],
        world_size=recipe.world_size,
        refused=Ended(**answer["refused"]) if answer["refused"] else None,
        stopped=Ended(**answer["stopped"]) if answer["stopped"] else None,
        parameters=answer["parameters"],
        by_part_gib=measured,
        closed_form_gib=closed,
        difference_pct=_difference_pct(measured, closed),
        peak_gib=answer["peak_bytes"] / GIB,
        peak_phase=answer["peak_phase"],
        microbatches=answer["microbatches"],
        seconds=answer["seconds"],
        stand_ins=substituted(recipe),
    )


def _refuse(recipe: Recipe, pp_rank: int) -> None:
    if recipe.architecture.hybrid_pattern:
        raise BadInputError(
            Problem(
                where=f"{recipe.name}: model",
                what=f"GPTModel cannot build its layers: {recipe.architecture.hybrid}",
                hint="estimate it without --dry-run",
            )
        )
    if not 0 <= pp_rank < layout_of(recipe).pp:
        raise BadInputError(
            Problem(
                where="--pp-rank",
                what=f"there is no pipeline rank {pp_rank}",
                hint=f"the recipe has {layout_of(recipe).pp}, counted from 0",
            )
        )


def _difference_pct(measured: dict[str, float], closed: dict[str, float]) -> float | None:
    if set(STATE) - measured.keys():
        return None
    return 100 * (sum(measured[part] for part in STATE) / sum(closed.values()) - 1)


def _answer(question: str) -> dict[str, Any]:
    try:
        child = subprocess.run(
            module_command(MODULE),
            env={**with_packages(os.environ), "PYTHONWARNINGS": "ignore"},
            input=question,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"the dry run did not end within {DEADLINE_S:.0f} s",
            hint="fewer layers per rank, or fewer ranks, take less; estimate without --dry-run needs no second",
        ) from None
    if child.returncode != 0:
        raise ToolError(f"the dry run ended {_end(child.returncode)}: {_last_line(child.stderr)}", hint=_hint(child))
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer


def _end(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _hint(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode == -signal.SIGKILL or "MemoryError" in child.stderr:
        return "the machine ran out of memory: the dry run needs some GiB"
    if "ModuleNotFoundError" in child.stderr or "ImportError" in child.stderr:
        return "`moe-autotune doctor` says what is installed"
    return "this does not affect the layout; the estimate without --dry-run is valid"
