"""Words of the user's command whose values only the job knows: `trainer.expand`, expanded by bash when it starts."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence

from trainer.errors import ToolError


def shell_words(words: Iterable[str], expand: Collection[str]) -> str:
    """Returns the words for a script of bash: those of `expand` between double quotes, all others unchanged."""
    return " ".join(f'"{word}"' if word in expand else shlex.quote(word) for word in words)


def with_values(words: Sequence[str], expand: Collection[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the words, those of `expand` with the values that bash gives them here. ToolError where it cannot."""
    here = [word for word in dict.fromkeys(words) if word in expand]
    if not here:
        return tuple(words)
    text = "printf '%s\\0' " + shell_words(here, here)
    done = subprocess.run(["bash", "-c", text], env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolError(f"trainer.expand: bash says {done.stderr.strip()}", hint="correct the word in the recipe")
    values = dict(zip(here, done.stdout.split("\0"), strict=False))
    return tuple(values.get(word, word) for word in words)
