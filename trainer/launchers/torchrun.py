"""Runs torchrun's agent: `python -m trainer.launchers.torchrun <arguments of torchrun>`.

Python's garbage collector skips what the agent imports. It would search all of torch many times, while torch is
imported and when the agent ends: half a CPU second of every start.
"""

from __future__ import annotations

import gc


def main() -> None:
    gc.disable()
    from torch.distributed.run import main as torchrun

    gc.freeze()
    gc.enable()
    torchrun()


if __name__ == "__main__":
    main()
