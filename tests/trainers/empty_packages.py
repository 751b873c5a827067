"""Packages that only GPUs have, or only logging uses, as empty names: enough to import Megatron-Bridge."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

import torch

EMPTY = (
    *("transformer_engine", "transformer_engine_torch", "modelopt", "nvidia_resiliency_ext", "wandb", "mlflow"),
    *("timm", "open_clip", "qwen_vl_utils", "torchvision", "accelerate"),
)
VERSION = "2.17.0"


class Empty(ModuleType):
    __path__: ClassVar[list[str]] = []  # pyrefly: ignore[bad-override]
    __version__ = VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _class(self.__name__, name) if name[0].isupper() else _module(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else None


def _class(module: str, name: str) -> type:
    def __init__(self: Any, *_: Any, **__: Any) -> None:
        torch.nn.Module.__init__(self)

    return type(name, (torch.nn.Module,), {"__init__": __init__, "__module__": module})


def _module(name: str) -> ModuleType:
    if name not in sys.modules:
        module = Empty(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__file__ = "<empty>"
        sys.modules[name] = module
    return sys.modules[name]


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in EMPTY else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _module(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


def install() -> None:
    sys.meta_path.insert(0, Finder())
