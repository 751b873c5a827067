"""A dry run: the real model, DDP, optimizer and schedule of Megatron-Core for one rank, on fake tensors, in this
process. `python -m trainer.engines.megatron.dry_run` reads {"recipe", "pp_rank"} on stdin and writes one JSON document
to stdout; `trainer.dry_run` starts it. Bytes are those of one pipeline rank, whose tensor, context and data ranks hold
as many."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from trainer.engines.megatron.substitutions import substitutes
from trainer.recipe import Recipe
from trainer.recipe.layout import layout_of, stages_of
from trainer.recipe.rules.precision import STATE_DTYPES

PROCESS_GROUPS, CONFIGURATION, MODEL, OPTIMIZER, STEP = (
    "process groups",
    "configuration",
    "model",
    "optimizer",
    "step",
)


class NotFollowed(Exception):
    """The dry run reached something that fake tensors cannot show; that says nothing about the layout."""


class Account:
    """The record of the run so far, kept however it ends: the phase, and the live bytes that each part added."""

    def __init__(self) -> None:
        from trainer.engines.megatron.live_bytes import LiveBytes

        self.phase = PROCESS_GROUPS
        self.bytes: dict[str, int] = {}
        self.live = LiveBytes()
        self.parameters = {"dense": 0, "experts": 0}
        self._before = 0

    def enter(self, phase: str) -> None:
        self.phase = self.live.phase = phase

    def made(self, part: str) -> None:
        """Records how much the live bytes grew since the last part as this part's."""
        self.bytes[part] = self.live.live - self._before
        self._before = self.live.live


def run(recipe: Recipe, *, pp_rank: int) -> dict[str, Any]:
    """Runs one pipeline rank on fake tensors; returns its document: parameters, bytes by part, and the peak.

    `refused` has an error of Megatron's, `stopped` something that a dry run cannot follow; neither is raised.
    """
    from trainer.engines.megatron.fake import first_rank_of

    start, account = time.perf_counter(), Account()
    refused = stopped = None
    rank = first_rank_of(recipe, pp_rank)
    try:
        _through_all_phases(recipe.replace(substitutes(recipe)), rank, account)
    except Exception as error:
        ended = {"phase": account.phase, "error": type(error).__name__, "message": str(error).strip()}
        if _is_ours(error):
            stopped = ended | {"where": _where(error)}
        else:
            refused = ended | {"where": _where(error)}
    return {
        "pp_rank": pp_rank,
        "rank": rank,
        "refused": refused,
        "stopped": stopped,
        "parameters": account.parameters,
        "bytes": account.bytes,
        "peak_bytes": account.live.peak,
        "peak_phase": account.live.peak_phase,
        "microbatches": microbatches_of(recipe, pp_rank),
        "seconds": time.perf_counter() - start,
    }


def microbatches_of(recipe: Recipe, pp_rank: int) -> int:
    """Returns the number of micro batches to run: the most that this rank ever has in flight, and one more, since
    further ones only repeat that. Interleaved schedules take whole groups. Source: Megatron-Core
    `get_pp_rank_microbatches`."""
    now, ahead = layout_of(recipe), layout_of(recipe).pp - pp_rank - 1
    if now.vpp == 1:
        return int(min(recipe.num_microbatches, ahead + 2))
    group = recipe.knob("microbatch_group_size_per_vp_stage") or now.pp
    chunks = 2 * ahead + (now.vpp - 1) * group + 2
    return int(min(recipe.num_microbatches, group * math.ceil(chunks / (now.vpp * group))))


def _through_all_phases(recipe: Recipe, rank: int, account: Account) -> None:
    from trainer.engines.megatron.cpu import import_uncompiled, megatron_on_cpu

    import_uncompiled()
    from megatron.core import parallel_state
    from megatron.core.optimizer import get_megatron_optimizer

    from trainer.engines.megatron.fake import AS_ON_GPUS, create_state, fake_process_groups, fake_tensors
    from trainer.engines.megatron.model import build_chunks, in_ddp, trainable

    with megatron_on_cpu(), fake_process_groups(recipe, rank=rank):
        account.enter(CONFIGURATION)
        configs = _configs(recipe)
        with fake_tensors(), account.live.counting():
            account.enter(MODEL)
            bare = build_chunks(recipe, configs.transformer, local=AS_ON_GPUS)
            account.parameters = _counted(bare)
            account.made("weights")
            chunks = in_ddp(configs, bare)
            account.made("gradients")
            account.enter(OPTIMIZER)
            optimizer = get_megatron_optimizer(configs.optimizer, chunks, use_gloo_process_groups=False)
            account.made("master_weights")
            create_state(optimizer)
            account.made("optimizer")
            account.enter(STEP)
            model = trainable(configs, chunks, optimizer)
            _send_even_shapes(recipe, configs.transformer, rank)
            _step(recipe, model, microbatches_of(recipe, parallel_state.get_pipeline_model_parallel_rank()))
            model.release()


