"""Evidence by rank, from the log of a trainer that failed, as `trainer.failures` takes it.

A trainer writes no report of its own. The failed rank is known from torchrun or from the exception at the end of its
log; the phase from the traceback, else from the phase file of the injected sitecustomize, else from the lines before.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from trainer.burst import BurstPhase
from trainer.engines.command.lines import plain
from trainer.failures import Death, RankEvidence
from trainer.launchers import Processes
from trainer.launchers.mailbox import tail
from trainer.rank_report import phase_path

_PREFIX = re.compile(r"^\[rank\d+\]:? ?", re.MULTILINE)  # torch's excepthook puts it before every line
_UNCAUGHT = re.compile(r"^\[rank\d+\]: Traceback \(most recent call last\):$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^\w[\w.]*(Error|Exception|Interrupt)\b", re.MULTILINE)  # the last line of a traceback
_CHAINED = re.compile(
    r"^(During handling of the above exception|The above exception was the direct cause)", re.MULTILINE
)
_NAN = re.compile(r"Unexpected result (nan|-?inf)|found (NaN|Inf) in", re.IGNORECASE)
_USAGE = re.compile(r"^\S+: error: ", re.MULTILINE)  # argparse
# functions of a traceback -> the phase they belong to, the most specific first
_FUNCTIONS = (
    (r"in (backward_step|backward|_engine_run_backward|custom_backward)\b", BurstPhase.BACKWARD),
    (r"optimizer\.py.*in step\b|in step_with_ready_grads\b|in _step\b", BurstPhase.OPTIMIZER),
    (r"in forward_step\b", BurstPhase.FORWARD),
    (r"in (setup_model_and_optimizer|get_model|initialize_megatron|validate_args|parse_args|setup)\b", BurstPhase.INIT),
)
_SETTING_UP = re.compile(r"using world size|initializ\w+ torch distributed|-- arguments --|building \w+ tokenizer")


def evidence_of(processes: Processes, burst_folder: Path, *, trained: bool) -> list[RankEvidence]:
    """Returns the evidence of every rank; call it once all have ended. `trained`: at least one iteration was done."""
    named = processes.reported_deaths
    found = []
    for rank in range(processes.world_size):
        paths = processes.outputs(rank)
        written = plain("\n".join(tail(path) for path in paths))
        log, uncaught = _PREFIX.sub("", written), _UNCAUGHT.search(written)
        code = named.get(rank)
        if code is None and (uncaught or (not named and (_RAISED.search(_last_traceback(log)) or _USAGE.search(log)))):
            code = 1
        if code is None and named:
            code = -signal.SIGTERM  # torchrun ends the others when one fails
        at_s = max((path.stat().st_mtime for path in paths), default=0.0)
        death = None if code is None else Death(at_s=at_s, code=code)
        phase = _phase(log, burst_folder, rank, trained=trained)
        found.append(RankEvidence(rank=rank, phase=phase, death=death, log=_final_errors(log) if code == 1 else log))
    return found


def _final_errors(log: str) -> str:
    """Returns the lines that report a NaN or infinity, which leads to an unrelated exception, then the tracebacks of
    the exception that ended the rank and of its causes. Other tracebacks were caught and did not end the rank. Returns
    a log without traceback whole."""
    if _TRACEBACK not in log:
        return log
    _, *tracebacks = log.split(_TRACEBACK)
    first = len(tracebacks) - 1
    while first and _CHAINED.search(tracebacks[first - 1]):
        first -= 1
    not_finite = "\n".join(line for line in log.splitlines() if _NAN.search(line))
    return "\n".join([not_finite, *(_TRACEBACK + text for text in tracebacks[first:])])


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
    started = raised_in or _SETTING_UP.search(log) or _USAGE.search(log)
    return BurstPhase.INIT if started else BurstPhase.START
