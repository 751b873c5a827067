"""Rows of `guides.csv` on long sequences: published rates, rules of thumb for CP, hierarchical context parallelism."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from autotune.export.script import rank_command
from autotune.export.target import Context
from autotune.plan.document import planned
from benchmarks.guides.answer import EVEN_LOAD, Answer, Ask, compared, holds, recipe_of, timed, together
from benchmarks.long_context import CASES, Case
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.plan.familiar import Familiar
from trainer.estimate.plan.search import of_sizes
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.layout import sizes_of
from trainer.recipe.load import recipe_from
from trainer.recipe.rules.check import errors_of
from trainer.recipe.source import Source

TOKENS = 2**25  # tokens of a step: the guides give none, and reduce the batch for longer sequences
OPEN = 0.25  # accepted error of the best plausible layout, if none is published
DEEPSEEK = {4: (1, 300), 16: (4, 320), 32: (8, 320), 64: (16, 310), 128: (32, 300), 256: (64, 300)}  # K: CP, TFLOPS
FIRST = 10
SHARE = 4096  # tokens of a sequence per context rank, where TP may replace some of the context ranks
NEIGHBOURS = 8  # ranks of a node, which exchange heads in hierarchical context parallelism


def _tflops(recipe: Recipe) -> float:
    return estimate_time(recipe).model_tflops_per_gpu


def _exchanging(recipe: Recipe) -> list[Recipe]:
    """Returns the recipe with every legal exchange between context ranks: the guides do not write it."""
    groups = recipe.parallelism.context_parallel_size // NEIGHBOURS
    both = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [NEIGHBOURS, groups]}
    options = [recipe, recipe.replace({"cp_comm_type": "a2a"}), *([recipe.replace(both)] if groups > 1 else [])]
    return [each for each in options if not errors_of(each)] or [recipe]


def _fits(recipe: Recipe) -> bool:
    memory = estimate_memory(recipe)
    return memory.upper_gib + memory.outside_gib <= (recipe.memory_limit_gib or float("inf"))


def _deepseek(kilotokens: int, cp: int) -> Recipe:
    knobs: dict[str, Any] = {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "deepep",
        "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj", "layernorm", "moe", "mlp"],
        "pipeline_model_parallel_layout": "Et|(tt|)*30mL",
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "use_precision_aware_optimizer": True,
    }
    sequence = kilotokens * 1024
    training = {"seq_length": sequence, "global_batch_size": TOKENS // sequence, "precision": "fp8_blockwise"}
    gpus = max(256, 8 * cp)
    return recipe_of(
        "deepseek-v3", "h100", gpus, each=8, training=training, knobs=EVEN_LOAD | knobs, pp=8, cp=cp, ep=32
    )


def deepseek_on_h100() -> Answer:
    published = [rate for _, rate in DEEPSEEK.values()]
    ways = [_exchanging(_deepseek(length, cp)) for length, (cp, _) in DEEPSEEK.items()]
    recipes = [
        min(options, key=lambda each: abs(_tflops(each) / rate - 1))
        for options, rate in zip(ways, published, strict=True)
    ]
    rates = timed(recipes, published, within=0.15)
    kinds = ", ".join(f"{each.training.seq_length // 1024}K {each.knob('cp_comm_type') or 'p2p'}" for each in recipes)
    fitting = sum(_fits(each) for each in recipes)
    room = Answer(says=f"by the nearest exchange ({kinds}); the memory bound holds {fitting} of 6", agrees=fitting == 6)
    return together(rates, room, _ranked(recipes[4]))


def _ranked(recipe: Recipe) -> Answer:
    """Returns whether a recipe's layout, with the settings that `plan` finds for it, is within 5 % of the first
    choice."""
    found = planned(recipe.replace({"cp_comm_type": None, "hierarchical_context_parallel_sizes": None}), top=1).found
    rates = found.finals.figures.tokens_per_s_per_gpu
    alike = np.flatnonzero(of_sizes(found.finals.candidates, sizes_of(recipe)) & found.finals.eligible)
    share = rates[alike].max(initial=0.0) / rates[found.ranking[0]]
    return Answer(says=f"the 128K layout has {share:.0%} of the rate of plan's first choice", agrees=share >= 0.95)


NEXT = {8: (1, 270, 150), 32: (4, 230, 135), 64: (16, 100, 160)}  # K: CP, TFLOPS, GB
NEXT_LAYOUTS = (
    *({"ep": ep} for ep in (4, 8, 16, 32)),
    *({"pp": 2, "vpp": vpp, "ep": ep} for vpp, ep in product((1, 4, 6, 12), (8, 16))),
    *({"pp": 4, "vpp": vpp, "ep": 8} for vpp in (1, 3)),
)
NEXT_BATCHES = (1, 2, 4)


def qwen_next_on_gb200() -> Answer:
    """Compares the nearest of a few legal layouts and batches: the real ones are not published."""
    found: list[Answer] = []
    for length, (cp, rate, gigabytes) in NEXT.items():
        sequence = length * 1024
        training = {"seq_length": sequence, "global_batch_size": 2**22 // sequence, "precision": "bf16"}
        knobs = EVEN_LOAD | {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
        layouts = [
            recipe_of("qwen3-next-80b-a3b", "gb200", 32, each=4, training=each, knobs=knobs, cp=cp, **sizes)
            for sizes, batch in product(NEXT_LAYOUTS, NEXT_BATCHES)
            for each in [training | {"micro_batch_size": batch}]
            if cp * sizes.get("pp", 1) <= 32
        ]
        layouts = [each for each in layouts if not errors_of(each)]
        best = min(layouts, key=lambda recipe: _apart(recipe, rate, gigabytes))
        words = f"{length}K, {Familiar.own(best).words} MBS {best.training.micro_batch_size} of {len(layouts)} layouts"
        found += [
            Answer(says=words, agrees=True),
            timed([best], [rate], within=OPEN),
            compared([_peak_gb(best)], [gigabytes], within=OPEN),
        ]
    return together(*found)


def _peak_gb(recipe: Recipe) -> float:
    return estimate_memory(recipe).peak_gib * 2**30 / 1e9


def _apart(recipe: Recipe, rate: float, gigabytes: float) -> float:
    """Returns the larger relative error of a recipe's rate and of its peak."""
    return max(abs(_tflops(recipe) / rate - 1), abs(_peak_gb(recipe) / gigabytes - 1))


