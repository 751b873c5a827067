"""The folder in which the ranks of a study compile torch's C++ extensions.

Megatron-Core compiles some at the first use, from 0.17 on one for selective recompute. Torch guards a build by a lock
file, which a killed rank leaves behind, and every later rank waits for it without end; in ~/.cache that hangs every
later study, of all nodes where the home folder is shared. A folder of the study is free of builds before ranks start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "TORCH_EXTENSIONS_DIR"  # torch/utils/cpp_extension.py, _get_build_directory
LOCK = "lock"  # torch/utils/cpp_extension.py, _jit_compile


def extensions_environment(state_dir: Path, chosen: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that makes ranks compile in the study's folder, after deleting locks of earlier ranks there;
    {} where `chosen`, the recipe's own variables, or the environment name a folder.

    Call it while no rank of the study runs.
    """
    if VARIABLE in chosen or VARIABLE in os.environ:
        return {}
    folder = (state_dir / "extensions").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for lock in folder.glob(f"*/{LOCK}"):
        lock.unlink(missing_ok=True)
    return {VARIABLE: str(folder)}
