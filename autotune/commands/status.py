"""`moe-autotune status` and `watch`: show the state of a study, from its journal alone, in another shell."""

from __future__ import annotations

from pathlib import Path

from autotune.commands.answer import Answer, StudyFolder


def status(study: StudyFolder) -> Answer:
    """Show the state of a study: what runs and why, the best so far, the cost, the expected end."""
    from autotune.status.terminal import show_status
    from autotune.status.watching import look

    status, now = look(Path(study))
    show_status(status, now)
    return Answer(document=status)


def watch(study: StudyFolder) -> Answer:
    """Follow a study that runs in another shell until it ends. Ctrl-C stops watching, not the study."""
    from autotune.status.watching import follow

    return Answer(document=follow(Path(study)))
