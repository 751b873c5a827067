"""Runs one function over many items, each in a process of its own: a limited number at once, and none left running.

With one process per item, memory goes back to the system after each. A multiprocessing.Pool would wait forever for a
worker that the system killed; a ProcessPoolExecutor's workers may outlive their parent.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
GRACE_S = 2.0  # time between SIGTERM, after which a process removes its temporary files, and SIGKILL

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Died:
    """A process that ended without a result. exit_code: negative the signal's number if a signal ended it."""

    exit_code: int | None


@dataclass(frozen=True)
class _Raised:
    error: Exception


def each(
    function: Callable[[Item], Result], items: Sequence[Item], *, at_once: int
) -> Generator[tuple[Item, Result | Died]]:
    """Yields (item, function(item)) as they complete, started in the items' order; (item, Died) for a process that
    ended without a result.

    Raises what `function` raises. When the iterator ends or is closed, all its processes have ended.
    """
    waiting = list(reversed(items))
    running: dict[Connection, tuple[Item, ForkProcess]] = {}
    try:
        while True:
            while waiting and len(running) < at_once:
                item = waiting.pop()
                # an interrupt before the process is in `running` would leave the process behind
                with _interrupts_held():
                    receiver, process = _started(function, item)
                    running[receiver] = item, process
            if not running:
                return
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                item, process = running.pop(ready)
                yield item, _result(ready, process)
    finally:
        _end([process for _, process in running.values()])


def can_start() -> bool:
    """Returns true if this process may start children, which a daemon may not."""
    return not multiprocessing.current_process().daemon


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block.

    Uses a handler, since a signal mask holds for one thread only and the system may deliver the signal to another. Only
    the main thread is interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.SIG_DFL)
        if held:
            signal.raise_signal(signal.SIGINT)


def _started(function: Callable[[Item], Result], item: Item) -> tuple[Connection, ForkProcess]:
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(function, item, sender), daemon=True)
    process.start()
    sender.close()  # only the child keeps the sending end: when the child ends, the receiver reads the end of the pipe
    return receiver, process


def _work(function: Callable[[Any], Any], item: Any, sender: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a regular exit, so that temporary folders are removed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = function(item)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        result = _Raised(error)
    with suppress(BrokenPipeError):  # the parent is gone
        sender.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _result(receiver: Connection, process: ForkProcess) -> Any:
    """Returns the result that the process sent, Died if it ended without one; raises the exception that it raised."""
    with receiver:
        try:
            result = receiver.recv()
        except (EOFError, OSError):
            process.join()
            return Died(exit_code=process.exitcode)
    process.join()
    if isinstance(result, _Raised):
        raise result.error
    return result


def _end(processes: Sequence[ForkProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(GRACE_S)
        process.kill()
        process.join()
