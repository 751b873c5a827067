"""Writes docs/long-context.md: what `plan` proposes from 4K to 256K, and the fewest GPUs it needs.

python -m benchmarks.long_context > docs/long-context.md
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.looks.quantities import significant
from autotune.looks.recipes import setting_words
from autotune.plan.document import Plan, planned
from trainer.estimate.plan.choices import Choice
from trainer.estimate.plan.familiar import Familiar, familiar_to
from trainer.estimate.plan.feasible import fewest_nodes
from trainer.recipe import Recipe
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

SEQUENCES = (4096, 32768, 131072, 262144)
SHOWN = 3  # layouts shown per sequence length
HEADER = """\
# Long context: what `plan` proposes

Made by `python -m benchmarks.long_context > docs/long-context.md`; predicted, nothing here was measured. A step has
the same number of tokens at every length, so that the global batch shrinks as the sequence grows. *Share* is the number
of tokens of a sequence that one GPU keeps, sequence / (CP · TP); guides recommend 4K to 8K, data parallelism above 1,
selective recompute before full, and no recompute of attention in long sequences. Where CP is below sequence / 4096, TP
is used inside a node instead: it also divides the keys and values that context ranks exchange, which latent attention
sends uncompressed. The all-to-all of 64 context ranks is priced, but is in no published run: the guides' own
DeepSeek-V3 layout at 256K is predicted 24 % faster than it ran, so rows with DP 1 are not a recommendation yet. *Fewest
GPUs* is the smallest cluster, with nodes doubled each time, on which anything fits.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    title: str
    model: str
    gpu: str
    nodes: int
    precision: str
    tokens: int  # tokens of a step

    def recipe(self, sequence: int) -> Recipe:
        data = {
            "name": f"{self.model}-{sequence}",
            "model": self.model,
            "cluster": {"gpu": self.gpu, "nodes": self.nodes},
            "training": {
                "seq_length": sequence,
                "global_batch_size": self.tokens // sequence,
                "precision": self.precision,
            },
        }
        return recipe_from(Source(name="long context", data=data))


CASES = (
    Case(
        title="DeepSeek-V3 on 1,024 H100, FP8 blockwise",
        model="deepseek-v3",
        gpu="h100",
        nodes=128,
        precision="fp8_blockwise",
        tokens=2**25,
    ),
    Case(
        title="Qwen3-235B-A22B on 256 GB200, BF16",
        model="qwen3-235b-a22b",
        gpu="gb200",
        nodes=64,
        precision="bf16",
        tokens=2**24,
    ),
)
COLUMNS = ("sequence", "batch", "layout", "share", "DP", "settings", "tokens/s/GPU", "TFLOPS", "≤ GiB")


def lines(case: Case) -> Iterator[str]:
    """Yields the lines of one case's section."""
    yield f"\n## {case.title}\n"
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"|{'---|' * len(COLUMNS)}"
    notes = []
    for sequence in SEQUENCES:
        recipe = case.recipe(sequence)
        plan = planned(recipe, top=SHOWN)
        yield from (row(choice, first=not place) for place, choice in enumerate(plan.choices))
        notes.append(f"- {sequence // 1024}K: {_feasible(recipe)}{_seeds(plan)}")
    yield ""
    yield from notes


def row(choice: Choice, *, first: bool) -> str:
    recipe, now = choice.recipe, choice.layout
    training = recipe.training
    cells = (
        f"{training.seq_length // 1024}K" if first else "",
        f"{training.global_batch_size:,}" if first else "",
        Familiar.own(recipe).words + (f", MBS {training.micro_batch_size}" if training.micro_batch_size > 1 else ""),
        f"{training.seq_length // (now.cp * now.tp) / 1024:g}K",
        str(now.dp),
        setting_words(recipe).removeprefix(f"{training.precision}, "),
        significant(choice.tokens_per_s_per_gpu, 4),
        significant(choice.model_tflops_per_gpu),
        significant(choice.needs_gib),
    )
    return f"| {' | '.join(cells)} |"


def _feasible(recipe: Recipe) -> str:
    nodes = fewest_nodes(recipe)
    if nodes is None:
        return "no number of GPUs is enough."
    return f"{nodes * recipe.world_size // recipe.cluster.nodes:,} GPUs are the fewest that fit."


def _seeds(plan: Plan) -> str:
    """Returns why the published starting points of this length are not among the choices; "" if they are."""
    names = [f"{seed.words} ({seed.source})" for seed in familiar_to(plan.recipe)]
    return "".join(f" {one.layout}: {one.because}." for one in plan.missing if one.layout in names)


def main() -> None:
    print(HEADER, end="")
    for case in CASES:
        for line in lines(case):
            print(line)


if __name__ == "__main__":
    main()
