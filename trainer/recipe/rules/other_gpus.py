"""Rules of GPUs by other vendors or given by figures: features of NVIDIA's libraries, and unknown figures."""

from __future__ import annotations

from typing import Any

from trainer.recipe.predicates import above_one, all_of, among, any_of, is_moe, negated, on, on_gpu
from trainer.recipe.rules.connections import CONNECTIONS
from trainer.recipe.rules.examples import FUSED
from trainer.recipe.rules.flex import BACKEND, DISPATCHER
from trainer.recipe.rules.nearest import CP, TP
from trainer.recipe.rules.rule import OURS, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

AMD: dict[str, Any] = {
    "name": "mi300x",
    "vendor": "amd",
    "memory_gib": 191.5,
    "bf16_tflops": 1307.0,
    "hbm_tb_s": 5.3,
    "nvlink_gb_s": 448.0,
    "network_gbit_s": 400.0,
}
AMD_SOURCE = "data sheet of AMD Instinct MI300X"
_AMD = {"gpu": AMD}


def _by_another(recipe: Settings) -> bool:
    return on_gpu(recipe) and recipe.hardware.vendor != "nvidia"


def _no_backend(recipe: Settings) -> bool:
    return recipe.knob(BACKEND) not in (recipe.hardware.flex_backends or ())


def _unknown_format(recipe: Settings) -> bool:
    return recipe.hardware.runs(recipe.training.precision) is None


def _unknown_capability(recipe: Settings) -> bool:
    return recipe.hardware.compute_capability is None


def _nvidia_only(knob: str, why: str, **others: Any) -> Rule:
    """Returns the rule of a switch that uses an NVIDIA library: its effect on any other GPU is unknown."""
    value = others.pop(knob, True)
    return Rule(
        id=f"nvidia-{knob.lower().replace('_', '-')}",
        binds=OURS,
        kind=FindingKind.WARNING,
        knobs=(knob,),
        broken=all_of(_by_another, on(knob)),
        message=f"{knob} on {{gpu}}: {why}; whether it acts on a GPU that is not NVIDIA's is unknown",
        hint="a burst shows whether it acts; leave it out until then",
        source="Transformer Engine and NCCL document it for NVIDIA GPUs",
        breaking=example(cluster=_AMD, **{knob: value}, **others),
        passing=example(cluster=_AMD, **others),
    )


ROWS = (
    Rule(
        id="flex-backend-on-gpu",
        knobs=(BACKEND, DISPATCHER),
        broken=all_of(on_gpu, is_moe, among(DISPATCHER, "flex"), _no_backend),
        message="{moe_flex_dispatcher_backend} on {gpu}: nothing says that the library is built for this GPU; where it "
        "is, name it in cluster.gpu.flex_backends",
        nearest=fixed(moe_token_dispatcher_type="alltoall"),
        source="DeepEP, HybridEP and NCCL EP are released for NVIDIA GPUs",
        breaking=example(cluster=_AMD, moe_token_dispatcher_type="flex"),
        passing=example(cluster={"gpu": AMD | {"flex_backends": ["deepep"]}}, moe_token_dispatcher_type="flex"),
    ),
    Rule(
        id="format-of-gpu-unknown",
        binds=OURS,
        kind=FindingKind.WARNING,
        knobs=("precision",),
        broken=all_of(negated(among("precision", "bf16", "fp16")), _unknown_format),
        message="{precision} on {gpu}: whether its units compute in the format is unknown",
        hint="write the formats it has in cluster.gpu.precisions",
        source=AMD_SOURCE,
        breaking=example(cluster=_AMD, precision="fp8_current"),
        passing=example(cluster={"gpu": AMD | {"precisions": ["bf16", "fp8_current"]}}, precision="fp8_current"),
    ),
    Rule(
        id="connections-of-gpu-unknown",
        binds=OURS,
        kind=FindingKind.WARNING,
        knobs=(CONNECTIONS,),
        broken=all_of(
            on_gpu, _unknown_capability, any_of(above_one(TP), above_one(CP)), negated(among(CONNECTIONS, 1))
        ),
        message="TP or CP on {gpu}, whose compute capability is unknown: below 10, Megatron-LM refuses all "
        "CUDA_DEVICE_MAX_CONNECTIONS but 1",
        hint="write what torch reports in cluster.gpu.compute_capability",
        source="megatron/training/arguments.py:1478",
        breaking=example(cluster=_AMD, context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=8),
        passing=example(cluster=_AMD, context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=1),
    ),
    Rule(
        id="simulation-needs-compute-units",
        binds=OURS,
        knobs=(),
        broken=lambda recipe: on_gpu(recipe) and recipe.burst.engine == "simulated" and recipe.hardware.sms is None,
        message="a simulation of {gpu}, whose number of compute units is unknown: collectives take a share of them",
        hint="write cluster.gpu.compute_units",
        source="trainer/engines/simulated/rates.py",
        breaking=example(cluster=_AMD, engine="simulated"),
        passing=example(cluster={"gpu": AMD | {"compute_units": 304}}, engine="simulated"),
    ),
    _nvidia_only(
        "tp_comm_overlap",
        "it overlaps through Transformer Engine's user buffers",
        tensor_model_parallel_size=2,
        sequence_parallel=True,
        expert_tensor_parallel_size=1,
        CUDA_DEVICE_MAX_CONNECTIONS=1,
    ),
    _nvidia_only("nccl_ub", "it registers buffers with NCCL"),
    _nvidia_only("use_transformer_engine_op_fuser", "it fuses kernels of cuDNN and cuBLAS", **FUSED),
    _nvidia_only("fp8_dot_product_attention", "it is an attention of cuDNN", precision="fp8_current"),
    _nvidia_only("NCCL_NVLS_ENABLE", "it reduces in NVIDIA's NVLink switches", NCCL_NVLS_ENABLE=1),
)
