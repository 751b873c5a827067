"""Worker that torchrun starts on every rank: imports once, then runs bursts until it is stopped.

`python -m trainer.worker <control folder>`; rank and world come from torchrun's environment. A rank stays alive between
bursts because importing Megatron-Core takes longer than most bursts.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from trainer.launchers import mailbox

STARTED_S = time.time()


def main(control: Path) -> None:
    rank = int(os.environ["RANK"])
    mailbox.arrive(control, rank)
    import torch.distributed as dist

    from trainer.burst import read_burst
    from trainer.engines.megatron.device import open_device
    from trainer.engines.megatron.train import import_megatron, run_burst

    device = open_device(int(os.environ["LOCAL_RANK"]))
    rendezvous, _, _ = next(dist.rendezvous("env://"))
    import_megatron()
    startup_s = time.time() - STARTED_S
    for before, folder in enumerate(mailbox.requests(control, rank)):
        report = run_burst(
            read_burst(folder),
            rank=rank,
            device=device,
            store=dist.PrefixStore(f"burst-{before}", rendezvous),
            startup_s=startup_s if before == 0 else 0.0,
        )
        mailbox.reply(folder, report)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
