"""Replaces what Megatron-Core reads of Transformer Engine even where it is not installed, on CPUs and GPUs.

Source: `router_gating_linear` of moe_utils.py, `CheckpointWithoutOutput` of tensor_parallel/random.py and
multi_latent_attention.py of Megatron-Core 0.16.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from trainer.engines.megatron import compat


class _Fp8Off:
    """Replaces Transformer Engine's FP8GlobalStateManager, which selective recompute asks even without Transformer
    Engine."""

    @staticmethod
    def is_fp8_enabled() -> bool:
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        return None


def _no_context(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def patches() -> Iterator[Any]:
    """Yields every replaced attribute as a patch of unittest.mock that has not started."""
    import megatron.core.tensor_parallel.random as mrandom
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.multi_latent_attention as mla

    yield mock.patch.object(mla, "HAVE_TE", False)  # Megatron sets it true even if TELinear is None
    if not hasattr(moe_utils, "te_general_gemm"):  # read by 0.16.1, bound only where TE imports
        yield mock.patch.object(moe_utils, "te_general_gemm", None, create=True)
    if not hasattr(mrandom, "FP8GlobalStateManager"):
        yield mock.patch.object(mrandom, "FP8GlobalStateManager", _Fp8Off, create=True)
        yield mock.patch.object(mrandom, "activation_recompute_forward", _no_context, create=True)
        yield mock.patch.object(mrandom, "fp8_autocast", _no_context, create=True)


@contextlib.contextmanager
def transformer_engine_missing() -> Iterator[None]:
    """Lets Megatron-Core train within the block; does nothing where Transformer Engine is installed."""
    with contextlib.ExitStack() as stack:
        if not compat.has_transformer_engine():
            for patch in patches():
                stack.enter_context(patch)
        yield
