"""The parameters of the real Megatron-Core model of a recipe, as one rank of any world holds them."""

from __future__ import annotations

from typing import Any

from trainer.recipe import Recipe


def recipe_of(model: Any, *, gpus: int = 1, sizes: dict[str, Any] | None = None, **training: Any) -> Recipe:
    document = {
        "name": "held",
        "model": model,
        "cluster": {"gpu": "h100", "nodes": max(1, gpus // 8), "gpus_per_node": min(gpus, 8)},
        "training": training,
    }
    sizes = sizes or {}
    return Recipe.model_validate(document).replace(
        {"sequence_parallel": sizes.get("tensor_model_parallel_size", 1) > 1, **sizes}
    )


def counted(recipe: Recipe, *, pp_rank: int = 0) -> tuple[int, int]:
    """Returns (dense, expert) parameters; without expert parallelism Megatron marks none as an expert's. The norm of
    queries that only 0.19 and later have is left out."""
    from trainer.engines.megatron.config import build_configs
    from trainer.engines.megatron.fake import AS_ON_GPUS, fake_world, first_rank_of
    from trainer.engines.megatron.layers import NormedColumnParallelLinear
    from trainer.engines.megatron.model import build_chunks

    with fake_world(recipe, rank=first_rank_of(recipe, pp_rank)):
        config = build_configs(recipe, transformer_engine=False).transformer
        config.perform_initialization = False
        chunks = build_chunks(recipe, config, local=AS_ON_GPUS)
        held = [0, 0]
        for chunk in chunks:
            for parameter in chunk.parameters():
                held[not getattr(parameter, "allreduce", True)] += parameter.numel()
            normed = (module for module in chunk.modules() if isinstance(module, NormedColumnParallelLinear))
            held[0] -= sum(parameter.numel() for module in normed for parameter in module.norm.parameters())
    return held[0], held[1]
