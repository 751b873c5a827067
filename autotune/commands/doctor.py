"""`moe-autotune doctor`: shows what this machine has for tuning, and what is missing."""

from __future__ import annotations

from autotune.commands.answer import Answer


def doctor() -> Answer:
    """Show what this machine has for tuning, and what is missing."""
    from autotune.doctor.checks import DoctorDocument, examine
    from autotune.doctor.terminal import show_doctor

    found = examine()
    show_doctor(found)
    return Answer(document=DoctorDocument(schema=1, found=found))
