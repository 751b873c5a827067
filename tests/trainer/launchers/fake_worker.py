"""A worker without torch: does in a burst what the burst's `acts.json` says for its rank. Started by torchrun.

`{"<rank>": [["phase", "forward"], ["hang"]]}`; a rank that is not named replies at once. With FAKE_BOOT=import rank 0
fails before it arrives, by an import; with FAKE_BOOT=slow it arrives and takes no burst.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from trainer.burst import BurstPhase
from trainer.launchers import mailbox
from trainer.launchers.processes import status_of
from trainer.rank_report import RankError, RankReport, phase_path

PHASE = {"now": BurstPhase.START}


def phase(folder: Path, rank: int, name: str) -> None:
    PHASE["now"] = BurstPhase(name)
    path = phase_path(folder, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name:<12}")


def say(folder: Path, rank: int, text: str) -> None:
    print(text, flush=True)


def fail(folder: Path, rank: int, kind: str, text: str) -> None:
    raise type(kind, (Exception,), {})(text)


def kill(folder: Path, rank: int, name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])
    time.sleep(1000)


def leave(folder: Path, rank: int, code: int) -> None:
    sys.stdout.flush()
    os._exit(code)


def hang(folder: Path, rank: int) -> None:
    while True:
        time.sleep(1000)


def ignore_term(folder: Path, rank: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def kill_above(folder: Path, rank: int, levels: int) -> None:
    """Kills the parent (1: torchrun's agent) or its parent (2: the supervisor)."""
    pid = os.getpid()
    for _ in range(levels):
        status = status_of(pid)
        assert status is not None
        pid = status.parent
    os.kill(pid, signal.SIGKILL)
    time.sleep(1000)


def grandchild(folder: Path, rank: int, environment: str) -> None:
    """Starts a child in its own session that would outlive the rank; `wiped` removes its environment too."""
    env: dict[str, str] = {} if environment == "wiped" else dict(os.environ)
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={**env, "PATH": os.environ["PATH"]})
    (folder / f"grandchild{rank}.pid").write_text(str(child.pid))


def allocate(folder: Path, rank: int) -> None:
    bytearray(1 << 60)


def fill(folder: Path, rank: int, mib: int) -> None:
    """Writes `mib` MiB of memory, then raises RuntimeError if nothing has stopped it."""
    kept = [b"\1" * (1 << 20) for _ in range(mib)]
    raise RuntimeError(f"{len(kept)} MiB were there")


def meet(folder: Path, rank: int) -> None:
    """Runs a real gloo collective with all ranks."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))


def wait_for(folder: Path, rank: int, name: str) -> None:
    """Waits until a file of that name is in the burst's folder."""
    while not (folder / name).exists():
        time.sleep(0.05)


_ACTS = (phase, say, fail, kill, leave, hang, ignore_term, grandchild, allocate, fill, meet, kill_above, wait_for)
ACTS = {act.__name__: act for act in _ACTS}


def run(folder: Path, rank: int) -> RankReport:
    acts: list[list[Any]] = json.loads((folder / "acts.json").read_text()).get(str(rank), [])
    PHASE["now"] = BurstPhase.START
    try:
        for name, *arguments in acts:
            ACTS[name](folder, rank, *arguments)
    except Exception as error:
        found = RankError(
            type=type(error).__name__,
            message=str(error),
            phase=PHASE["now"],
            at_s=time.time(),
            traceback=traceback.format_exc(),
        )
        return RankReport(rank=rank, error=found)
    return RankReport(rank=rank, step_us=[1.0], loss=[0.5])


def main(control: Path) -> None:
    rank = int(os.environ["RANK"])
    if rank == 0 and os.environ.get("FAKE_BOOT") == "import":
        import a_package_that_is_not_there  # pyrefly: ignore[missing-import]  # noqa: F401
    mailbox.arrive(control, rank)
    if rank == 0 and os.environ.get("FAKE_BOOT") == "slow":
        time.sleep(1000)
    for folder in mailbox.requests(control, rank):
        mailbox.reply(folder, run(folder, rank))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
