"""Runs the user's command when a study ends: a message, a mail, another job.

The summary is in the command's environment, its output is shown, and its failure does not affect the study.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from autotune.tuning.study_status import StudyStatus

PREFIX = "MOE_AUTOTUNE_"
WAIT_S = 60.0


def summary_of(status: StudyStatus) -> str:
    """Returns `qwen3-30b-a3b: converged, trial 4 (drop_recompute), 1.42× trial 0 (95 % interval 1.39–1.44); 12 bursts,
    3.1 GPU-hours`."""
    best = status.best.words if status.best else "nothing runs"
    text = f"{status.study}: {status.status or status.state}, {best}; {status.cost}"
    return f"{text} (simulated)" if status.simulated else text


def variables(status: StudyStatus, *, code: int, report: str) -> dict[str, str]:
    """Returns the environment variables of the command; unknown values are empty."""
    best = status.best
    known: dict[str, object] = {
        "SUMMARY": summary_of(status),
        "STUDY": status.study,
        "FOLDER": status.folder,
        "REPORT": report,
        "STATUS": status.status,
        "BECAUSE": status.because,
        "EXIT_CODE": code,
        "BEST_TRIAL": best.trial if best else None,
        "SPEEDUP": f"{best.speedup:.4f}" if best and best.speedup is not None else None,
        "TOKENS_PER_S_PER_GPU": f"{best.tokens_per_s_per_gpu:.6g}" if best and best.tokens_per_s_per_gpu else None,
        "BURSTS": status.bursts,
        "GPU_HOURS": f"{status.gpu_hours:.6g}",
        "SIMULATED": "yes" if status.simulated else "no",
        "RESUME": status.resume,
    }
    return {PREFIX + name: "" if value is None else str(value) for name, value in known.items()}


def notify(command: str, environment: Mapping[str, str], *, wait_s: float = WAIT_S) -> str | None:
    """Runs the command in a shell; returns why it failed, or None. Kills it after `wait_s` seconds."""
    try:
        done = subprocess.run(["sh", "-c", command], env={**os.environ, **environment}, timeout=wait_s, check=False)
    except subprocess.TimeoutExpired:
        return f"notify: the command ran longer than {wait_s:.0f} s and was killed"
    return f"notify: the command exited with {done.returncode}" if done.returncode else None