def _configs(recipe: Recipe) -> Any:
    """Returns Megatron's configurations.

    The precision-aware optimizer is turned on after Megatron's check for Transformer Engine, whose Adam
    `fake.AdamOfShapes` replaces. Raises NotFollowed if grouped experts would need biases.
    """
    import torch

    from trainer.engines.megatron.config import build_configs

    if recipe.architecture.add_bias_linear and "moe_act" in (recipe.knob("recompute_modules") or ()):
        raise NotFollowed("moe_act is recomputed in grouped experts, which only Transformer Engine has with biases")
    aware = recipe.knob("use_precision_aware_optimizer")
    plain = {"use_precision_aware_optimizer": False, **dict.fromkeys(STATE_DTYPES, "float32")}
    configs = build_configs(recipe.replace(plain) if aware else recipe, transformer_engine=False)
    configs.transformer.perform_initialization = False
    configs.optimizer.clip_grad = 0.0  # a gradient norm is a value, which fake tensors lack
    configs.ddp.check_for_nan_in_grad = False  # a NaN is a value, too
    if aware:
        configs.optimizer.use_precision_aware_optimizer = True
        configs.optimizer.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
        configs.optimizer.store_param_remainders = recipe.knob("store_param_remainders")
        for name in STATE_DTYPES:
            setattr(configs.optimizer, name, getattr(torch, recipe.knob(name)))
    return configs


def _send_even_shapes(recipe: Recipe, config: Any, rank: int) -> None:
    """Makes ranks exchange tensors of the usual shape where MTP has a stage of its own; there Megatron sends shapes as
    values, which fake tensors lack. Raises NotFollowed on the ranks of that stage and the next, which need these
    values."""
    stages, now = stages_of(recipe), layout_of(recipe)
    alone = [index for index, stage in enumerate(stages) if "m" in stage and "L" not in stage]
    pp_rank = rank // (now.world // now.pp)
    if any(pp_rank in (index % now.pp, (index + 1) % now.pp) for index in alone):
        raise NotFollowed("the stage of multi-token prediction and the head's exchange shapes that are values")
    config.mtp_standalone = False


def _counted(chunks: list[Any]) -> dict[str, int]:
    """Returns {dense, experts: number of parameters}, by Megatron's mark, which parameters of experts have only with
    expert parallelism."""
    counts = {"dense": 0, "experts": 0}
    for chunk in chunks:
        for parameter in chunk.parameters():
            counts["dense" if getattr(parameter, "allreduce", True) else "experts"] += parameter.numel()
    return counts


def _step(recipe: Recipe, model: Any, microbatches: int) -> None:
    """Runs one optimizer step with Megatron's own schedule."""
    import torch
    from megatron.core.pipeline_parallel import get_forward_backward_func

    training, one = recipe.training, len(model.chunks) == 1
    share = training.seq_length // recipe.parallelism.context_parallel_size
    tokens = torch.zeros(training.micro_batch_size, share, dtype=torch.long)

    def forward(_: Any, chunk: Any) -> tuple[Any, Callable[[Any], Any]]:
        return chunk(tokens, tokens, None, labels=tokens), _mean

    for chunk in model.chunks:
        chunk.zero_grad_buffer()
    model.optimizer.zero_grad()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter(()) if one else [iter(()) for _ in model.chunks],
        model=model.chunks[0] if one else model.chunks,
        num_microbatches=microbatches,
        seq_length=training.seq_length,
        micro_batch_size=training.micro_batch_size,
        forward_only=False,
    )
    model.optimizer.step()


def _mean(output: Any) -> tuple[Any, dict[str, Any]]:
    loss = output.float().mean()
    return loss, {"loss": loss.detach()}


def _is_ours(error: Exception) -> bool:
    """Returns whether the error is a limit of fake tensors or of this machine's packages, which says nothing about the
    layout."""
    if isinstance(error, (NotFollowed, ImportError)) or type(error).__module__.startswith("torch._subclasses"):
        return True
    return any(word in str(error) for word in ("Transformer Engine", "TransformerEngine", "transformer_engine"))


def _where(error: Exception) -> str:
    """Returns the innermost line of Megatron-Core in the error's traceback; empty if there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/megatron/core/" in frame.filename]
    if not frames:
        return ""
    return f"megatron/core/{frames[-1].filename.split('/megatron/core/')[-1]}:{frames[-1].lineno}"


@contextlib.contextmanager
def _stdout_for_the_document() -> Iterator[Any]:
    """Yields the original stdout for the document; what libraries print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as document:
        os.dup2(2, 1)
        yield document


def main() -> None:
    request = json.load(sys.stdin)
    with _stdout_for_the_document() as document:
        answer = run(Recipe.model_validate(request["recipe"]), pp_rank=request["pp_rank"])
        json.dump(answer, document)


def _import_megatron() -> None:
    """Imports Megatron-Core, which Python's search for garbage then leaves out: it is a tenth of a dry run's time."""
    gc.disable()
    with contextlib.suppress(ImportError):  # `run` says which module is missing
        from trainer.engines.megatron.cpu import import_uncompiled

        import_uncompiled()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    atexit.register(gc.freeze)  # without it, Python searches all of torch for garbage at exit: 1 s of CPU time
    _import_megatron()
    main()
