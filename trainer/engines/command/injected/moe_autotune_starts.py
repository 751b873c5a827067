"""Records, from inside a real run of a trainer, how it was started: in the file that MOE_AUTOTUNE_RECORD names.

It is for launchers that make arguments in Python, where recording the launch script does not show them. Rank 0 alone
writes: the command line when Megatron is first imported, and Megatron-LM's arguments after their validation. The run
itself is unchanged. Imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

STARTS = ("megatron.training.global_vars", "megatron.bridge.training.config")
# Variables that a trainer looks at; all others are the machine's
TRAINERS = re.compile(r"(NCCL|NVTE|TORCH|PYTORCH|CUDA|GLOO|UCX|TRITON|OMP|NVSHMEM|NVLINK|NUM_OF|USE_MNNVL)(_|$)")
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE")


class Starts:
    """An import hook that notices when a trainer is imported."""

    def __init__(self, file: str, loader: Any, patch: Any) -> None:
        self.file, self.loader, self.patch = file, loader, patch

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in STARTS:
            return None
        for finder in sys.meta_path:
            found: Any = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                found.loader = self.loader(found.loader, self.touch)
                return found
        return None

    def touch(self, module: Any) -> None:
        self.write(None)
        self.patch(module, None, "set_args", self.recording)

    def recording(self, function: Any) -> Any:
        def set_args(args: Any) -> Any:
            self.write(vars(args))
            return function(args)

        return set_args

    def write(self, arguments: dict[str, Any] | None) -> None:
        inside = {
            "words": [sys.orig_argv[0], *sys.argv] if sys.argv[:1] != ["-m"] else sys.orig_argv,
            "cwd": os.getcwd(),
            "env": {n: value for n, value in os.environ.items() if TRAINERS.match(n) or n in SIZES},
            "arguments": None if arguments is None else {name: _plain(value) for name, value in arguments.items()},
        }
        with open(f"{self.file}.part", "w") as file:
            json.dump({"schema": 1, "inside": inside}, file, indent=1)
        os.replace(f"{self.file}.part", self.file)


def _plain(value: Any) -> Any:
    """Returns the value as JSON allows it; types of torch as their names."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else str(value).removeprefix("torch.")
