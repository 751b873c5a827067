"""A worker that prints its environment, and raises an error that quotes it once a certain file exists."""

import os
import sys
from pathlib import Path
from typing import Any

from trainer import worker
from trainer.engines.megatron import model, train


def telling_model(*args: Any, **kwargs: Any) -> Any:
    os.write(2, f"logged in with {os.environ['MY_HUB_TOKEN']}\n".encode())
    if Path(os.environ["MOE_AUTOTUNE_TEST_FAILS"]).exists():
        raise RuntimeError(f"401 for {os.environ['MY_HUB_TOKEN']}")
    return model.build_model(*args, **kwargs)


if __name__ == "__main__":
    setattr(train, "build_model", telling_model)  # noqa: B010  # `train` looks the name up in its own module
    print("started with", os.environ["MY_HUB_TOKEN"], flush=True)
    worker.main(Path(sys.argv[1]))
