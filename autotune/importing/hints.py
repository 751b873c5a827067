"""Names the files that a user may import instead of one that was refused."""

from __future__ import annotations

from trainer.frameworks.registry import readers


def known_files() -> str:
    """Names every kind of file that is read."""
    named = [reader.readable for _, reader in reversed(readers())]
    return f"it may be {', '.join(['a bash script', *named])}, or a Hugging Face config.json"


def left_by_runs() -> str:
    """Names every file that is read and that a run of a trainer leaves."""
    return ", or ".join(reader.left_by_runs for _, reader in reversed(readers()))


def hint_for_program() -> str:
    """Names the files to import instead of a program that is not a bash script."""
    return f"import what a run of it left: {left_by_runs()}; or the torchrun or srun line that it starts"


def hint_for_script() -> str:
    """Names the files to import instead of a script that starts no training command."""
    return (
        "name the script that starts the trainer, or import what a run of it left: MOE_AUTOTUNE_RECORD=FILE in a real "
        f"start, {left_by_runs()}, or a file of its arguments"
    )
