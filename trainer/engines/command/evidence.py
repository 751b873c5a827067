"""What the log of a trainer that failed says of each rank, in the words of `trainer.failures`.

A trainer writes no report: which rank failed tells torchrun, or the exception at the end of its log; where it was
tells the traceback, else the phase our sitecustomize left, else the lines before.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from trainer.burst import BurstPhase
from trainer.failures import Death, RankEvidence
from trainer.launchers import Processes
from trainer.launchers.mailbox import TAIL_BYTES
from trainer.rank_report import phase_path

_PREFIX = re.compile(r"^\[rank\d+\]:? ?", re.MULTILINE)  # torch's excepthook puts it before every line
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^\w[\w.]*(Error|Exception|Interrupt)\b", re.MULTILINE)  # the last line of a traceback
_USAGE = re.compile(r"^\S+: error: ", re.MULTILINE)  # argparse
# functions of a traceback, innermost meaning first -> the phase they belong to
_FUNCTIONS = (
    (r"in (backward_step|backward|_engine_run_backward|custom_backward)\b", BurstPhase.BACKWARD),
    (r"optimizer\.py.*in step\b|in step_with_ready_grads\b|in _step\b", BurstPhase.OPTIMIZER),
    (r"in forward_step\b", BurstPhase.FORWARD),
    (r"in (setup_model_and_optimizer|get_model|initialize_megatron|validate_args|parse_args|setup)\b", BurstPhase.INIT),
)
_SETTING_UP = re.compile(r"using world size|initializ\w+ torch distributed|-- arguments --|building \w+ tokenizer")


def evidence_of(processes: Processes, burst_folder: Path, *, trained: bool) -> list[RankEvidence]:
    """Of every rank, once all have ended. `trained`: an iteration was done."""
    named = processes.deaths_told
    found = []
    for rank in range(processes.world_size):
        paths = processes.outputs(rank)
        log = "\n".join(_tail(path) for path in paths)
        code = named.get(rank)
        if code is None and (_RAISED.search(_last_traceback(log)) or _USAGE.search(log)):
            code = 1
        if code is None and named:
            code = -signal.SIGTERM  # torchrun ends the others when one fails
        at_s = max((path.stat().st_mtime for path in paths), default=0.0)
        death = None if code is None else Death(at_s=at_s, code=code)
        phase = _phase(log, burst_folder, rank, trained=trained)
        found.append(RankEvidence(rank=rank, phase=phase, death=death, log=log))
    return found


def _tail(path: Path) -> str:
    return _PREFIX.sub("", path.read_bytes()[-TAIL_BYTES:].decode(errors="replace"))


def _last_traceback(log: str) -> str:
    return log[log.rfind(_TRACEBACK) :] if _TRACEBACK in log else ""


def _phase(log: str, burst_folder: Path, rank: int, *, trained: bool) -> BurstPhase:
    raised_in = _last_traceback(log)
    for pattern, phase in _FUNCTIONS:
        if re.search(pattern, raised_in):
            return phase
    path = phase_path(burst_folder, rank)
    left = path.read_text().strip() if path.exists() else ""
    if left in list(BurstPhase):
        return BurstPhase(left)
    if trained:
        return BurstPhase.FORWARD
    began = raised_in or _SETTING_UP.search(log) or _USAGE.search(log)
    return BurstPhase.INIT if began else BurstPhase.START
