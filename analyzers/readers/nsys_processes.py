"""Finds the rank of each process in an Nsight export, and the GPU that a process's device number means.

A process counts only the devices that it sees (CUDA_VISIBLE_DEVICES): each of eight ranks may number its own device 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from analyzers.readers.naming import rank_in_name
from analyzers.readers.nsys_export import MISSING, Export

PROCESS_SHIFT = 24  # globalTid and globalPid: hardware 8 bits, VM 8, process 24, thread 24
PROCESS_BITS = (1 << 24) - 1
# set by launchers, the most reliable first: torchrun, Open MPI, PMIx, MPICH and Slurm's PMI
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
ENVIRONMENT = "META_DATA_CAPTURE"  # rows PROCESS_0:ENVIRONMENT_VARIABLE of value RANK="3"


def ranks(export: Export, processes: Sequence[int]) -> dict[int, int | None]:
    """Returns the rank of each process (globalPid >> 24), None if the export does not give it.

    MPI's own table comes first. The environment of the profiled command and the name of the file are used only if there
    is a single process: with several, the command was a launcher.
    """
    if export.has("MPI_RANKS", "globalTid", "rank"):
        thread, rank = export.integers("MPI_RANKS", ("globalTid", "rank"))
        from_mpi = dict(zip((thread >> PROCESS_SHIFT).tolist(), rank.tolist(), strict=True))
    else:
        from_mpi = {}
    alone = len(processes) == 1
    return {one: from_mpi.get(one, _rank_of_file(export) if alone else None) for one in processes}


def _rank_of_file(export: Export) -> int | None:
    given = _environment(export)
    return next((given[name] for name in RANK_VARIABLES if name in given), rank_in_name(export.path))


def _environment(export: Export) -> dict[str, int]:
    """Returns the RANK_VARIABLES that were set in the environment of the profiled command."""
    any_of = " OR ".join(f"value LIKE '{name}=%'" for name in RANK_VARIABLES)
    rows = export.texts(ENVIRONMENT, "value", f"name LIKE '%ENVIRONMENT_VARIABLE' AND ({any_of})")
    found = (re.fullmatch(r'(\w+)="?(\d+)"?', row or "") for row in rows)
    return {match[1]: int(match[2]) for match in found if match}


def gpus(export: Export) -> dict[tuple[int, int], int]:
    """Returns {(process id, device number within the process): number of the GPU in its machine}; empty before 2025."""
    columns = export.integers("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    return {(pid, own): gpu for pid, own, gpu in zip(*(c.tolist() for c in columns), strict=True) if gpu != MISSING}
