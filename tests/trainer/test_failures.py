"""Failures are classified from evidence: the first rank that failed by itself, never a witness."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from trainer.burst import BurstPhase, Failure, FailureKind
from trainer.failure_words import CAUSES, WITNESSED, Words, match
from trainer.failures import Death, Evidence, RankEvidence, classify
from trainer.rank_report import RankError, RankReport

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:22040"
NCCL_OOM = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\nCuda failure 2 'out of memory'"
)
ANY = BurstPhase.FORWARD
# messages of real programs -> their kind of failure
SAID = [
    (FailureKind.OOM, "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    (
        FailureKind.OOM,
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of",
    ),
    (FailureKind.OOM, "AcceleratorError: CUDA error: out of memory"),
    (FailureKind.OOM, f"DistBackendError: {NCCL_OOM}"),
    (FailureKind.OOM, "DistBackendError: unhandled cuda error, NCCL version 2.21.5, last error: out of memory"),
    (FailureKind.OOM, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    (FailureKind.OOM, "OutOfMemory: HIP out of memory. Tried to allocate 1.00 GiB"),
    (FailureKind.OOM, "terminate called after throwing an instance of 'std::bad_alloc'"),
    (FailureKind.OOM, "numpy._core._exceptions._ArrayMemoryError: x\nMemoryError: Unable to allocate 8.00 GiB"),
    (FailureKind.OOM, "OSError: [Errno 12] Cannot allocate memory"),
    (FailureKind.OOM, "libgomp: Thread creation failed: Resource temporarily unavailable"),
    (FailureKind.OOM, "RuntimeError: Resource temporarily unavailable"),
    (FailureKind.NAN, "NanLossError: loss is nan at step 3"),
    (FailureKind.NAN, "RuntimeError: Rank 3: found NaN in local grad norm for bucket #0 in backward pass"),
    (
        FailureKind.INFRASTRUCTURE,
        "DistNetworkError: The server socket has failed to listen: EADDRINUSE, address in use",
    ),
    (FailureKind.INFRASTRUCTURE, "OSError: [Errno 28] No space left on device"),
    (FailureKind.INFRASTRUCTURE, "OSError: [Errno 30] Read-only file system: '/data'"),
    (FailureKind.INFRASTRUCTURE, "RuntimeError: unable to write to file </torch_12_3>"),
    (FailureKind.INFRASTRUCTURE, "AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
    (FailureKind.INFRASTRUCTURE, "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."),
    (FailureKind.INFRASTRUCTURE, "RuntimeError: no CUDA-capable device is detected"),
    (FailureKind.INFRASTRUCTURE, "CUDA error: all CUDA-capable devices are busy or unavailable"),
    (FailureKind.INFRASTRUCTURE, "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
    (FailureKind.INFRASTRUCTURE, "ncclSystemError: System call (e.g. socket, malloc) or external library call failed"),
    (FailureKind.INFRASTRUCTURE, "ncclInternalError: Internal check failed."),
    (FailureKind.INFRASTRUCTURE, "NCCL WARN Call to ibv_modify_qp failed with error No data available"),
    (FailureKind.IMPORT, "ModuleNotFoundError: No module named 'megatron'"),
    (FailureKind.IMPORT, "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    (FailureKind.IMPORT, "/usr/bin/python3: No module named trainer.worker"),
    (FailureKind.IMPORT, "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"),
    (FailureKind.HANG, "[rank1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)"),
    (
        FailureKind.HANG,
        "RuntimeError: [unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation to complete",
    ),
    (FailureKind.HANG, "DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//0"),
    (FailureKind.CRASH, f"RuntimeError: {CLOSED}"),
    (FailureKind.CRASH, "DistNetworkError: failed to recv, got 0 bytes"),
    (FailureKind.CRASH, "ConnectionRefusedError: [Errno 111] Connection refused"),
    (FailureKind.CRASH, "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"),
    (FailureKind.CRASH, "DistBackendError: NCCL communicator was aborted on rank 1."),
]
SAID_IN_SETUP = [
    (FailureKind.CONFIG, BurstPhase.INIT, "AssertionError: num_moe_experts must be divisible by ep"),
    (FailureKind.CONFIG, BurstPhase.INIT, "ValueError: num_attention_heads (6) must be a multiple of tp (4)."),
    (FailureKind.CONFIG, BurstPhase.INIT, "RuntimeError: world_size (2) is not divisible by 4"),
    (FailureKind.CONFIG, BurstPhase.INIT, "pretrain_gpt.py: error: unrecognized arguments: --no-such-flag"),
    (
        FailureKind.CONFIG,
        BurstPhase.INIT,
        "megatron.bridge.training.utils.omegaconf_utils.OverridesError: Failed to parse Hydra overrides: Could not "
        "override 'comm_overlap.overlap_p2p_comm'.",
    ),
    (
        FailureKind.IMPORT,
        BurstPhase.START,
        "python: can't open file '/x/y.py': [Errno 2] No such file or directory",
    ),
    (FailureKind.IMPORT, BurstPhase.START, "sh: 1: exec: nsys: not found"),
    (FailureKind.IMPORT, BurstPhase.START, "env: ‘/no/python3’: No such file or directory"),
    (FailureKind.IMPORT, BurstPhase.START, "FileNotFoundError: [Errno 2] No such file or directory: '/no/python3'"),
]


@pytest.mark.parametrize(("kind", "text"), SAID)
def test_output_of_programs_is_understood_in_any_phase(kind: FailureKind, text: str) -> None:
    found = match(text.splitlines(), ANY)
    assert found is not None
    assert found[0].kind is kind


@pytest.mark.parametrize(("kind", "phase", "text"), SAID_IN_SETUP)
def test_some_words_mean_something_in_setup_only(kind: FailureKind, phase: BurstPhase, text: str) -> None:
    found = match([text], phase)
    assert found is not None
    assert found[0].kind is kind
    assert match([text], BurstPhase.BACKWARD) is None


@pytest.mark.parametrize("words", [*CAUSES, *WITNESSED], ids=lambda words: words.pattern)
def test_every_row_has_a_saying_that_it_matches_and_a_source(words: Words) -> None:
    said = [line for _, text in SAID for line in text.splitlines()] + [text for _, _, text in SAID_IN_SETUP]
    assert any(re.search(words.pattern, line, re.IGNORECASE) for line in said)
    assert words.source


def reported(rank: int, at_s: float, text: str, *, phase: BurstPhase = ANY, traceback: str = "") -> RankEvidence:
    kind, _, message = text.partition(": ")
    error = RankError(type=kind, message=message, phase=phase, at_s=at_s, traceback=traceback)
    return RankEvidence(rank=rank, phase=phase, report=RankReport(rank=rank, error=error))


def died(rank: int, at_s: float, code: int | None, *, phase: BurstPhase = ANY, log: str = "") -> RankEvidence:
    return RankEvidence(rank=rank, phase=phase, death=Death(at_s=at_s, code=code), log=log)


def well(rank: int, *, loss: list[float] | None = None, diverged: str | None = None) -> RankEvidence:
    return RankEvidence(rank=rank, report=RankReport(rank=rank, loss=loss or [], diverged=diverged))


def failure(*ranks: RankEvidence, **rest: Any) -> Failure:
    found = classify(Evidence(ranks=ranks, **rest))
    assert found is not None
    return found


def test_ranks_that_did_well_are_no_failure() -> None:
    assert classify(Evidence(ranks=[well(0, loss=[1.0, 0.5]), well(1)])) is None


def test_the_first_rank_that_failed_by_itself_is_named_even_if_a_witness_spoke_before() -> None:
    found = failure(reported(0, 1.0, f"RuntimeError: {CLOSED}"), died(1, 1.1, -11, phase=BurstPhase.BACKWARD))
    assert (found.kind, found.rank, found.phase) == (FailureKind.CRASH, 1, BurstPhase.BACKWARD)


def test_of_two_ranks_out_of_memory_the_earlier_is_named() -> None:
    found = failure(reported(0, 2.0, "MemoryError: "), reported(1, 1.0, "MemoryError: ", phase=BurstPhase.OPTIMIZER))
    assert (found.kind, found.rank, found.phase) == (FailureKind.OOM, 1, BurstPhase.OPTIMIZER)


def test_an_error_raised_while_handling_out_of_memory_is_out_of_memory() -> None:
    trace = "Traceback:\n  File x\nMemoryError\n\nDuring handling…\n  raise\nRuntimeError: step failed"
    found = failure(reported(0, 1.0, "RuntimeError: step failed", traceback=trace))
    assert (found.kind, found.evidence) == (FailureKind.OOM, "MemoryError")


def test_an_nccl_error_without_details_is_explained_by_the_log() -> None:
    reporting = reported(0, 1.0, "DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error")
    log = "NCCL WARN Cuda failure 2 'out of memory'\n"
    found = failure(RankEvidence(rank=0, report=reporting.report, phase=ANY, log=log))
    assert found.kind is FailureKind.OOM


def test_a_warning_in_the_log_does_not_explain_a_crash_that_explains_itself() -> None:
    reporting = reported(0, 1.0, "IndexError: list index out of range")
    log = "WARNING: OSError: [Errno 28] No space left on device, cache off\n"
    found = failure(RankEvidence(rank=0, report=reporting.report, phase=ANY, log=log))
    assert (found.kind, found.evidence) == (FailureKind.CRASH, "IndexError: list index out of range")


def test_a_sigkill_is_out_of_memory_only_if_the_kernel_says_so() -> None:
    found = failure(died(0, 1.0, -signal.SIGKILL))
    assert (found.kind, found.killed) == (FailureKind.CRASH, True)
    assert not failure(died(0, 1.0, -signal.SIGSEGV)).killed
    found = failure(died(0, 1.0, -signal.SIGKILL), oom_kills=1)
    assert (found.kind, found.killed) == (FailureKind.OOM, False)
    assert "the kernel killed 1" in found.evidence


def test_an_abort_is_explained_by_the_log() -> None:
    log = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    found = failure(died(1, 1.0, -signal.SIGABRT, log=log), died(0, 2.0, -signal.SIGTERM))
    assert (found.kind, found.rank) == (FailureKind.OOM, 1)


def test_ranks_that_the_agent_ended_are_not_the_cause() -> None:
    found = failure(died(0, 1.0, -signal.SIGTERM), died(1, 1.0, 3))
    assert found.rank == 1
    assert "exited with code 3" in found.evidence


def test_witnesses_alone_mean_the_silent_rank() -> None:
    found = failure(reported(0, 1.0, f"RuntimeError: {CLOSED}"), RankEvidence(rank=1, phase=BurstPhase.BACKWARD))
    assert (found.kind, found.rank, found.phase) == (FailureKind.CRASH, 1, BurstPhase.BACKWARD)
    assert found.evidence.startswith("rank 0 reports")


def test_witnesses_of_a_timeout_tell_of_a_hang_of_nobody_known() -> None:
    text = "RuntimeError: Timed out waiting 1000ms for recv operation to complete"
    found = failure(reported(0, 1.0, text), reported(1, 1.0, text))
    assert (found.kind, found.rank) == (FailureKind.HANG, None)


def test_ranks_killed_with_the_agent_are_not_to_blame() -> None:
    ranks = [died(0, 1.0, -signal.SIGKILL), died(1, 1.0, None)]
    found = failure(*ranks, launcher_code=-signal.SIGKILL)
    assert (found.kind, found.rank, found.phase) == (FailureKind.INFRASTRUCTURE, None, ANY)
    assert failure(*ranks, launcher_code=-signal.SIGKILL, oom_kills=2).kind is FailureKind.OOM
    assert failure(*ranks, launcher_code=-signal.SIGTERM).kind is FailureKind.INTERRUPTED


def test_what_a_scheduler_ended_is_not_the_ranks_fault() -> None:
    said = Failure(kind=FailureKind.INFRASTRUCTURE, evidence="Slurm says: Node failure on n2")
    ranks = [died(0, 1.0, -signal.SIGKILL), died(1, 1.0, -signal.SIGTERM), RankEvidence(rank=2)]
    assert failure(*ranks, ended_by=said, launcher_code=1) == said
    assert failure(died(0, 1.0, 3), ended_by=said).kind is FailureKind.CRASH


def test_a_rank_killed_for_memory_is_named_where_the_scheduler_says_only_that_memory_was_out() -> None:
    said = Failure(kind=FailureKind.OOM, evidence="Slurm says: n2: task 1: Out Of Memory")
    assert failure(died(3, 1.0, -signal.SIGKILL), oom_kills=1, ended_by=said).rank == 3
    assert failure(RankEvidence(rank=3), ended_by=said) == said


def stacks(*innermost: str) -> str:
    return "".join(
        f'Thread 0x1 (most recent call first):\n  {frame}\n  File "w.py", line 1 in f\n' for frame in innermost
    )


def test_the_rank_that_does_not_wait_for_others_is_the_one_that_hangs() -> None:
    waits = stacks('File "torch/distributed/distributed_c10d.py", line 3 in all_reduce', 'File "main.py", line 1 in g')
    spins = "step 3\n" + stacks('File "megatron/core/distributed/ddp.py", line 9 in forward')
    ranks = [
        RankEvidence(rank=0, phase=BurstPhase.OPTIMIZER, log=waits),
        RankEvidence(rank=1, phase=BurstPhase.FORWARD, log=spins),
    ]
    found = failure(*ranks, overdue_s=30.0)
    assert (found.kind, found.rank, found.phase) == (FailureKind.HANG, 1, BurstPhase.FORWARD)
    assert found.evidence == (
        'no end after 30 s: rank 1 in forward at File "megatron/core/distributed/ddp.py", line 9 in forward'
    )


def test_a_hang_of_all_ranks_in_collectives_names_none() -> None:
    waits = stacks('File "torch/distributed/distributed_c10d.py", line 3 in all_reduce')
    found = failure(*(RankEvidence(rank=rank, phase=ANY, log=waits) for rank in range(2)), overdue_s=1.5)
    assert (found.kind, found.rank) == (FailureKind.HANG, None)
    assert "rank 0" in found.evidence
    assert "rank 1" in found.evidence


def test_a_hang_without_stacks_shows_the_last_line() -> None:
    found = failure(RankEvidence(rank=0, phase=ANY, log="one\ntwo\n\n"), overdue_s=1.0)
    assert found.evidence == "no end after 1 s: rank 0 in forward, last line: two"


def test_nan_losses_outrank_the_divergence_they_cause() -> None:
    found = failure(well(0, diverged="weights differ"), well(1, loss=[1.0, float("nan")]))
    assert (found.kind, found.rank, found.evidence) == (FailureKind.NAN, 1, "loss of step 2 is nan")


def test_replicas_that_trained_apart_are_diverged() -> None:
    found = failure(well(0), well(1, diverged="experts.w1 differs by 0.002"))
    assert (found.kind, found.rank, found.phase) == (FailureKind.DIVERGED, 1, BurstPhase.CHECK)


def test_an_agent_that_failed_before_any_rank_arrived_is_explained_by_its_log() -> None:
    silent = RankEvidence(rank=0)
    log = "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE\n"
    assert failure(silent, launcher_code=1, launcher_log=log).kind is FailureKind.INFRASTRUCTURE
    found = failure(silent, launcher_code=1, launcher_log="no idea\n")
    assert (found.kind, found.evidence) == (
        FailureKind.INFRASTRUCTURE,
        "the launcher exited with code 1: no idea",
    )


@pytest.mark.parametrize(
    ("message", "requested_gib"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.33 GiB", 2.5),
        ("CUDA out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 79.33 GiB", 0.5),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes. Error code 12", 0.03125),
        ("SIGKILL while the kernel's oom_kill counter rose", None),
    ],
)
def test_what_was_asked_for_when_memory_ran_out_is_read(message: str, requested_gib: float | None) -> None:
    assert Failure(kind=FailureKind.OOM, evidence=message).requested_gib == requested_gib


# messages of torch 2.0; 2.1; 2.5 with other processes; with a limit and graphs; where the driver lends the host's
# memory
HELD = (
    (
        "CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 79.33 GiB total capacity; 70.85 GiB already "
        "allocated; 512.00 MiB free; 75.33 GiB reserved in total by PyTorch) If reserved memory is >> allocated "
        "memory try setting max_split_size_mb to avoid fragmentation.",
        3.5,
    ),
    (
        "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which "
        "235.06 MiB is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 11.06 GiB is "
        "allocated by PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting",
        14.75 - 11.06 - (235.06 + 330.42) / 1024,
    ),
    (
        "CUDA out of memory. Tried to allocate 1.25 GiB. GPU 1 has a total capacity of 79.33 GiB of which 1.00 "
        "GiB is free. Process 7 has 2.50 GiB memory in use. Including non-PyTorch memory, this process has 75.83 "
        "GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 2.33 GiB is reserved "
        "by PyTorch but unallocated.",
        6.0,
    ),
    (
        "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 "
        "GiB is free. 30.00 GiB allowed; Including non-PyTorch memory, this process has 18.73 GiB memory in use. "
        "Of the allocated memory 9.08 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools "
        "(e.g., CUDA Graphs), and 9.35 GiB is reserved by PyTorch but unallocated.",
        0.31,
    ),
    (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 "
        "bytes is free. Of the allocated memory 14.51 GiB is allocated by PyTorch, and 15.90 MiB is reserved by "
        "PyTorch but unallocated.",
        None,
    ),
    ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.33 GiB", None),
    ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 33554432 bytes. Error code 12", None),
)


@pytest.mark.parametrize(("said", "outside_gib"), HELD)
def test_memory_outside_the_allocator_at_an_oom_is_read(said: str, outside_gib: float | None) -> None:
    ranks = [RankEvidence(rank=511, phase=BurstPhase.BACKWARD, death=Death(at_s=1.0, code=1), log=f"[rank511]: {said}")]
    found = classify(Evidence(ranks=ranks))  # the part of the log that is kept is enough
    assert found is not None
    assert found.outside_gib == (None if outside_gib is None else pytest.approx(outside_gib, abs=1e-6))
