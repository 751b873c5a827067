"""Runs an unmodified `pretrain_gpt.py` of Megatron-LM on CPU ranks: `python pretrain_gpt_on_cpu.py CHECKOUT ARGS…`.

Replaces what only a GPU has; the trainer's files are not touched. Needs this project on PYTHONPATH for
`megatron_on_cpu`, and six, regex, einops.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import torch


class Properties:
    major, minor, total_memory, multi_processor_count, name = 10, 0, 80 * 2**30, 132, "cpu"


def load_compiled_helpers() -> None:
    """Loads the installed package's dataset helpers in place of those that a checkout compiles at its start."""
    name = "megatron.core.datasets.helpers_cpp"
    found = (file for path in sys.path for file in Path(path).glob("megatron/core/datasets/helpers_cpp*.so"))
    spec = importlib.util.spec_from_file_location(name, next(found))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def main(checkout: Path) -> None:
    sys.path.insert(0, str(checkout))
    for name, value in (
        ("is_available", lambda: True),
        ("device_count", lambda: 8),
        ("get_device_capability", lambda *_: (10, 0)),
        ("get_device_properties", lambda *_: Properties()),
    ):
        setattr(torch.cuda, name, value)
    load_compiled_helpers()
    import megatron.core.datasets.utils as datasets

    datasets.compile_helpers = lambda: None
    if (checkout / "megatron" / "legacy").is_dir():
        kernels: Any = types.ModuleType("megatron.legacy.fused_kernels")
        kernels.load = lambda args: None
        sys.modules["megatron.legacy.fused_kernels"] = kernels
    from trainer.engines.megatron.cpu import megatron_on_cpu

    sys.argv = [str(checkout / "pretrain_gpt.py"), *sys.argv[2:]]
    with megatron_on_cpu():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
