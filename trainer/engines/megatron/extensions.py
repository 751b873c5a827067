"""Builds the C++ extension that Megatron-Core needs for a recipe, before the burst counts time and memory.

From 0.17 on selective recompute of outputs shares storages by an extension, compiled in the first backward pass (20 to
60 s). Source: `CheckpointWithoutOutput` of tensor_parallel/random.py.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from trainer.recipe import Recipe
from trainer.recipe.predicates import recomputed

# modules whose output is dropped and computed again; the others are checkpoints of torch's kind
DROPS_OUTPUT = recomputed("layernorm", "moe_act", "mla_up_proj", "gdn_norm_out", "mhc")


def build_extensions(recipe: Recipe) -> None:
    """Compiles the extension, or loads it if it is compiled.

    Raises ImportError if a program for that is missing.
    """
    from megatron.core.tensor_parallel import random as mrandom

    build = getattr(mrandom, "_get_share_storage", None)
    if build is None or not DROPS_OUTPUT(recipe):
        return
    _find_own_ninja()
    compiler = os.environ.get("CXX", "c++")
    if missing := [name for name in ("ninja", compiler) if shutil.which(name) is None]:
        modules = ", ".join(recipe.knob("recompute_modules"))
        raise ImportError(
            f"recompute of {modules} compiles a C++ extension of Megatron-Core, which needs {' and '.join(missing)}: "
            "install g++ and ninja (pip install ninja) on every node"
        )
    build()


def _find_own_ninja() -> None:
    """Puts the folder of this interpreter's programs on PATH if ninja is there alone: pip installs it there, and an
    environment that is not activated is not on PATH."""
    own = str(Path(sys.executable).parent)
    if shutil.which("ninja") is None and shutil.which("ninja", path=own):
        os.environ["PATH"] = os.pathsep.join([*filter(None, [os.environ.get("PATH")]), own])
