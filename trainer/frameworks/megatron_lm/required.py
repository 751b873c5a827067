"""Arguments and variables that Megatron-LM requires in addition to a recipe's own, each with the reason.

None of them changes what the recipe decides: where a knob of the recipe has another value, the knob is kept, and
`check --for megatron-lm` says that the parser refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainer.frameworks.megatron_lm.flags import HEAD, since
from trainer.frameworks.megatron_lm.spelling import whole_iteration
from trainer.recipe import Recipe

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True, kw_only=True)
class Required:
    """Words of the command line, or the value of a variable, that Megatron-LM requires, and the reason."""

    words: tuple[str, ...]
    because: str
    demanded: bool = True  # true if the recipe's settings need it, also in the user's own command


@dataclass(frozen=True, kw_only=True)
class _Row:
    applies: Callable[[Recipe], bool]
    demanded: bool = True
    until: str | None = None  # the first version that does not require it
    words: Callable[[Recipe], tuple[str, ...]]
    because: str


def one_connection(recipe: Recipe) -> bool:
    """Returns true if Megatron-LM requires CUDA_DEVICE_MAX_CONNECTIONS=1: TP or CP on a GPU of compute capability below
    10, unless Megatron FSDP or the overlap of expert exchanges want several. Source: main d98e8a64,
    arguments.py:1453."""
    sizes = recipe.parallelism
    split = sizes.tensor_model_parallel_size > 1 or sizes.context_parallel_size > 1
    several = any(recipe.knob(name) for name in ("use_megatron_fsdp", "overlap_moe_expert_parallel_comm"))
    return bool(split and recipe.hardware.needs_one_connection and not several)


def _masks_itself(recipe: Recipe) -> bool:
    return "local" not in (recipe.knob("transformer_impl"), recipe.knob("attention_backend"))


def unfused_rotation(recipe: Recipe) -> bool:
    model = recipe.architecture
    return model.multi_latent_attention or model.rotary_interleaved


def _local_graphs_of_experts(recipe: Recipe) -> bool:
    local = recipe.knob("cuda_graph_impl") == "local" or whole_iteration(recipe)
    return local and recipe.parallelism.expert_model_parallel_size > 1


_ROWS = (
    _Row(
        applies=lambda recipe: True,
        demanded=False,  # the user's own command has it already
        words=lambda recipe: ("--max-position-embeddings", str(recipe.training.seq_length)),
        because="not shorter than the sequences",
    ),
    _Row(
        applies=unfused_rotation,
        words=lambda recipe: ("--no-rope-fusion",),
        because="the fused kernels do not rotate interleaved pairs, and for latent attention they are experimental",
    ),
    _Row(
        applies=lambda recipe: bool(recipe.knob("use_megatron_fsdp")),
        words=lambda recipe: ("--ckpt-format", "fsdp_dtensor"),
        because="Megatron FSDP supports no other format",
    ),
    _Row(
        applies=lambda recipe: bool(recipe.knob("overlap_param_gather_with_optimizer_step")),
        words=lambda recipe: ("--ckpt-format", "torch"),
        because="overlap_param_gather_with_optimizer_step supports no distributed checkpoint",
    ),
    _Row(
        applies=whole_iteration,
        words=lambda recipe: ("--no-check-for-nan-in-loss-and-grad",),
        because="a graph of the whole iteration cannot wait for the host to check the loss",
    ),
    _Row(
        applies=_local_graphs_of_experts,
        until="0.18",
        words=lambda recipe: ("--moe-pad-experts-for-cuda-graph-inference",),
        because="before 0.18 the parser requires it with local graphs with expert parallelism; used in decoding only",
    ),
    _Row(
        applies=_masks_itself,
        demanded=False,
        words=lambda recipe: ("--no-create-attention-mask-in-dataloader",),
        because="the kernels apply the mask; a dense one takes sequence times sequence bytes of host memory",
    ),
)


@dataclass(frozen=True, kw_only=True)
class _Variable:
    """A variable that must be 1."""

    name: str
    applies: Callable[[Recipe], bool]
    because: str


_DEMANDED = (
    _Variable(
        name=CONNECTIONS,
        applies=one_connection,
        because="Megatron-LM requires it with TP or CP before Blackwell",
    ),
    _Variable(
        name="NVTE_CPU_OFFLOAD_V1",
        applies=lambda recipe: bool(recipe.knob("fine_grained_activation_offloading")),
        because="with Transformer Engine 2.10 and later fine-grained offload is refused without",
    ),
)


def required_words(recipe: Recipe, version: str = HEAD) -> list[Required]:
    """Returns the additional arguments for this version, which knows each of these flags."""
    asking = (row for row in _ROWS if row.until is None or not since(version, row.until))
    return [
        Required(words=row.words(recipe), because=row.because, demanded=row.demanded)
        for row in asking
        if row.applies(recipe)
    ]


def required_environment(recipe: Recipe) -> dict[str, Required]:
    """Returns the variables that Megatron-LM requires and the recipe leaves at their default, with the reasons."""
    found = (row for row in _DEMANDED if row.applies(recipe) and recipe.knob(row.name) is None)
    return {row.name: Required(words=("1",), because=f"{row.because}; the recipe leaves it open") for row in found}


def demanded_variables(recipe: Recipe) -> dict[str, str]:
    """Returns the values of variables that Megatron-LM requires and the recipe leaves at their default."""
    return {name: required.words[0] for name, required in required_environment(recipe).items()}


def mock_data_words(recipe: Recipe, version: str = HEAD) -> tuple[str, ...]:
    """Returns the arguments for data and a tokenizer that need no file.

    Before 0.18 the null tokenizer has one token more than its argument.
    """
    tokens = recipe.architecture.vocab_size - (0 if since(version, "0.18") else 1)
    return ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", str(tokens))
