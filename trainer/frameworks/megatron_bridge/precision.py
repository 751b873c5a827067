"""A recipe's precision as a complete `MixedPrecisionConfig` of Bridge.

A name (`bf16_mixed`) would set the format, but Bridge applies the named object after every override, with its other
fields: `grad_reduce_in_fp32`, layers left in bf16, parameters gathered in FP8. So the object is written, with every
field that a recipe decides. Source: src/megatron/bridge/training/mixed_precision.py (0.3.1 to 0.6.2).
"""

from __future__ import annotations

from typing import Any

from trainer.frameworks.megatron_bridge.hydra import named
from trainer.frameworks.megatron_bridge.versions import FSDP_WITHOUT_REUSE, NEWEST, Version, known_to
from trainer.recipe import Recipe
from trainer.recipe.identity import effective
from trainer.recipe.knobs import KNOBS

TARGET = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"

# Bridge's own objects by name (0.3.1 to 0.6.2); there is none for fp32
NAMES = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8_delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_current": "bf16_with_fp8_current_scaling_mixed",
    "fp8_blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
# precision -> Megatron-Core's settings of its format; the amax history of delayed scaling is that of Bridge's recipe
FORMATS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {},
    "fp16": {},
    "fp8_delayed": {
        "fp8": "hybrid",
        "fp8_recipe": "delayed",
        "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max",
    },
    "fp8_current": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}
# Knobs that are fields of MixedPrecisionConfig, which replace the fields of model, optimizer and DDP
REUSE = "reuse_grad_buf_for_mxfp8_param_ag"
FIELDS = (
    "grad_reduce_in_fp32",
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
    "fp8_dot_product_attention",
    "fp8_param_gather",
    "fp4_param_gather",
    REUSE,
)


def mixed_precision(recipe: Recipe, version: Version = NEWEST) -> dict[str, Any]:
    """Returns the object's fields by name, with `_target_` as in Bridge's configuration files.

    Before 0.5, MXFP8 parameters have to be gathered with a reused buffer even where Megatron FSDP holds them; Bridge
    then undoes the reuse (mixed_precision.py: finalize; config.py: validate), so that the result is as in the recipe.
    """
    values = {name: effective(recipe, name) for name in FIELDS if known_to(KNOBS[name], version)}
    mxfp8 = recipe.training.precision == "mxfp8"
    if mxfp8 and effective(recipe, "use_megatron_fsdp") and version < FSDP_WITHOUT_REUSE:
        values[REUSE] = values["fp8_param_gather"]
    precision = recipe.training.precision if recipe.training.precision in DTYPES else "bf16"
    dtype = named(DTYPES[precision])
    return {
        "_target_": TARGET,
        precision: True,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        **FORMATS[recipe.training.precision],
        **values,
    }
