"""Rules of data parallel: requirements of overlapped gathers, several optimizer instances, and buffers registered with
NCCL."""

from packaging.specifiers import SpecifierSet

from trainer.recipe.layout import layout_of
from trainer.recipe.predicates import above_one, all_of, any_of, off, on
from trainer.recipe.rules.examples import PIPELINE
from trainer.recipe.rules.rule import MEGATRON_LM, OURS, FindingKind, Rule, example, fixed
from trainer.recipe.settings import Settings

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"


def expandable(recipe: Settings) -> bool:
    """Returns True if the allocator may remap memory, which is incompatible with registered addresses (NCCL buffers,
    graphs)."""
    return EXPANDABLE in (recipe.knob(ALLOCATOR) or "").split(",")


ROWS = (
    Rule(
        id="param-gather-needs-sharding",
        binds=MEGATRON_LM,
        knobs=("overlap_param_gather", "use_distributed_optimizer"),
        broken=all_of(on("overlap_param_gather"), off("use_distributed_optimizer"), off("use_megatron_fsdp")),
        message="overlap_param_gather without the distributed optimizer: no parameters are gathered",
        nearest=fixed(use_distributed_optimizer=True),
        source="megatron/training/arguments.py:1027",
        breaking=example(overlap_param_gather=True, use_distributed_optimizer=False),
        passing=example(overlap_param_gather=True),
    ),
    Rule(
        id="param-gather-needs-grad-overlap",
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        kind=FindingKind.WARNING,
        knobs=("overlap_param_gather", "overlap_grad_reduce"),
        broken=all_of(on("overlap_param_gather"), off("overlap_grad_reduce")),
        message="overlap_param_gather without overlap_grad_reduce: Megatron-LM's command line refuses it, "
        "Megatron-Bridge and Megatron-Core start it",
        nearest=fixed(overlap_grad_reduce=True),
        source="megatron/training/arguments.py:1029; no such check in Megatron-Core 0.16.1 to 0.19.0 "
        "(distributed_data_parallel_config.py) or Megatron-Bridge 0.3.1 to 0.6.2 (training/config.py)",
        breaking=example(overlap_param_gather=True, overlap_grad_reduce=False),
        passing=example(overlap_param_gather=True),
    ),
    Rule(
        id="param-gather-with-step",
        binds=MEGATRON_LM,
        refuses=MEGATRON_LM,
        kind=FindingKind.WARNING,
        knobs=("overlap_param_gather_with_optimizer_step", "overlap_param_gather"),
        broken=all_of(
            on("overlap_param_gather_with_optimizer_step"),
            any_of(off("overlap_param_gather"), lambda recipe: layout_of(recipe).vpp == 1),
        ),
        message="overlap_param_gather_with_optimizer_step does nothing without overlap_param_gather and VPP",
        nearest=fixed(overlap_param_gather_with_optimizer_step=False),
        source="megatron/training/arguments.py:1072",
        breaking=example(overlap_param_gather_with_optimizer_step=True, engine="simulated"),
        passing=example(
            overlap_param_gather_with_optimizer_step=True,
            overlap_param_gather=True,
            pipeline_model_parallel_size=2,
            virtual_pipeline_model_parallel_size=2,
        ),
    ),
    Rule(
        id="param-gather-with-step-chunks",
        binds=OURS,
        knobs=("overlap_param_gather_with_optimizer_step", "use_distributed_optimizer"),
        broken=all_of(
            on("overlap_param_gather_with_optimizer_step"),
            any_of(off("use_distributed_optimizer"), lambda recipe: layout_of(recipe).vpp == 1),
            lambda recipe: recipe.burst.engine == "megatron",
        ),
        message="overlap_param_gather_with_optimizer_step without the distributed optimizer and VPP: Megatron-Core "
        "updates the first chunk by itself, and fails where there is no other",
        nearest=fixed(overlap_param_gather_with_optimizer_step=False),
        source="megatron-core 0.16.1 optimizer/__init__.py:538, optimizer/optimizer.py:1249; tried on CPU ranks",
        breaking=example(overlap_param_gather_with_optimizer_step=True, use_distributed_optimizer=False, **PIPELINE),
        passing=example(overlap_param_gather_with_optimizer_step=True, overlap_param_gather=True, **PIPELINE),
    ),
    Rule(
        id="instances-need-sharding",
        knobs=("num_distributed_optimizer_instances", "use_distributed_optimizer"),
        broken=all_of(above_one("num_distributed_optimizer_instances"), off("use_distributed_optimizer")),
        message="{num_distributed_optimizer_instances} optimizer instances without the distributed optimizer",
        nearest=fixed(num_distributed_optimizer_instances=1),
        source="megatron/core/distributed/distributed_data_parallel.py:360",
        breaking=example(num_distributed_optimizer_instances=2, use_distributed_optimizer=False),
        passing=example(num_distributed_optimizer_instances=2),
    ),
    Rule(
        id="bucket-size-needs-grad-overlap",
        kind=FindingKind.AUTOSET,
        knobs=("bucket_size", "overlap_grad_reduce"),
        broken=all_of(on("bucket_size"), off("overlap_grad_reduce"), off("use_megatron_fsdp")),
        message="bucket_size without overlap_grad_reduce: Megatron-Core reduces all gradients at once",
        nearest=fixed(bucket_size=None),
        source="megatron/core/distributed/distributed_data_parallel.py:67 (0.16.1)",
        breaking=example(bucket_size=100_000_000, overlap_grad_reduce=False, overlap_param_gather=False),
        passing=example(bucket_size=100_000_000, overlap_grad_reduce=True),
    ),
    Rule(
        id="align-gather-needs-vpp",
        kind=FindingKind.AUTOSET,
        binds=MEGATRON_LM,
        knobs=("align_param_gather", "virtual_pipeline_model_parallel_size"),
        broken=all_of(on("align_param_gather"), lambda recipe: layout_of(recipe).vpp == 1),
        message="align_param_gather without interleaving: Megatron-LM sets it to false, there are no chunks to align",
        nearest=fixed(align_param_gather=False),
        source="megatron/training/arguments.py:1012",
        breaking=example(align_param_gather=True),
        passing=example(align_param_gather=True, overlap_param_gather=True, **PIPELINE),
    ),
    Rule(
        id="nccl-ub-expandable",
        kind=FindingKind.WARNING,
        knobs=("nccl_ub", ALLOCATOR),
        broken=all_of(on("nccl_ub"), expandable),
        message="nccl_ub with expandable segments: NCCL registers addresses that the allocator remaps, and "
        "Megatron-Core refuses it before 0.18, and later with a torch before 2.11",
        nearest=fixed(PYTORCH_CUDA_ALLOC_CONF=None),
        source="megatron/core/distributed/distributed_data_parallel_config.py:264",
        versions=SpecifierSet(">=0.16,<0.18"),
        versions_note="later ones with torch before 2.11",
        breaking=example(nccl_ub=True, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        passing=example(nccl_ub=True),
    ),
)
