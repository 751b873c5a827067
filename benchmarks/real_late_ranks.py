"""Checks that real late ranks are traced to their cause: two CPU ranks of real Megatron-Core, one of them disturbed.

    python -m benchmarks.real_late_ranks [SCENE…] [--repeats 1] [--keep FOLDER]

Every scene is the same small mixture of experts, trained for a few steps by the engine itself; a rank's host sleeps
or collects garbage in each layer, or the router sends most tokens to one rank's experts. `even` is not disturbed.
Prints the verdict and its cause with what was done, and right, wrong and abstained over all; if a fix cures the
cause, also how long ranks wait for it before and after.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzers import Analysis, Wall, analyze
from trainer.burst import Burst
from trainer.engines import open_engine
from trainer.recipe import Recipe

RANKS = 2
RECIPE: dict[str, Any] = {
    "name": "late",
    "model": {
        "num_layers": 4,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 256,
        "num_moe_experts": 8,
        "moe_router_topk": 2,
        "moe_ffn_hidden_size": 256,
    },
    "cluster": {"gpu": "cpu", "nodes": 1, "gpus_per_node": RANKS},
    "training": {"seq_length": 256, "global_batch_size": 8, "micro_batch_size": 2, "precision": "fp32"},
    "parallelism": {"expert_model_parallel_size": RANKS},
    "burst": {
        "engine": "megatron",
        "launcher": "local",
        "warmup_steps": 2,
        "measure_steps": 2,
        "trace_steps": 3,
        "deadline_s": 300,
    },
}
# run by Python in every rank before anything else: the environment variable DISTURB says what is disturbed, RANKS_LATE
# on which ranks (the router on all)
DISTURB = """
import gc, importlib.util, os, sys, time
from importlib.machinery import PathFinder

LATE = os.environ.get("RANK") in os.environ["RANKS_LATE"].split(",")
KEPT = [[number] for number in range(200_000)] if LATE and os.environ["DISTURB"] == "garbage" else []


def disturb(module):
    what = os.environ["DISTURB"]
    if what == "router" and hasattr(module, "TopKRouter"):
        plain = module.TopKRouter.routing

        def routing(self, logits, *args, **kwargs):
            bias = logits.new_zeros(logits.shape)
            bias[::2, ..., : logits.shape[-1] // 2] = 100.0
            return plain(self, logits + bias, *args, **kwargs)

        module.TopKRouter.routing = routing
    if what in ("sleep", "garbage") and LATE and hasattr(module, "TransformerLayer"):
        forward = module.TransformerLayer.forward

        def late(self, *args, **kwargs):
            time.sleep(float(os.environ["SLEEP_S"])) if what == "sleep" else gc.collect()
            return forward(self, *args, **kwargs)

        module.TransformerLayer.forward = late


class Finder:
    NAMES = ("megatron.core.transformer.moe.router", "megatron.core.transformer.transformer_layer")

    def find_spec(self, name, path=None, target=None):
        if name not in self.NAMES:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            disturb(module)

        spec.loader.exec_module = executed
        return spec


sys.meta_path.insert(0, Finder())
"""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Disturbance of some ranks, and the expected diagnosis: wall, cause and late ranks."""

    name: str
    disturb: str
    ranks: tuple[int, ...] = ()
    wall: Wall | None = None
    cause: str = ""
    late: tuple[int, ...] = ()
    model: Mapping[str, int] = field(default_factory=dict)
    cure: Mapping[str, Any] = field(default_factory=dict)  # change of knobs that the cause's fix makes

    @property
    def recipe(self) -> Recipe:
        return Recipe.model_validate(RECIPE | {"model": RECIPE["model"] | self.model})

    @property
    def cured(self) -> Recipe:
        return self.recipe.replace(dict(self.cure))

    def judge(self, analysis: Analysis) -> str:
        """Returns right, wrong or abstained. Without a disturbance, only naming a late rank is wrong."""
        diagnosis, cause = analysis.diagnosis, analysis.diagnosis.cause
        claimed = cause.name if cause is not None and cause.ranks else ""
        if claimed == self.cause and (self.wall is None or diagnosis.wall is self.wall):
            return "right" if cause is None or set(cause.ranks) == set(self.late) or not self.cause else "wrong"
        return "abstained" if diagnosis.wall is Wall.UNDETERMINED and not claimed else "wrong"


SCENES = (
    Scene(name="even", disturb=""),
    Scene(name="sleeping-host", disturb="sleep", ranks=(1,), wall=Wall.HOST, cause="late_host", late=(1,)),
    Scene(name="garbage", disturb="garbage", ranks=(0,), wall=Wall.HOST, cause="late_host", late=(0,)),
    Scene(
        name="busy-experts",
        disturb="router",
        wall=Wall.UNDETERMINED,
        cause="experts_load",
        late=(0,),
        model={"moe_ffn_hidden_size": 2048},
        cure={"moe_expert_capacity_factor": 1.25},
    ),
)
SLEEP_S = 0.2


@contextmanager
def disturbed(scene: Scene, folder: Path) -> Iterator[None]:
    """Puts the scene's disturbance on the Python path of processes started inside the context."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(DISTURB)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    added = {
        "PYTHONPATH": path,
        "DISTURB": scene.disturb,
        "RANKS_LATE": ",".join(map(str, scene.ranks)),
        "SLEEP_S": str(SLEEP_S),
    }
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def play(scene: Scene, folder: Path, recipe: Recipe) -> Analysis:
    """Diagnoses the traces of one burst of a recipe under a scene, without its outcome, which would add the attainable
    rate of the CPU that a busy machine never reaches. Raises RuntimeError if it does not run."""
    with disturbed(scene, folder / "path"):
        engine = open_engine("megatron", folder / "engine")
        try:
            burst = Burst(number=1, recipe=recipe, folder=folder / "0001")
            outcome = engine.run(burst)
        finally:
            engine.close()
    if outcome.failure is not None:
        raise RuntimeError(f"scene {scene.name}: {outcome.failure}")
    return analyze([folder / "0001" / "trace"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", choices=[[], *(scene.name for scene in SCENES)], default=[])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    chosen = [scene for scene in SCENES if not asked.scenes or scene.name in asked.scenes]
    judged: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="late-ranks-") as temporary:
        for number in range(asked.repeats):
            for scene in chosen:
                kept = (asked.keep or Path(temporary)) / f"{scene.name}-{number}"
                analysis = play(scene, kept, scene.recipe)
                verdict = scene.judge(analysis)
                judged[verdict] += 1
                diagnosis, cause = analysis.diagnosis, analysis.diagnosis.cause
                said = "; ".join(cause.evidence) if cause is not None else diagnosis.because
                print(f"{scene.name:14} {verdict:10} {diagnosis.wall}: {diagnosis.headline}: {said}", flush=True)
                if scene.cure:
                    after = play(scene, kept.with_name(f"{kept.name}-cured"), scene.cured)
                    waits = (one.diagnosis.waits.get(scene.cause, 0.0) / 1e3 for one in (analysis, after))
                    changed = ", ".join(f"{knob} {value}" for knob, value in scene.cure.items())
                    print(f"{'':14} with {changed} ranks wait for it {' → '.join(f'{ms:.0f}' for ms in waits)} ms")
    print(f"{judged.total()} bursts: {', '.join(f'{count} {verdict}' for verdict, count in judged.most_common())}")


if __name__ == "__main__":
    main()
