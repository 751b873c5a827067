"""The commands of `moe-autotune`, one file each.

A command prints its result and returns an `Answer`: the exit code, and the document that `--json` prints instead. Heavy
modules are imported inside the command, so that `--help` is quick.
"""

from autotune.commands.answer import Answer

__all__ = ["Answer"]
