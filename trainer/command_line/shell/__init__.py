"""Launch scripts of bash, read and never executed: what their variables hold and which commands they would start."""

from trainer.command_line.shell.reading import read_script
from trainer.command_line.shell.script import Command, Script, TooMuchError
from trainer.command_line.shell.state import ReadBeside
from trainer.command_line.shell.words import Gap, Word

__all__ = ["Command", "Gap", "ReadBeside", "Script", "TooMuchError", "Word", "read_script"]
