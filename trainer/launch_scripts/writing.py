"""Parts of a bash script that starts ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainer.launch_scripts.argv import split
from trainer.launch_scripts.expanding import shell_words
from trainer.recipe import Recipe


def torchrun_words(recipe: Recipe) -> str:
    """Returns torchrun's options for nodes and ranks.

    On several nodes the shell inserts the node's number; on a single node no host name has to resolve.
    """
    where = f"--nnodes {recipe.cluster.nodes} --nproc-per-node {recipe.ranks_per_node}"
    if recipe.cluster.nodes == 1:
        return f"{where} --local-addr localhost"
    return f'{where} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'


def array(name: str, words: Iterable[str], expand: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the lines of a bash array, one flag with its values per line.

    Words in `expand` are between double quotes.
    """
    yield f"{name}=("
    yield from (f"  {shell_words(each.argv, expand)}" for each in split(words) if each.argv)
    yield ")"


def comment(text: str) -> str:
    """Returns the text as a comment on a single line, so that a line break in it does not end the comment."""
    return f"# {' '.join(text.split())}"
