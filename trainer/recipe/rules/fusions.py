"""Rules of fused kernels that a knob switches on: norm and residual, MLA's down projections, gathers in FP4."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.predicates import all_of, fp4, is_mla, negated, on
from trainer.recipe.rules.examples import MLA
from trainer.recipe.rules.rule import MEGATRON_LM, Rule, example, fixed
from trainer.recipe.settings import Settings


def _other_norm(recipe: Settings) -> bool:
    return recipe.architecture.normalization != "RMSNorm"


ROWS = (
    Rule(
        id="residual-norm",
        knobs=("fused_residual_rmsnorm",),
        broken=all_of(on("fused_residual_rmsnorm"), _other_norm),
        message="fused_residual_rmsnorm in a model with {normalization}",
        nearest=fixed(fused_residual_rmsnorm=False),
        source="megatron-core 0.19.2 transformer_config.py:2147",
        versions=SpecifierSet(">=0.17"),
        breaking=example(model={"normalization": "LayerNorm"}, fused_residual_rmsnorm=True),
    ),
    Rule(
        id="down-projection-fusion",
        binds=MEGATRON_LM,
        knobs=("mla_down_proj_fusion",),
        broken=all_of(on("mla_down_proj_fusion"), negated(is_mla)),
        message="mla_down_proj_fusion in a model without multi-latent attention",
        nearest=fixed(mla_down_proj_fusion=False),
        source="megatron-core 0.19.2 training/arguments.py:1895",
        versions=SpecifierSet(">=0.17"),
        breaking=example(mla_down_proj_fusion=True),
        passing=example(model=MLA, mla_down_proj_fusion=True),
    ),
    Rule(
        id="fp4-gather",
        knobs=("fp4_param_gather", "precision"),
        broken=all_of(on("fp4_param_gather"), negated(fp4)),
        message="fp4_param_gather in {precision}: it gathers parameters in FP4",
        nearest=fixed(fp4_param_gather=False),
        source="megatron-core 0.19.2 transformer_config.py:1451, training/arguments.py:1069",
        breaking=example(fp4_param_gather=True),
    ),
)
