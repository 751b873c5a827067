"""Errors for bad input and failing tools: the fact, the place, the next step.

What training does (out of memory, hang, NaN) is never an exception: it is an `Outcome`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem with the user's input: `where` is a file and key, `hint` the next step."""

    where: str
    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}\n    → {self.hint}"


class BadInputError(ValueError):
    """The user's input cannot be used. Carries every problem found, not only the first (exit code 2)."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))


def refused(where: str, what: str, hint: str) -> BadInputError:
    """Returns a BadInputError with a single problem, to be raised."""
    return BadInputError(Problem(where=where, what=what, hint=hint))


class ToolError(RuntimeError):
    """An engine, launcher or external tool could not do its work (exit code 3)."""

    def __init__(self, what: str, *, hint: str) -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}\n    → {hint}")


class AllocationEndedError(ToolError):
    """The allocation of a study has ended: its time is over, or it was preempted or cancelled. The study ends in order
    and can be resumed."""
