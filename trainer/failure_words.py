"""Table of messages of failing ranks and their meaning, one row per wording; used by `trainer.failures`.

Rows match one line at a time, ignoring case: of an exception the line `<type>: <message>`, of a log any line. A row
that would also match a harmless warning therefore requires the form of an uncaught exception.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.burst import BurstPhase, FailureKind

_SETUP = frozenset({BurstPhase.START, BurstPhase.INIT})
_INIT = frozenset({BurstPhase.INIT})
_OOM, _HANG, _CRASH, _NAN = FailureKind.OOM, FailureKind.HANG, FailureKind.CRASH, FailureKind.NAN
_IMPORT, _CONFIG, _INFRA = FailureKind.IMPORT, FailureKind.CONFIG, FailureKind.INFRASTRUCTURE


@dataclass(frozen=True)
class Words:
    """A pattern, the kind of failure that it shows and the origin of the wording; `phases`: None for every phase."""

    kind: FailureKind
    pattern: str
    source: str
    phases: frozenset[BurstPhase] | None = None


# If two rows match the same text, the upper one counts.
CAUSES = (
    Words(_OOM, r"DefaultCPUAllocator: can't allocate memory", "torch c10/core/impl/alloc_cpu.cpp"),
    Words(_OOM, r"CUDA out of memory|OutOfMemoryError", "torch c10/cuda/CUDACachingAllocator.cpp"),
    Words(_OOM, r"CUDA error: out of memory|cudaErrorMemoryAllocation", "CUDA runtime, error 2"),
    Words(_OOM, r"Cuda failure (\d+ )?'out of memory'", "NCCL src/include/checks.h, in its log"),
    Words(_OOM, r"unhandled cuda error.*out of memory", "torch NCCLUtils.hpp with NCCL's last error"),
    Words(_OOM, r"CU(BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED", "status of cuBLAS, cuDNN, cuSOLVER"),
    Words(_OOM, r"HIP out of memory|hipErrorOutOfMemory", "torch on ROCm"),
    Words(_OOM, r"std::bad_alloc", "C++ operator new"),
    Words(_OOM, r"\bMemoryError\b", "Python's allocators and NumPy"),
    Words(_OOM, r"Cannot allocate memory|\bENOMEM\b", "errno 12: fork, mmap, dlopen"),
    Words(_OOM, r"can't start new thread|Thread creation failed", "no room for a stack: Python, libgomp"),
    Words(_OOM, r"^RuntimeError: Resource temporarily unavailable", "no room for a stack: std::thread, errno 11"),
    Words(_NAN, r"NanLossError|loss is (nan|-?inf)", "our worker"),
    Words(_NAN, r"found (NaN|Inf) in|Unexpected result (nan|-?inf)", "Megatron-Core DDP and rerun_state_machine"),
    Words(_INFRA, r"Address already in use|EADDRINUSE", "errno 98: torch TCPStore, gloo, NCCL"),
    Words(_INFRA, r"No space left on device|Disk quota exceeded", "errno 28, 122"),
    Words(_INFRA, r"Read-only file system|Too many open files", "errno 30, 24"),
    Words(_INFRA, r"insufficient shared memory|unable to write to file </", "torch: /dev/shm is full"),
    Words(_INFRA, r"uncorrectable (NVLink|ECC) error", "CUDA runtime, errors 214, 220"),
    Words(_INFRA, r"NVRM: Xid|\bXid \(PCI", "NVIDIA driver, kernel log"),
    Words(_INFRA, r"fallen off the bus|GPU is lost|no CUDA-capable device", "NVIDIA driver; CUDA error 100"),
    Words(_INFRA, r"all CUDA-capable devices are busy", "CUDA runtime, error 46"),
    Words(_INFRA, r"driver version is insufficient", "CUDA runtime, error 35"),
    Words(_INFRA, r"ncclSystemError|unhandled system error", "NCCL result 2: socket, IB, shm"),
    Words(_INFRA, r"ncclInternalError|internal error - please report", "NCCL result 3"),
    Words(_INFRA, r"\bibv_\w+ failed|NET/IB : Got completion", "NCCL src/misc/ibvwrap.cc, net_ib"),
    Words(_IMPORT, r"^(ModuleNotFound|Import)Error\b", "Python's import system"),
    Words(_IMPORT, r"^\S*python\S*: (No module named|Error while finding module)", "python -m"),
    Words(_IMPORT, r"^OSError: .*cannot open shared object file|symbol lookup error:", "ld.so"),
    Words(_IMPORT, r"can't open file '.*No such file or directory", "python: the script is not there", _SETUP),
    Words(_IMPORT, r"^env: .*(No such file|Permission denied)", "coreutils env: the command cannot be run", _SETUP),
    Words(_IMPORT, r"^\S*sh: (line )?\d+: .*not found$", "sh: a program is not installed, as nsys", _SETUP),
    Words(_IMPORT, r"^(FileNotFound|Permission)Error: .*python", "the interpreter cannot be run", _SETUP),
    Words(_CONFIG, r"^(AssertionError|NotImplementedError|ValidationError)\b", "Megatron-Core's checks", _INIT),
    Words(_CONFIG, r"^\S+: error: ", "Python's argparse", _INIT),
    Words(_CONFIG, r"^(ValueError|TypeError)\b", "Megatron-Core's TransformerConfig.__post_init__", _INIT),
    Words(_CONFIG, r"\bOverridesError: ", "Megatron-Bridge omegaconf_utils.py: Hydra refuses an override", _SETUP),
    Words(_CONFIG, r"^RuntimeError: .*\bdivisible by\b", "Megatron-Core parallel_state.py", _INIT),
)

# Messages of a rank whose peer is gone or late; the kind is that of the peer's failure.
WITNESSED = (
    Words(_CRASH, r"Connection closed by peer|Connection reset by peer", "gloo tcp/pair.cc; errno 104"),
    Words(_CRASH, r"Broken pipe|failed to recv, got 0 bytes", "errno 32; torch TCPStore"),
    Words(_CRASH, r"Connection refused|Connection was likely closed", "errno 111; torch TCPStore"),
    Words(_CRASH, r"ncclRemoteError|remote process exiting prematurely", "NCCL result 6"),
    Words(_HANG, r"Watchdog caught collective operation timeout", "torch ProcessGroupNCCL.cpp"),
    Words(_CRASH, r"NCCL communicator was aborted", "torch ProcessGroupNCCL.cpp"),
    Words(_HANG, r"Timed out waiting \d+ms for|timeout caused pair closure", "gloo unbound_buffer.cc, pair.cc"),
    Words(_HANG, r"wait timeout after \d+ms|Socket Timeout", "torch TCPStore"),
)


def match(lines: Sequence[str], phase: BurstPhase) -> tuple[Words, str] | None:
    """Returns the first row of the table that matches a line, causes before consequences; and that line. None if none
    does."""
    for words in (*CAUSES, *WITNESSED):
        if words.phases is None or phase in words.phases:
            pattern = re.compile(words.pattern, re.IGNORECASE)
            if line := next((line for line in lines if pattern.search(line)), None):
                return words, line.strip()
    return None
