"""Sets up Transformer Engine's user buffers, which `tp_comm_overlap` needs before a model is built.

Source: Megatron-LM 0.16.1, initialize.py:242-312. Not run on a GPU: tests use a fake of Transformer Engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.predicates import fp8

BOOTSTRAP = "nccl"  # --tp-comm-bootstrap-backend's default


@contextlib.contextmanager
def user_buffers(recipe: Recipe) -> Iterator[None]:
    """Creates, if the recipe overlaps TP communication, the buffers of shape [sequence share × micro batch, hidden] for
    the block; deletes them at its end, as the next burst may have another shape."""
    if not effective(recipe, "tp_comm_overlap"):
        yield
        return
    from transformer_engine.pytorch import module

    base = module.base
    sizes, training = recipe.parallelism, recipe.training
    tokens = training.seq_length * training.micro_batch_size // sizes.context_parallel_size
    base.initialize_ub(
        shape=[tokens, recipe.architecture.hidden_size],
        tp_size=sizes.tensor_model_parallel_size,
        ub_cfgs={},
        bootstrap_backend=BOOTSTRAP,
        **_quantization(recipe, base),
    )
    try:
        yield
    finally:
        base.destroy_ub()


def _quantization(recipe: Recipe, base: Any) -> dict[str, Any]:
    """Returns the arguments about FP8 in buffers; with FP8, layers that stay in bf16 need buffers as well.

    TE 2.7 uses an enum.
    """
    modes = getattr(base, "UserBufferQuantizationMode", None)
    if modes is None:
        return {"use_fp8": fp8(recipe)}
    wanted = [modes.FP8 if fp8(recipe) else modes.NONE]
    edges = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
    if fp8(recipe) and recipe.knob("first_last_layers_bf16") and any(recipe.knob(name) for name in edges):
        wanted.append(modes.NONE)
    return {"quantization_modes": wanted}
