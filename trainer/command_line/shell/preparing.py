"""Commands that prepare the shell itself: modules, conda environments, virtual environments. Exports say them again."""

from __future__ import annotations

import re

from trainer.command_line.shell.words import Word

# a program -> the verbs that change the shell it is called from; () for every one
PREPARES: dict[str, tuple[str, ...]] = {
    "module": ("load", "add", "use", "unload", "rm", "swap", "switch", "purge", "restore", "try-load"),
    "ml": (),
    "conda": ("activate", "deactivate"),
    "mamba": ("activate", "deactivate"),
    "micromamba": ("activate", "deactivate"),
    "spack": ("load", "unload", "env"),
    "pyenv": ("activate", "shell"),
    "ulimit": (),
}
_HOOK = re.compile(r"\b(conda|mamba|micromamba|pyenv|modulecmd|direnv|spack)\b|/lmod\b")


def prepares(words: tuple[Word, ...]) -> bool:
    """Whether the command is one of these, or `eval "$(conda shell.bash hook)"`, or `source …/bin/activate`."""
    name, rest = words[0].text.rpartition("/")[2], [word.text for word in words[1:]]
    if name == "eval":
        return any("$(" in text or "`" in text for text in rest) and _HOOK.search(" ".join(rest)) is not None
    if name in ("source", "."):
        return bool(rest) and rest[0].rpartition("/")[2] == "activate"
    return name in PREPARES and (not PREPARES[name] or any(text in PREPARES[name] for text in rest))
