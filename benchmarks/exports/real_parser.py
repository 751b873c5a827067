"""Runs Megatron-LM's own argument parser on many command lines, without a GPU.

    python real_parser.py TREE < requests.jsonl > answers.jsonl

TREE is a checkout of Megatron-LM of any version. A request is {"id", "argv", "env", "world_size", "capability"}; its
answer {"id", "refused": null or {"kind", "message", "where"}, "args": {name: value}, "configuration": null or what
Megatron-Core's configuration of these arguments refuses}. {"id", "flags": true} asks for every option instead. Packages
that need CUDA are replaced by empty modules of recent versions, the device by its compute capability. Nothing of
Megatron-LM is changed. Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import sys
import traceback
import types
import typing
import warnings
from typing import Any

# packages that need CUDA, or that only text processing needs; each with its latest version
STUBS = {
    "transformer_engine": "2.17.0",
    "transformer_engine_torch": "2.17.0",
    "nvidia_resiliency_ext": "0.6.0",
    "apex": "1.0",
    "flash_attn": "2.8.3",
    "flash_mla": "1.0",
    "mamba_ssm": "2.3.0",
    "causal_conv1d": "1.6.0",
    "fla": "0.5.0",
    "deep_ep": "1.3.0",
    "triton": "3.6.0",
    "einops": "0.8.2",
    "regex": "2026.1",
    "six": "1.17.0",
    "transformers": "5.23.0",
    "tensorstore": "0.1.80",
    "zarr": "3.1.0",
}


class _Stub(types.ModuleType):
    """Stub module that has every name: capitalised names are classes, others modules."""

    __version__: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any = _made_class(self.__name__, name) if name[0].isupper() else _module(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made

    def __call__(self, *given: Any, **named: Any) -> Any:
        """Returns a decorated function unchanged."""
        return given[0] if given and callable(given[0]) else self


def _made_class(module: str, name: str) -> type:
    import torch

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        torch.nn.Module.__init__(self)

    return type(name, (torch.nn.Module,), {"__module__": module, "__init__": __init__})


def _module(name: str) -> _Stub:
    module = _Stub(name)
    module.__version__ = STUBS[name.partition(".")[0]]
    module.__file__ = "<stand-in>"
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(name, _Finder(), is_package=True)
    sys.modules.setdefault(name, module)
    return module


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        known = name.partition(".")[0] in STUBS
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> Any:
        return _module(spec.name)

    def exec_module(self, module: Any) -> None:
        """Does nothing: the module is empty."""


class _Device:
    """Properties of the GPU that the parser reads."""

    def __init__(self) -> None:
        self.capability = (9, 0)

    def install(self) -> None:
        import importlib.metadata

        import torch

        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 8
        torch.cuda.current_device = lambda: 0
        torch.cuda.get_device_capability = lambda *_: self.capability
        torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(
            major=self.capability[0],
            minor=self.capability[1],
            total_memory=80 * 2**30,
            multi_processor_count=132,
            name="GPU",
        )
        installed = importlib.metadata.version
        importlib.metadata.version = lambda distribution_name: (
            STUBS.get(distribution_name.replace("-", "_")) or installed(distribution_name)
        )


def _arguments(tree: str) -> Any:
    if not hasattr(typing, "override"):  # exists since Python 3.12, which 0.18 and later require
        typing.override = lambda method: method  # pyrefly: ignore[missing-attribute]
    sys.path.insert(0, tree)
    os.chdir(tree)
    sys.meta_path.insert(0, _Finder())
    import megatron.training.arguments as arguments

    return arguments


def _answer(arguments: Any, device: _Device, request: dict[str, Any]) -> dict[str, Any]:
    device.capability = tuple(request["capability"])
    sys.argv = ["pretrain_gpt.py", *request["argv"]]
    said = io.StringIO()
    kept = dict(os.environ)
    os.environ.update(request["env"] | {"WORLD_SIZE": str(request["world_size"]), "RANK": "0"})
    parsed: Any = None
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            parsed = arguments.parse_args()
            arguments.validate_args(parsed, {"tokenizer_type": "GPT2BPETokenizer"})
    except (Exception, SystemExit) as error:
        return {"id": request["id"], "refused": _refusal(error, said.getvalue())}
    finally:
        os.environ.clear()
        os.environ.update(kept)
    args = {name: _plain(value) for name, value in vars(parsed).items()}
    return {"id": request["id"], "refused": None, "args": args, "configuration": _configured(arguments, parsed)}


def _configured(arguments: Any, parsed: Any) -> dict[str, str] | None:
    """Returns the error of Megatron-Core's configuration for arguments that the parser accepted; None if it accepts
    them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            arguments.core_transformer_config_from_args(parsed)
    except Exception as error:
        return _refusal(error, said.getvalue())
    return None


def _refusal(error: BaseException, said: str) -> dict[str, str]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "megatron" in frame.filename]
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SystemExit):  # argparse has printed it
        lines = [line for line in said.splitlines() if "error:" in line]
        return {"kind": "usage", "message": lines[-1] if lines else said[-300:], "where": "argparse"}
    message = str(error) or (frames[-1].line or "" if frames else "")
    return {"kind": type(error).__name__, "message": message, "where": where}


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)


def _flags(arguments: Any) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    if hasattr(arguments, "add_megatron_arguments"):
        parser = arguments.add_megatron_arguments(parser)
    return [
        {
            "flags": action.option_strings,
            "dest": action.dest,
            "action": type(action).__name__,
            "nargs": action.nargs,
            "const": _plain(action.const),
            "default": _plain(action.default),
            "choices": None if action.choices is None else [_plain(choice) for choice in action.choices],
            "type": None if action.type is None else getattr(action.type, "__name__", str(action.type)),
        }
        for action in parser._actions
    ]


def main() -> None:
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Megatron-LM's output while it is imported is not an answer
    device = _Device()
    device.install()
    arguments = _arguments(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("flags"):
            answer = {"id": request["id"], "flags": _flags(arguments)}
        else:
            answer = _answer(arguments, device, request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
