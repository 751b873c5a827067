"""Rules of CUDA_DEVICE_MAX_CONNECTIONS: 1 orders TP and CP kernels, more let EP dispatch overlap."""

from trainer.recipe.predicates import above_one, all_of, among, any_of, negated, off, on
from trainer.recipe.rules.nearest import CP, TP
from trainer.recipe.rules.overlap import ep_overlap
from trainer.recipe.rules.rule import MEGATRON_LM, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

OVERLAP = "overlap_moe_expert_parallel_comm"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def _needs_one(recipe: Settings) -> bool:
    return recipe.hardware.needs_one_connection


_wants_one = all_of(_needs_one, any_of(above_one(TP), above_one(CP)))

ROWS = (
    Rule(
        id="ep-overlap-connections",
        binds=MEGATRON_LM,
        kind=FindingKind.WARNING,
        knobs=(OVERLAP, CONNECTIONS),
        broken=all_of(ep_overlap, among(CONNECTIONS, 1)),
        message="EP communication overlap with one device connection: the queue lets little overlap (+3.7 % against "
        "+7.8 % with 32)",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=32),
        source="megatron/training/arguments.py:1468; measured in Megatron-LM#6311",
        breaking=example(overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=1),
        passing=example(overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=32),
    ),
    Rule(
        id="hopper-connections",
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        kind=FindingKind.WARNING,
        knobs=(CONNECTIONS,),
        broken=all_of(
            _wants_one,
            off(OVERLAP),
            off("use_megatron_fsdp"),
            negated(among(CONNECTIONS, 1)),
        ),
        message="TP or CP on {gpu} with CUDA_DEVICE_MAX_CONNECTIONS {CUDA_DEVICE_MAX_CONNECTIONS}: Megatron-LM "
        "refuses all but 1, which keeps the launch order that overlaps communication with compute",
        nearest=fixed(CUDA_DEVICE_MAX_CONNECTIONS=1),
        source="megatron/training/arguments.py:1478",
        breaking=example(context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=8),
        passing=example(context_parallel_size=2, CUDA_DEVICE_MAX_CONNECTIONS=1),
    ),
    Rule(
        id="connections-conflict",
        kind=FindingKind.WARNING,
        binds=MEGATRON_LM,
        knobs=(CONNECTIONS, OVERLAP),
        broken=all_of(_wants_one, any_of(ep_overlap, on("use_megatron_fsdp"))),
        message="TP {tp} or CP {cp} on {gpu} needs one device connection, EP communication overlap and Megatron FSDP "
        "need several: no value of CUDA_DEVICE_MAX_CONNECTIONS suits both",
        hint="measure with 1 and with 32 and keep the faster one",
        source="megatron/training/arguments.py:1458, :1468",
        breaking=example(
            context_parallel_size=2, overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=32
        ),
        passing=example(overlap_moe_expert_parallel_comm=True, CUDA_DEVICE_MAX_CONNECTIONS=32),
    ),
)
