"""What a user may import instead, as hints name it."""

from __future__ import annotations

from trainer.frameworks.registry import readers


def known_files() -> str:
    """Every kind of file that is read."""
    named = [reader.readable for _, reader in reversed(readers())]
    return f"it may be {', '.join(['a bash script', *named])}, or a Hugging Face config.json"


def left_by_runs() -> str:
    """Every file that a run of a trainer writes."""
    return ", or ".join(reader.left_by_runs for _, reader in reversed(readers()))


def of_a_program() -> str:
    """For a program that is not a script of bash."""
    return f"import what a run of it left: {left_by_runs()}; or the torchrun or srun line that it starts"


def of_a_script() -> str:
    """For a script of which no training command is known."""
    return (
        "name the script that starts the trainer, or import what a run of it left: MOE_AUTOTUNE_RECORD=FILE in a real "
        f"start, {left_by_runs()}, or a file of its arguments"
    )
