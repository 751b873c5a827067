"""Switches the overlap of parameter gathering with forward as Megatron-LM's training loop does.

The first step runs without it; then the hooks of Megatron's DDP take over. With MXFP8 parameters whose gather shares
the gradient buffer, parameters are copied there after it was zeroed, in every step that has the hooks. Source:
Megatron-LM 0.16.1, training.py:1632-1647, :2147-2157, :2656-2664, :2818-2836, :3496.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from trainer.engines.megatron.model import TrainableModel
from trainer.recipe import Recipe


class ParameterGather:
    """Switches the hooks of one model.

    `by_hooks`: whether DDP's hooks gather. Megatron-FSDP gathers by itself and has no hooks to switch.
    """

    def __init__(self, recipe: Recipe, model: TrainableModel) -> None:
        knob = recipe.knob
        self._model = model
        self.by_hooks = bool(
            knob("use_distributed_optimizer") and knob("overlap_param_gather") and not knob("use_megatron_fsdp")
        )
        self._shares_buffer = bool(knob("reuse_grad_buf_for_mxfp8_param_ag") and knob("overlap_param_gather"))
        self._hooked, self._sync = True, model.config.param_sync_func

    def hold(self) -> None:
        """Removes the hooks; called before the first step."""
        if self.by_hooks:
            self._set(hooked=False)
            self._model.config.param_sync_func = None

    def release(self) -> None:
        """Restores the hooks; called after the first step. Later calls change nothing."""
        if self.by_hooks and not self._hooked:
            self._set(hooked=True)
            self._model.config.param_sync_func = self._sync

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Removes the hooks within the block; restores them afterwards if they were there."""
        if not (self.by_hooks and self._hooked):
            yield
            return
        self._set(hooked=False)
        yield
        self._set(hooked=True)

    def _set(self, *, hooked: bool) -> None:
        for chunk in self._model.chunks:
            if hooked:
                chunk.enable_forward_pre_hook()
            else:
                chunk.disable_forward_pre_hook(param_sync=False)
        self._hooked = hooked

    def fill_buffer(self) -> None:
        """Copies parameters, after gradients were zeroed, to the buffer that parameters and gradients share, to be
        gathered.

        Does nothing in the step without hooks: nothing would take the parameters out again, and gradients would be
        added to them.
        """
        if self._shares_buffer and self._hooked and self.by_hooks:
            for optimizer in _distributed(self._model.optimizer):
                optimizer._copy_main_params_to_param_buffer()


def _distributed(optimizer: Any) -> Iterator[Any]:
    """Yields the distributed optimizers of a chain, or the single one."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    every = getattr(optimizer, "chained_optimizers", [optimizer])
    return (part for part in every if isinstance(part, DistributedOptimizer))
