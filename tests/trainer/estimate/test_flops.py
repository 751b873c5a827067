"""Model FLOPs against the figures Megatron's convention gives for published models."""

from __future__ import annotations

import pytest

from trainer.estimate.flops import model_flops_per_token
from trainer.recipe.models import presets


# GFLOP a token at 4,096: facts of arXiv 2603.07685's convention, checked there against published TFLOPS and tokens/s
@pytest.mark.parametrize(
    ("model", "mtp_layers", "gflop"),
    [("deepseek-v3", 1, 260.64), ("deepseek-v3", None, 250.45), ("qwen3-235b-a22b", None, 148.3)],
)
def test_a_token_costs_what_is_published(model: str, mtp_layers: int | None, gflop: float) -> None:
    architecture = presets()[model].model_copy(update={"mtp_num_layers": mtp_layers})
    assert model_flops_per_token(architecture, 4096) / 1e9 == pytest.approx(gflop, rel=5e-4)


def test_a_dense_model_costs_six_flops_a_parameter_beside_attention() -> None:
    dense = presets()["mixtral-8x7b"].model_copy(update={"num_moe_experts": None, "ffn_hidden_size": 14336})
    longer = model_flops_per_token(dense, 8192) - model_flops_per_token(dense, 4096)
    weights = model_flops_per_token(dense, 4096) - longer
    assert weights / 6 == pytest.approx(7.1e9, rel=0.02)
