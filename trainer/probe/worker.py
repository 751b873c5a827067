"""Worker of one rank of a probe: `python -m trainer.probe.worker <mailbox folder>`, started by torchrun on every node.

Every decision (one more size, enough repeats) is made from figures that all ranks have, so that all decide the same.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from trainer.launchers import mailbox

if TYPE_CHECKING:
    from torch import Tensor

STARTED_S = time.monotonic()
ENOUGH_S = 25.0  # seconds for all sizes; a size that would take longer than the time left is not started
SMALL, TIMES = 4 << 10, 20  # bytes and repetitions of the latency measurement
FIRST, LAST = 1 << 20, 256 << 20  # bytes of the first size and of the largest
EACH = 3  # repetitions per size
BETTER = 1.03  # the sizes end when one is faster than the previous one by less than this factor
ROUNDS = 10  # comparisons of clocks
SEEN_S = 40.0  # time for a file to appear on every node: NFS caches a folder for up to 30 s


def main(control: Path) -> None:
    rank = int(os.environ["RANK"])
    mailbox.arrive(control, rank)
    import torch.distributed as dist

    from trainer.burst import BurstPhase
    from trainer.engines.megatron.device import open_device
    from trainer.probe.planned import measure_plan
    from trainer.rank_report import RankError, RankReport

    device = open_device(int(os.environ["LOCAL_RANK"]))
    for folder in mailbox.requests(control, rank):
        try:
            dist.init_process_group(device.backend)
            found = _Rank(rank, folder, device)
            if found.nodes > 1:
                found.probe()
            measure_plan(folder, rank=rank, world=found.world, device=device, started_s=STARTED_S)
            error = None
        except Exception as caught:
            error = RankError(
                type=type(caught).__name__,
                message=str(caught),
                phase=BurstPhase.INIT,
                at_s=time.time(),
                traceback=traceback.format_exc(),
            )
        mailbox.reply(folder, RankReport(rank=rank, error=error))


class _Rank:
    def __init__(self, rank: int, folder: Path, device: Any) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.folder, self.device = rank, folder, device
        self.world, self.local = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
        self.nodes = self.world // self.local
        groups = [dist.new_group(list(range(each, self.world, self.local))) for each in range(self.local)]
        self.across = groups[rank % self.local]
        self.torch, self.dist = torch, dist

    def probe(self) -> None:
        import msgspec

        from trainer.probe.links import Links
        from trainer.probe.probe import FOUND

        lag_s = self._folder_lag_s()
        latency_s = self._latency_s()
        size, rate = self._bandwidth()
        apart_s = self._clocks_apart_s()
        where = self._gathered((socket.gethostname(), _interface()))
        if self.rank == 0:
            links = Links(
                nodes=self.nodes,
                ranks_per_node=self.local,
                backend=self.device.backend,
                hosts=[host for host, _ in where[:: self.local]],
                interfaces=sorted({name for _, name in where}),
                bandwidth_gb_s=rate / 1e9,
                message_mib=size / 2**20,
                latency_us=latency_s * 1e6,
                clocks_apart_s=round(apart_s, 6),
                folder_lag_s=round(lag_s, 3),
            )
            mailbox.write_whole(self.folder / FOUND, msgspec.json.format(msgspec.json.encode(links)))

    def _latency_s(self) -> float:
        data = self._data(SMALL)
        self._timed(data)
        return self._slowest(median(self._timed(data) for _ in range(TIMES)))

    def _bandwidth(self) -> tuple[int, float]:
        """Returns the message size in bytes with the highest rate, and the bytes per second that a rank sent at it."""
        share = 2 * (self.nodes - 1) / self.nodes
        best, started, size = (FIRST, 0.0), time.monotonic(), FIRST
        while size <= LAST:
            data = self._data(size)
            self._timed(data)
            each_s = self._slowest(min(self._timed(data) for _ in range(EACH)))
            rate = share * size / each_s
            grown = rate > best[1] * BETTER
            best = max(best, (size, rate), key=lambda found: found[1])
            left_s = ENOUGH_S - self._slowest(time.monotonic() - started)
            if not grown or 2 * each_s * (EACH + 1) > left_s:
                break
            size *= 2
        return best

    def _timed(self, data: Tensor) -> float:
        self.dist.barrier()
        self.device.synchronize()
        started = time.perf_counter()
        self.dist.all_reduce(data, group=self.across)
        self.device.synchronize()
        return time.perf_counter() - started

    def _data(self, size: int) -> Tensor:
        data: Tensor = self.torch.zeros(size // 4, dtype=self.torch.float32, device=self.device.name)
        return data

    def _slowest(self, value: float) -> float:
        found = self.torch.tensor([value], dtype=self.torch.float64, device=self.device.name)
        self.dist.all_reduce(found, op=self.dist.ReduceOp.MAX)
        return float(found.item())

    def _clocks_apart_s(self) -> float:
        """Returns the smallest clock difference measured: each measurement is an upper bound, too large by its
        latency."""
        return min(self._apart() for _ in range(ROUNDS))

    def _apart(self) -> float:
        self.dist.barrier()
        self.device.synchronize()
        now = [0.0] * self.world
        now[self.rank] = time.time()
        found = self.torch.tensor(now, dtype=self.torch.float64, device=self.device.name)
        self.dist.all_reduce(found)
        return float((found.max() - found.min()).item())

    def _folder_lag_s(self) -> float:
        """Returns the seconds until every rank sees what rank 0 wrote, or what all ranks wrote if that takes longer."""
        token = self.folder / "token"
        if self.rank == 0:
            token.write_text(self.folder.name)
        self.dist.barrier()
        lag_s = _await(token.exists, f"{token} of rank 0 {_unshared()}")
        (self.folder / f"seen{self.rank}").touch()
        self.dist.barrier()
        seen = [self.folder / f"seen{rank}" for rank in range(self.world)]
        back_s = _await(lambda: all(path.exists() for path in seen), f"a file of every rank {_unshared()}")
        return self._slowest(max(lag_s, back_s))

    def _gathered(self, value: tuple[str, str]) -> list[tuple[str, str]]:
        found: list[Any] = [None] * self.world
        self.dist.all_gather_object(found, value)
        return found


def _await(done: Callable[[], bool], otherwise: str) -> float:
    started = time.monotonic()
    while not done():
        if time.monotonic() - started > SEEN_S:
            raise RuntimeError(otherwise)
        time.sleep(0.01)
    return time.monotonic() - started


def _unshared() -> str:
    from trainer.probe.probe import UNSHARED

    return f"{UNSHARED} {socket.gethostname()}"


def _interface() -> str:
    return os.environ.get("NCCL_SOCKET_IFNAME") or os.environ.get("GLOO_SOCKET_IFNAME") or ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
