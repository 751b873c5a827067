"""A worker whose model is broken from the start: one weight of its output layer is not a number."""

import sys
from pathlib import Path
from typing import Any

import torch

from trainer import worker
from trainer.engines.megatron import train

build_model = train.build_model


def broken_model(*args: Any, **kwargs: Any) -> Any:
    model = build_model(*args, **kwargs)
    with torch.no_grad():
        next(model.chunks[-1].parameters()).fill_(float("nan"))
    return model


if __name__ == "__main__":
    train.build_model = broken_model
    worker.main(Path(sys.argv[1]))
