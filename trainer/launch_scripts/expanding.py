"""Words of the user's command whose values are known only in the job: `trainer.expand`, expanded by bash at its
start."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence

from trainer.errors import ToolError


def shell_words(words: Iterable[str], expand: Collection[str]) -> str:
    """Returns the words for a bash script: those in `expand` between double quotes, all others quoted literally."""
    return " ".join(f'"{word}"' if word in expand else shlex.quote(word) for word in words)


def with_values(words: Sequence[str], expand: Collection[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words, with the values that bash gives those in `expand` here. Raises ToolError if it cannot."""
    here = [word for word in dict.fromkeys(words) if word in expand]
    if not here:
        return tuple(words)
    text = "printf '%s\\0' " + shell_words(here, here)
    done = subprocess.run(["bash", "-c", text], env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"trainer.expand: bash says {done.stderr.strip()}", hint="correct the word in the recipe")
    values = dict(zip(here, done.stdout.split("\0"), strict=False))
    return tuple(values.get(word, word) for word in words)
