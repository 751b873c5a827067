"""The commands of `moe-autotune`, one file each.

A command prints what people read and returns an `Answer`: the exit code, and the document that `--json`
prints in its place. Everything heavy is imported inside the command, so that `--help` costs nothing.
"""

from autotune.commands.answer import Answer

__all__ = ["Answer"]
