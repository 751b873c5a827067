"""Rows of `guides.csv` on long sequences: published rates, rules of thumb for CP, hierarchical context parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from autotune.export.script import rank_command
from autotune.export.target import Context
from autotune.plan.document import planned
from benchmarks.guides.answer import EVEN_LOAD, Answer, Ask, compared, holds, recipe_of, together
from benchmarks.long_context import CASES, Case
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.time.estimate import estimate_time
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.rules.check import errors_of
from trainer.recipe.source import Source

TOKENS = 2**25  # of a step: the guides write none, and shrink the batch as the sequence grows
OPEN = 0.25  # for the best plausible layout, where none is published
DEEPSEEK = {4: (1, 300), 16: (4, 320), 32: (8, 320), 64: (16, 310), 128: (32, 300), 256: (64, 300)}  # K: CP, TFLOPS
FIRST = 10
SHARE = 4096  # tokens of a sequence on a context rank, TP in the place of some of them
NEIGHBOURS = 8  # that exchange heads among themselves in a hierarchy: those of a node


def _tflops(recipe: Recipe) -> float:
    return estimate_time(recipe).model_tflops_per_gpu


def _dealing(recipe: Recipe) -> Recipe:
    """Returns the recipe with the fastest legal `cp_comm_type`, which the guides do not give."""
    groups = recipe.parallelism.context_parallel_size // NEIGHBOURS
    both = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [NEIGHBOURS, groups]}
    options = [recipe, recipe.replace({"cp_comm_type": "a2a"}), *([recipe.replace(both)] if groups > 1 else [])]
    return max((each for each in options if not errors_of(each)), key=_tflops, default=recipe)


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
    recipes = [_dealing(_deepseek(length, cp)) for length, (cp, _) in DEEPSEEK.items()]
    rates = compared([_tflops(each) for each in recipes], [rate for _, rate in DEEPSEEK.values()], within=0.15)
    kinds = ", ".join(f"{each.training.seq_length // 1024}K {each.knob('cp_comm_type') or 'p2p'}" for each in recipes)
    fitting = sum(_fits(each) for each in recipes)
    room = Answer(says=f"by the faster exchange ({kinds}); the memory bound holds {fitting} of 6", agrees=fitting == 6)
    return together(rates, room, _ranked(recipes[4]))


def _ranked(recipe: Recipe) -> Answer:
    """Answers whether a recipe is within 5 % of the first choice of `plan`."""
    plain = recipe.replace({"cp_comm_type": None, "hierarchical_context_parallel_sizes": None})
    first = planned(plain, top=1).choices[0].model_tflops_per_gpu
    share = _tflops(recipe) / first
    return Answer(says=f"the 128K layout has {share:.0%} of the rate of plan's first choice", agrees=share >= 0.95)


NEXT = {8: (1, 270, 150), 32: (4, 230, 135), 64: (16, 100, 160)}  # K: CP, TFLOPS, GB
NEXT_LAYOUTS = ({"ep": 32}, {"pp": 2, "ep": 16}, {"pp": 4, "ep": 8})
NEXT_BATCHES = (1, 2, 4)


def qwen_next_on_gb200() -> Answer:
    """Compares the nearest of a few layouts and batches that fit: the real ones are not published."""
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
        wanted = (rate, gigabytes)
        best = min(layouts, key=lambda recipe: _apart(recipe, *wanted))
        time, memory = estimate_time(best), estimate_memory(best)
        rates = compared([time.model_tflops_per_gpu], [rate], within=OPEN)
        sizes = compared([memory.peak_gib * 2**30 / 1e9], [gigabytes], within=OPEN)
        found += [replace(rates, unknown=_said(time.assumptions)), replace(sizes, unknown=_said(memory.assumptions))]
    return together(*found)


def _apart(recipe: Recipe, rate: float, gigabytes: float) -> float:
    """Returns the sum of the relative differences of a recipe's rate and peak from the published ones."""
    peak = estimate_memory(recipe).peak_gib * 2**30 / 1e9
    return abs(_tflops(recipe) / rate - 1) + abs(peak / gigabytes - 1)


def _said(assumptions: Sequence[str]) -> str:
    """Returns the note on features that no published or measured run has; "" if there is none."""
    return next(
        (note for note in assumptions if note.startswith(("no published run has", "no calibrated run has"))), ""
    )


def qwen_on_gb200() -> Answer:
    knobs: dict[str, Any] = EVEN_LOAD | {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": "hybridep",
        "recompute_granularity": "selective",
        "recompute_modules": ["moe_act", "layernorm"],
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": ["attn", "moe_router", "moe_preprocess"],
        "use_te_rng_tracker": True,
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "overlap_p2p_comm": True,
    }

    def recipe(kilotokens: int, **sizes: int) -> Recipe:
        sequence = kilotokens * 1024
        training = {"seq_length": sequence, "global_batch_size": 2**24 // sequence, "precision": "bf16"}
        own = {"sequence_parallel": sizes.get("tp", 1) > 1}
        return recipe_of("qwen3-235b-a22b", "gb200", 128, each=4, training=training, knobs=knobs | own, **sizes)

    short, long = recipe(4, pp=4, vpp=12, ep=32), recipe(128, tp=4, etp=1, cp=4, pp=4, vpp=12, ep=32)
    return together(
        compared([_tflops(short), _tflops(_dealing(long))], [700, 1100], within=0.15),
        holds({"the bound of the 128K layout fits": _fits(long)}),
    )


THIRD = Case(
    title="Qwen3-30B-A3B on 64 H100, BF16", model="qwen3-30b-a3b", gpu="h100", nodes=8, precision="bf16", tokens=2**22
)


def first_guess_of_context_ranks() -> Answer:
    """Answers whether CP ≈ sequence / 4096, partly replaced by TP, is among the first choices of `plan`."""
    asked, found = 0, []
    for case in (*CASES, THIRD):
        for sequence in (16384, 65536, 262144):
            asked += 1
            plan = planned(case.recipe(sequence), top=FIRST)
            if SHARE in {sequence // (choice.layout.cp * choice.layout.tp) for choice in plan.choices}:
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
