"""Measures the kernels of one layer, forward and backward, at the shapes of a row's recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.microbenchmarks.row import Row
from trainer.model.layer import attention_channels, expert_input, expert_width, mlp_matrices
from trainer.model.parameters import layer_parameters
from trainer.probe.bench import Bench, UnavailableError
from trainer.recipe import Recipe

Work = Callable[[], object]
WIDE = ("bf16", "fp16", "fp32")
QUANTIZED = 3  # times that a layer quantizes an input, forward and backward
INPUTS = 2  # number of different inputs of the experts' GEMMs


def tokens_of(recipe: Recipe) -> int:
    return recipe.training.micro_batch_size * recipe.training.seq_length


def held_experts(recipe: Recipe) -> int:
    return max(1, (recipe.architecture.num_moe_experts or 1) // recipe.parallelism.expert_model_parallel_size)


def expert_rows(recipe: Recipe) -> int:
    """Returns the tokens of each expert that a rank holds, at a balanced load."""
    etp = recipe.expert_tensor_parallel_size
    return max(1, tokens_of(recipe) * recipe.architecture.moe_router_topk * etp // held_experts(recipe))


def _dense_shapes(recipe: Recipe) -> list[tuple[int, int]]:
    """Returns (input, output) widths of a layer's dense GEMMs: of attention (for MLA, one GEMM with as many weights),
    router and shared expert."""
    model, hidden = recipe.architecture, recipe.architecture.hidden_size
    query, key, value = (int(each) for each in attention_channels(model))
    shared = model.moe_shared_expert_intermediate_size or 0
    shapes = [(hidden, (mlp_matrices(model) - 1) * shared), (shared, hidden)] if shared else []
    if model.num_moe_experts:
        shapes.append((hidden, model.num_moe_experts))
    if not model.multi_latent_attention:
        return [(hidden, query + key + value), (query, hidden), *shapes]
    others = sum(width * height for width, height in shapes)
    whole = layer_parameters(model, is_moe=model.num_moe_experts is not None)
    return [(hidden, max(1, int(whole.split + whole.whole - others) // hidden)), *shapes]


def gemm(bench: Bench, recipe: Recipe) -> Work:
    linear = _wide_linear if recipe.training.precision in WIDE else _narrow_linear
    layers = [linear(bench, *shape) for shape in _dense_shapes(recipe)]
    inputs = [bench.tensor(tokens_of(recipe), shape[0], grad=True) for shape in _dense_shapes(recipe)]

    def work() -> None:
        for layer, each in zip(layers, inputs, strict=True):
            _both_ways(layer(each))

    return work


def _wide_linear(bench: Bench, width: int, height: int) -> Callable[[Any], Any]:
    weight = bench.tensor(height, width, grad=True)
    return lambda tokens: bench.torch.nn.functional.linear(tokens, weight)


def _narrow_linear(bench: Bench, width: int, height: int) -> Callable[[Any], Any]:
    """Returns an FP8 linear layer of Transformer Engine. Raises UnavailableError without it."""
    try:
        import transformer_engine.pytorch as engine
    except ImportError as error:
        raise UnavailableError("Transformer Engine is not installed") from error
    layer = engine.Linear(width, height, bias=False, params_dtype=bench.dtype, device=bench.device.name)

    def product(tokens: Any) -> Any:
        with engine.fp8_autocast(enabled=True):
            return layer(tokens)

    return product


def _both_ways(output: Any) -> None:
    output.backward(output.detach())


def grouped(bench: Bench, recipe: Recipe) -> Work:
    model, rows, held = recipe.architecture, expert_rows(recipe), held_experts(recipe)
    width, hidden = expert_width(model) // recipe.expert_tensor_parallel_size, expert_input(model)
    gates = mlp_matrices(model) - 1
    first, second = (_experts(bench, held, *shape) for shape in ((hidden, gates * width), (width, hidden)))
    tokens, between = (bench.tensor(held * rows, size, grad=True) for size in (hidden, width))
    counts = [rows] * held

    def work() -> None:
        _both_ways(first(tokens, counts))
        _both_ways(second(between, counts))

    return work


def _experts(bench: Bench, held: int, width: int, height: int) -> Callable[[Any, list[int]], Any]:
    """Returns the linear layer of all experts of a rank: on a GPU Transformer Engine's if installed, else one GEMM per
    expert."""
    if not bench.on_cpu and (engine := _transformer_engine()) is not None:
        layer = engine.GroupedLinear(held, width, height, bias=False, params_dtype=bench.dtype)
        return lambda tokens, counts: layer(tokens, counts)
    weights = bench.tensor(held, height, width, grad=True)
    return lambda tokens, counts: bench.torch.cat(
        [part @ weights[at].t() for at, part in enumerate(tokens.split(counts))]
    )


def _transformer_engine() -> Any | None:
    try:
        import transformer_engine.pytorch as engine
    except ImportError:
        return None
    return engine


def attention(bench: Bench, recipe: Recipe) -> Work:
    model, batch, length = recipe.architecture, recipe.training.micro_batch_size, recipe.training.seq_length
    query, _, value = (int(each) for each in attention_channels(model))
    heads = model.num_attention_heads
    groups = heads if model.multi_latent_attention else (model.num_query_groups or heads)
    per_head, per_value = query // heads, (value // heads if model.multi_latent_attention else query // heads)
    q = bench.tensor(batch, heads, length, per_head, grad=True)
    k = bench.tensor(batch, groups, length, per_head, grad=True)
    v = bench.tensor(batch, groups, length, per_value, grad=True)
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    return lambda: _both_ways(attend(q, k, v, is_causal=True, enable_gqa=groups != heads))


def memory_bound(bench: Bench, recipe: Recipe) -> Work:
    """Returns the work of two norms, two residual additions, the rotary embedding of queries and keys, and the experts'
    activation."""
    model, functional = recipe.architecture, bench.torch.nn.functional
    hidden, tokens = model.hidden_size, tokens_of(recipe)
    query, key, _ = (int(each) for each in attention_channels(model))
    stream, scale = bench.tensor(tokens, hidden, grad=True), bench.tensor(hidden, grad=True)
    turned, angles = bench.tensor(tokens, query + key, grad=True), bench.tensor(tokens, 1)
    rows, width = tokens * model.moe_router_topk, expert_width(model)
    between = bench.tensor(rows, (mlp_matrices(model) - 1) * width, grad=True)

    def work() -> None:
        normed = functional.rms_norm(stream, (hidden,), scale)
        _both_ways(functional.rms_norm(stream + normed, (hidden,), scale) + stream)
        _both_ways(turned * angles + turned.roll(1, -1) * angles)
        gate, *rest = between.chunk(mlp_matrices(model) - 1, dim=-1)
        _both_ways(functional.silu(gate) * (rest[0] if rest else 1.0))

    return work


def permute(bench: Bench, recipe: Recipe) -> Work:
    """Returns the work of router probabilities and top-k, and of tokens permuted by expert and back."""
    model, tokens = recipe.architecture, tokens_of(recipe)
    stream = bench.tensor(tokens, expert_input(model), grad=True)
    scores = bench.tensor(tokens, model.num_moe_experts or 1, grad=True)

    def work() -> None:
        chances, chosen = scores.float().softmax(-1).topk(model.moe_router_topk, dim=-1)
        order = chosen.flatten().argsort(stable=True)
        sent = stream.index_select(0, order // model.moe_router_topk)
        back = bench.torch.zeros_like(stream).index_add(0, order // model.moe_router_topk, sent)
        _both_ways(back * chances.sum(-1, keepdim=True).to(back.dtype))

    return work


def quantize(bench: Bench, recipe: Recipe) -> Work:
    """Returns the work of scaling the inputs of the experts' GEMMs and casting them to FP8."""
    model, narrow = recipe.architecture, getattr(bench.torch, "float8_e4m3fn", None)
    if narrow is None:
        raise UnavailableError("this torch has no FP8")
    rows = tokens_of(recipe) * model.moe_router_topk
    inputs = [bench.tensor(rows, width) for width in (expert_input(model), expert_width(model))][:INPUTS]

    def work() -> None:
        for each in inputs * QUANTIZED:
            (each * (448.0 / each.abs().amax().clamp(min=1e-6))).to(narrow)

    return work


def optimizer(bench: Bench, row: Row) -> list[float]:
    parameter = bench.torch.nn.Parameter(bench.tensor(int(row.sizes["parameters"]), dtype=bench.torch.float32))
    parameter.grad = bench.torch.zeros_like(parameter)
    adam = bench.torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    return bench.repeats(adam.step, on_device=True)


def _measure(build: Callable[[Bench, Recipe], Work]) -> Callable[[Bench, Row], list[float]]:
    return lambda bench, row: bench.repeats(build(bench, row.recipe(bench.recipe)), on_device=True)


OF_A_LAYER: dict[str, Callable[[Bench, Recipe], Work]] = {
    "gemm": gemm,
    "grouped": grouped,
    "attention": attention,
    "memory_bound": memory_bound,
    "permute": permute,
}
MEASURES = {
    **{kind: _measure(build) for kind, build in OF_A_LAYER.items()},
    "quantize": _measure(quantize),
    "optimizer": optimizer,
}
