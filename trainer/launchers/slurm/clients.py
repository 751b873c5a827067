"""Calls Slurm's own programs, each with a time limit, so that a controller that does not answer cannot hang the tuner.

`python -m trainer.launchers.slurm.clients NAME` ends what runs under names that begin with NAME.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from trainer.errors import ToolError
from trainer.launchers.slurm.states import refusal

CLIENT_S = 20.0
_GONE_S = 60.0  # KillWait (30 s by default) and the epilogue
_ANSWER_S = 600.0  # time for a controller, or its machine, to restart
POLL_S = 0.5

# messages of Slurm's programs if no controller can be reached, or none has taken over yet
_SILENT = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection (?:refused|reset|timed out)"
    r"|connect(?:ion)? failure|Zero Bytes were transmitted|essage (?:send|receive) failure|in standby mode"
    r"|No route to host|temporarily"
)

Run = Callable[[Sequence[str]], str | None]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(argv: Sequence[str], *, timeout_s: float = CLIENT_S) -> str | None:
    """Runs a program of Slurm and returns its output; None if it fails or does not answer in time."""
    try:
        return answer(argv, timeout_s=timeout_s)
    except ToolError:
        return None


def answer(argv: Sequence[str], *, timeout_s: float = CLIENT_S) -> str | None:
    """Runs a program of Slurm and returns its output; None if the controller does not answer for now.

    Raises ToolError, with the program's message, if it fails for another reason, which waiting does not change.
    """
    try:
        done = subprocess.run(
            argv, env=_plain(os.environ), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        raise _fails(argv, str(error)) from None
    if done.returncode == 0:
        return done.stdout
    words = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
    if words and not _SILENT.search(words):
        raise _fails(argv, words)
    return None


def _fails(argv: Sequence[str], words: str) -> ToolError:
    return ToolError(
        f"{argv[0]} fails: {words}", hint=f"run `{shlex.join(argv)}` here; once it answers, continue with --resume"
    )


def _plain(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without a user's settings for queue listings: hidden states, other time formats."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("SQUEUE_", "SINFO_", "SACCT_"))}
    return {**kept, "SLURM_TIME_FORMAT": "standard"}


def takes(sbatch: Sequence[str], env: Mapping[str, str]) -> bool:
    """Returns whether Slurm would start the job, now or later; true also if it does not answer."""
    argv = [sbatch[0], "--test-only", *sbatch[1:]]
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode == 0 or refusal(done.stderr) is None


def require(*programs: str) -> None:
    """Raises ToolError if a program of Slurm is not on the path."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        raise ToolError(
            f"launcher slurm needs {' and '.join(missing)}, and this machine has none",
            hint="run on a node of the cluster with Slurm's programs on the path, or set burst.launcher to local",
        )


def job_record(job: str, *, ask: Run = run) -> dict[str, str] | None:
    """Returns `scontrol show job` by field; None if it does not answer or no longer knows the job."""
    text = ask(["scontrol", "show", "job", job, "-o"])
    return None if text is None else fields_of(text)


def is_gone(job: str, *, ask: Run = run) -> bool:
    """Returns whether the controller answers and knows no such job of this user; it forgets jobs minutes after their
    end."""
    listed = ask(["squeue", "-h", "--me", "-t", "all", "-o", "%A"])
    return listed is not None and job not in listed.split()


def why_unanswered(job: str, *, ask: Run = answer) -> str:
    """Returns why the state of a job is not known: the message of squeue, or that the controller does not answer."""
    try:
        listed = ask(["squeue", "-h", "-j", job])
    except ToolError as error:
        return error.what
    return "the controller does not answer" if listed is None else "scontrol fails, squeue answers"


def fields_of(text: str) -> dict[str, str]:
    """Parses one line of `scontrol -o`.

    Values with spaces or equals signs are not parsed correctly; the fields used here have none.
    """
    pairs = (word.partition("=") for word in text.split())
    found: dict[str, str] = {}
    for name, _, value in pairs:
        found.setdefault(name, value)
    return found


def has_gpus(record: Mapping[str, str]) -> bool:
    """Returns whether Slurm gave the job GPUs. Where GPUs are not a GRES, every program on a node sees all of them."""
    return any("gpu" in value for name, value in record.items() if "tres" in name.lower())


def step_states(job: str, *, ask: Run = run) -> list[str]:
    """Returns states of the job's steps if accounting is on; only they show OUT_OF_MEMORY."""
    text = ask(["sacct", "-n", "-P", "-j", job, "-o", "JobIDRaw,State"])
    rows = (line.split("|") for line in (text or "").splitlines())
    return [row[1].split()[0] for row in rows if len(row) == 2 and "." in row[0] and row[1]]


def hostnames(nodes: str, *, ask: Run = run) -> list[str]:
    """Returns the nodes in a list as Slurm writes it: n[1-2,7] → n1, n2, n7; the list itself if scontrol fails."""
    if not nodes or "[" not in nodes:
        return [name for name in nodes.split(",") if name]
    return (ask(["scontrol", "show", "hostnames", nodes]) or nodes).split()


def down(nodes: Sequence[str], *, ask: Run = run) -> list[str]:
    """Returns the nodes that Slurm cannot use: down, failing, or not responding (a star after the state)."""
    text = ask(["sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N|%T"]) or "" if nodes else ""
    rows = (line.strip().split("|") for line in text.splitlines())
    bad = {row[0] for row in rows if len(row) == 2 and ("*" in row[1] or row[1].startswith(("down", "fail", "error")))}
    return [node for node in nodes if node in bad]


def listed(prefix: str, *, ask: Run = run) -> list[str] | None:
    """Returns the ids of what runs or waits under names with this prefix: this user's jobs, and steps of any job.

    None if the controller does not answer.
    """
    jobs, steps = (ask(["squeue", "-h", "--me", *which, "-o", "%i|%j"]) for which in ([], ["-s"]))
    if jobs is None or steps is None:
        return None
    rows = (line.strip().split("|", 1) for line in [*jobs.splitlines(), *steps.splitlines()])
    return [row[0] for row in rows if len(row) == 2 and row[1].startswith(prefix)]


def named(
    prefix: str, *, ask: Run = answer, answer_s: float = _ANSWER_S, say: Callable[[str], None] = say
) -> list[str]:
    """Returns the ids that `listed` returns, but waits for the controller's answer, since a job may run that is not
    listed.

    Raises ToolError if it stays silent, or at once if squeue fails.
    """
    give_up, silent = time.monotonic() + answer_s, False
    while (found := listed(prefix, ask=ask)) is None:
        if time.monotonic() > give_up:
            raise ToolError(
                f"Slurm has not answered squeue for {answer_s:.0f} s",
                hint="see `scontrol ping`; once it answers, continue with --resume",
            )
        if not silent:
            say(f"Slurm does not answer: waiting for it, up to {answer_s / 60:.0f} minutes")
        silent = True
        time.sleep(POLL_S)
    return found


def cancel(prefix: str, *, ask: Run = run, gone_s: float = _GONE_S) -> list[str]:
    """Ends what runs under names with this prefix, waits until Slurm no longer lists it, at most `gone_s`, and returns
    the ids that were listed."""
    give_up = time.monotonic() + gone_s
    ended: list[str] = []
    while (left := listed(prefix, ask=ask)) != [] and time.monotonic() < give_up:
        ended += [each for each in left or () if each not in ended]
        if left:
            ask(["scancel", *left])
        time.sleep(POLL_S)
    return ended


if __name__ == "__main__":
    cancel(sys.argv[1])
