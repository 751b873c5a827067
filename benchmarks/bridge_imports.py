"""Imports real Megatron-Bridge without a GPU: packages that its configuration classes import but do not use are
replaced by empty stubs. Bridge itself is unchanged. `REPLACED` are packages that only run on GPUs, or that only data
and logging use; of Transformer Engine only the version is read."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import typing
import warnings
from abc import ABCMeta
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

from benchmarks.exports.checkout import checkout, tree_of
from trainer.frameworks.megatron_bridge.versions import core_of, version_of

_KEPT = ExitStack()  # keeps the unpacked files of Megatron-Core until the process ends
REPLACED = frozenset(
    (
        *("transformer_engine", "transformer_engine_torch", "modelopt", "nvidia_resiliency_ext", "megatron.energon"),
        *("wandb", "mlflow", "comet_ml", "timm", "open_clip", "qwen_vl_utils", "torchvision", "accelerate", "datasets"),
        *("mamba_ssm", "causal_conv1d", "fla", "PIL", "soundfile", "decord", "av", "webdataset", "peft", "diffusers"),
    )
)
TE_VERSION = "2.17.0"
# packages needed to import Bridge: the small ones of its own requirements
PACKAGES = (
    "megatron-bridge==0.6.2 omegaconf hydra-core==1.3.4 antlr4-python3-runtime==4.9.3 transformers==5.12.1 "
    "accelerate tokenizers huggingface_hub safetensors regex einops six triton requests urllib3 idna certifi "
    "charset-normalizer sentencepiece tensorboard absl-py protobuf hf-xet"
)


class _AnyName(ABCMeta):
    """Metaclass of classes on which every attribute exists, as another such class; calling one returns an empty
    object."""

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if cls.__bases__ == (object,):
            return object.__new__(cls)  # pyrefly: ignore[bad-argument-type]
        return super().__call__(*arguments, **named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {"__module__": cls.__module__})

    def __getitem__(cls, _: Any) -> _AnyName:
        return cls


class _Empty(ModuleType):
    """A package in which every name exists: capitalised ones are classes, others packages of the same kind."""

    __path__: ClassVar[list[str]] = []  # pyrefly: ignore[bad-override]
    __version__ = TE_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        made: Any = _AnyName(name, (), {"__module__": self.__name__}) if name[0].isupper() else _module(full)
        setattr(self, name, made)
        return made

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        """Returns the decorated function unchanged, for decorators with or without arguments."""
        return arguments[0] if arguments and callable(arguments[0]) else lambda decorated: decorated


def _module(name: str) -> ModuleType:
    if name not in sys.modules:
        module = _Empty(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    return sys.modules[name]


class _FusedAdam:
    """A stub of Transformer Engine's class: its parameters are inspected."""

    def __init__(self, *, master_weight_dtype: Any = None, exp_avg_dtype: Any = None, exp_avg_sq_dtype: Any = None,
                 use_decoupled_grad: bool = False, store_param_remainders: bool = False) -> None: ...  # fmt: skip


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        inside = any(name == root or name.startswith(root + ".") for root in REPLACED)
        return ModuleSpec(name, self, is_package=True) if inside else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def missing() -> str | None:
    """Returns what to install if Bridge cannot be imported; None if it can."""
    if folder := os.environ.get("MEGATRON_BRIDGE"):
        _unpacked(folder)
    found = [name for name in ("omegaconf", "hydra", "transformers") if importlib.util.find_spec(name) is None]
    if not found and importlib.util.find_spec("megatron.bridge") is not None:
        return None
    return (
        "Megatron-Bridge is not here. In an environment of its own, with this project's packages in reach:\n"
        f"  pip install --no-deps {PACKAGES}\n"
        "or name an unpacked wheel of it with MEGATRON_BRIDGE=FOLDER, and with MEGATRON_LM a checkout of "
        "NVIDIA/Megatron-LM, whose core of the wheel's time goes beside it."
    )


def _unpacked(folder: str) -> None:
    """Adds an unpacked wheel to the path, with the Megatron-Core of its release if a checkout of that is given."""
    if not hasattr(typing, "override"):  # exists since Python 3.12, which 0.4 and later require
        typing.override = lambda method: method  # pyrefly: ignore[missing-attribute]
    if (named := checkout()) is not None:
        version = re.search(r"megatron_bridge-([\d.]+\d)\.dist-info", " ".join(os.listdir(folder)))
        core = core_of(version_of(version[1] if version else None))
        sys.path.insert(0, str(_KEPT.enter_context(tree_of(named, core))))
    sys.path.insert(0, folder)


def prepare(*, gpu: tuple[int, int] = (9, 0), name: str = "NVIDIA H100") -> None:
    """Makes `import megatron.bridge` possible on a machine without GPUs. Megatron-Core sees no Transformer Engine."""
    import torch

    warnings.filterwarnings("ignore")
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.get_device_capability = lambda *_: gpu
    torch.cuda.get_device_name = lambda *_: name
    set_device(gpu[0], name)
    import megatron.core.distributed
    import megatron.core.extensions.transformer_engine
    import megatron.core.models.gpt.gpt_model
    import megatron.core.optimizer
    import megatron.core.transformer.moe.experts  # noqa: F401

    _with_kernels()
    sys.meta_path.insert(0, _Finder())
    optimizers: Any = _module("transformer_engine.pytorch.optimizers")
    optimizers.FusedAdam = _FusedAdam


def _with_kernels() -> None:
    """Adds stubs of the Transformer Engine kernels that Megatron-Core requires before it lets a recipe fuse."""
    for path in ("models.common.embeddings.rope_utils", "transformer.moe.moe_utils"):
        module = import_module(f"megatron.core.{path}")
        for name in (name for name in vars(module) if name.startswith("fused_") and getattr(module, name) is None):
            setattr(module, name, _FusedAdam)


def set_device(major: int, name: str) -> None:
    """Sets the device properties that Bridge reads: the GPU generation decides which dispatchers it accepts."""
    import torch

    properties = type("Properties", (), {"major": major, "minor": 0, "name": name, "total_memory": 80 * 2**30})
    torch.cuda.get_device_properties = lambda *_: properties
