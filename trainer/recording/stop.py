"""Reads and rewrites the arguments of a system call at which ptrace has stopped a process."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cached_property

from trainer.recording import kernel


@dataclass(kw_only=True)
class Stop:
    """A process at a system call: its registers and memory."""

    pid: int
    proc: int  # descriptor of the /proc in which its pid is valid

    def __post_init__(self) -> None:
        found = kernel.machine()
        assert found is not None
        self.machine, self.values = found, kernel.registers(self.pid)
        self.free = self.values[found.stack] - 1024

    @cached_property
    def memory(self) -> int:
        return os.open(f"{self.pid}/mem", os.O_RDWR, dir_fd=self.proc)

    def argument(self, at: int) -> int:
        return self.values[self.machine.arguments[at]]

    def text(self, address: int) -> str:
        found = b""
        while b"\0" not in found:
            found += os.pread(self.memory, 4096 - (address + len(found)) % 4096, address + len(found))
        return os.fsdecode(found.partition(b"\0")[0])

    def texts(self, address: int) -> list[str]:
        found: list[str] = []
        while address and (pointer := struct.unpack("=Q", os.pread(self.memory, 8, address + 8 * len(found)))[0]):
            found.append(self.text(pointer))
        return found

    def write(self, block: bytes) -> int:
        """Writes the block below the process's stack, where memory is unused; returns its address."""
        self.free = (self.free - len(block)) & ~15
        os.pwrite(self.memory, block, self.free)
        return self.free

    def set(self, at: int, text: str) -> None:
        self.values[self.machine.arguments[at]] = self.write(os.fsencode(text) + b"\0")

    def set_texts(self, at: int, texts: tuple[str, ...]) -> None:
        pointers = [self.write(os.fsencode(text) + b"\0") for text in texts]
        self.values[self.machine.arguments[at]] = self.write(struct.pack(f"={len(pointers) + 1}Q", *pointers, 0))

    def done(self) -> None:
        kernel.set_registers(self.pid, self.values)
        if "memory" in self.__dict__:
            os.close(self.memory)
