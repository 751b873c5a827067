"""A worker whose model is broken from the start: all of the first parameter of its last chunk is NaN."""

import sys
from pathlib import Path
from typing import Any

import torch

from trainer import worker
from trainer.engines.megatron import model, train


def broken_model(*args: Any, **kwargs: Any) -> Any:
    built = model.build_model(*args, **kwargs)
    with torch.no_grad():
        next(built.chunks[-1].parameters()).fill_(float("nan"))
    return built


if __name__ == "__main__":
    setattr(train, "build_model", broken_model)  # noqa: B010  # `train` looks the name up in its own module
    worker.main(Path(sys.argv[1]))