def qwen_on_gb200() -> Answer:
    """Compares the 128K layout in both precisions that its source names, "BF16 or MXFP8": in MXFP8 and without graphs
    it is also that of the model zoo on GB300 (1,150 TFLOPS)."""
    knobs: dict[str, Any] = EVEN_LOAD | {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "recompute_granularity": "selective",
        "recompute_modules": ["moe_act", "layernorm"],
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "overlap_p2p_comm": True,
    }
    graphs: dict[str, Any] = {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"],
        "use_te_rng_tracker": True,
    }

    def recipe(kilotokens: int, precision: str, captured: dict[str, Any], **sizes: int) -> Recipe:
        sequence = kilotokens * 1024
        training = {"seq_length": sequence, "global_batch_size": 2**24 // sequence, "precision": precision}
        own = {"sequence_parallel": sizes.get("tp", 1) > 1} | captured
        return recipe_of("qwen3-235b-a22b", "gb200", 128, each=4, training=training, knobs=knobs | own, **sizes)

    long = {"tp": 4, "etp": 1, "cp": 4, "pp": 4, "vpp": 12, "ep": 32}
    short, bf16, mxfp8, eager = (
        recipe(4, "bf16", graphs, pp=4, vpp=12, ep=32),
        *(recipe(128, name, own, **long) for name, own in (("bf16", graphs), ("mxfp8", graphs), ("mxfp8", {}))),
    )
    rates = timed(
        [short, *(max(_exchanging(each), key=_tflops) for each in (bf16, mxfp8))], [700, 1100, 1100], within=0.15
    )
    needs = {"BF16": bf16, "MXFP8": mxfp8, "MXFP8 without graphs": eager}
    said = ", ".join(f"{name} {_needs(each)}" for name, each in needs.items())
    return together(rates, Answer(says=f"needs, of {short.memory_limit_gib} GiB: {said}", agrees=_fits(eager)))


def _needs(recipe: Recipe) -> str:
    memory = estimate_memory(recipe)
    peak, upper = (size + memory.outside_gib for size in (memory.peak_gib, memory.upper_gib))
    return f"{peak:.0f} GiB, at most {upper:.0f}"


THIRD = Case(
    title="Qwen3-30B-A3B on 64 H100, BF16", model="qwen3-30b-a3b", gpu="h100", nodes=8, precision="bf16", tokens=2**22
)


def first_guess_of_context_ranks() -> Answer:
    """Answers whether CP ≈ sequence / 4096, by itself or with TP in the place of some of it, is among the first choices
    of `plan`."""
    asked, found = 0, list[int]()
    for case in (*CASES, THIRD):
        for sequence in (16384, 65536, 262144):
            asked += 1
            plan = planned(case.recipe(sequence), top=FIRST)
            now = [choice.layout for choice in plan.choices]
            if SHARE in {sequence // ranks for each in now for ranks in (each.cp, each.cp * each.tp)}:
                found.append(sequence)
    return Answer(says=f"in the first ten of {len(found)} of {asked} plans", agrees=len(found) == asked)


def hierarchical() -> Answer:
    base = _deepseek(64, 16)
    recipe = base.replace({"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [8, 2]})

    def exported(framework: str) -> bool:
        trainer = recipe_from(
            Source(name="guides", data=recipe.model_dump() | {"trainer": {"kind": framework, "command": ["train.py"]}})
        )
        return "hierarchical" in " ".join(rank_command(trainer, Context()).argv)

    return holds(
        {
            "no rule refuses it": not errors_of(recipe),
            "priced apart from the ring": _tflops(recipe) != _tflops(base),
            **{f"exported for {name}": exported(name) for name in ("megatron-lm", "megatron-bridge")},
        }
    )


ASKS: dict[str, Ask] = {
    "LC1": deepseek_on_h100,
    "LC2": qwen_next_on_gb200,
    "LC3": qwen_on_gb200,
    "LC4": first_guess_of_context_ranks,
    "LC6": hierarchical,
}
