"""Words of a shell command after expansion, and the gaps in them: pieces that only running the script could tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A piece that cannot be read. `name` is what `--set` fills: a variable, `1`, or the text itself."""

    name: str
    line: int
    text: str  # as written: "$(date +%F)", "$DATA_PATH"
    why: str
    file: str | None = None  # a file the script reads, where it stands in one

    @property
    def has_own_name(self) -> bool:
        """Whether it is a variable's name that people know it by."""
        return re.fullmatch(r"[A-Za-z_]\w*", self.name) is not None

    @property
    def is_asked(self) -> bool:
        """Whether it is what the script is started with, or how a test turns out."""
        return self.name == "@" or self.name.startswith("if@") or self.name.isdigit()


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a word. Unquoted text splits at white space, quoted text and gaps do not.

    `inherits`: a variable's value from before the script, as in PATH=/here:$PATH: empty in a command's words, kept as
    ${PATH} in its environment.
    """

    text: str
    quoted: bool = True
    gap: Gap | None = None
    inherits: str | None = None


BREAK = Piece(text="", quoted=False)  # between two words
Pieces = tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a command: its text, in which gaps stand as they were written.

    `pattern`: it holds * ? or [ outside quotes, for which a shell would look for files.
    """

    text: str
    gaps: tuple[Gap, ...] = ()
    pattern: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Variable:
    """What a variable holds: one value, or those of an array; `keys` of an array by names (declare -A), else None;
    `is_integer`: declared to hold a whole number (declare -i)."""

    values: tuple[Pieces, ...]
    is_array: bool = False
    keys: tuple[str, ...] | None = None
    is_integer: bool = False

    def at(self, key: str) -> Variable | None:
        """The value of a key as a variable of its own."""
        found = dict(zip(self.keys or (), self.values, strict=True))
        return Variable(values=(found[key],)) if key in found else None

    def with_key(self, key: str, value: Pieces, *, adds: bool = False) -> Variable:
        held = dict(zip(self.keys or (), self.values, strict=True))
        held[key] = (*held.get(key, ()), *value) if adds else value
        return Variable(values=tuple(held.values()), is_array=True, keys=tuple(held))

    @property
    def known(self) -> str | None:
        """The text of a plain value without gaps; None for anything else."""
        first = self.values[0] if self.values else ()
        return None if any(piece.gap for piece in first) else "".join(piece.text for piece in first)


def plain(text: str) -> Variable:
    return Variable(values=((Piece(text=text),),))


def is_open(value: Pieces) -> bool:
    """Whether a part of it is not known."""
    return any(piece.gap for piece in value)


def text_of_pieces(value: Pieces) -> str:
    return "".join(" " if piece is BREAK else piece.text for piece in value)


def missing(gap: Gap) -> Piece:
    return Piece(text=gap.text, gap=gap)


def split_pieces(value: Pieces, separators: str) -> Iterator[Piece]:
    """What an unquoted expansion gives: its text broken at the separators ($IFS)."""
    for piece in value:
        if piece.gap or piece.inherits:
            yield replace(piece, quoted=piece.gap is not None)
            continue
        for index, part in enumerate(
            re.split(f"[{re.escape(separators)}]+", piece.text) if separators else [piece.text]
        ):
            if index:
                yield BREAK
            if part:
                yield Piece(text=part, quoted=False)


def merged(value: Pieces) -> Pieces:
    """The same value with its known text in one piece each: a variable that is added to often stays short."""
    found: list[Piece] = []
    for piece in value:
        plainly = piece.quoted and not piece.gap and not piece.inherits
        if plainly and found and found[-1].quoted and not found[-1].gap and not found[-1].inherits:
            found[-1] = Piece(text=found[-1].text + piece.text)
        else:
            found.append(piece)
    return tuple(found)


def words_of(pieces: Iterable[Piece]) -> tuple[Word, ...]:
    """Pieces as words: what stands between two breaks, if anything does."""
    words: list[list[Piece]] = [[]]
    for piece in pieces:
        if piece is BREAK:
            words.append([])
        else:
            words[-1].append(piece)
    held = (each for each in words if any(piece.quoted or piece.text for piece in each))
    return tuple(replace(word_of(each), pattern=any(map(_is_pattern, each))) for each in held)


def _is_pattern(piece: Piece) -> bool:
    return not piece.quoted and re.search(r"[*?]|\[.+\]", piece.text) is not None


def word_of(pieces: Iterable[Piece]) -> Word:
    """All pieces as one word."""
    held = list(pieces)
    gaps = tuple(piece.gap for piece in held if piece.gap)
    return Word(text="".join(" " if piece is BREAK else piece.text for piece in held), gaps=gaps)


def pieces_of(word: Word) -> Pieces:
    """A word as pieces again: each gap apart, so that it is still known to be one."""
    if word.pattern and not word.gaps and " " not in word.text:  # files are looked for where it is used
        return (Piece(text=word.text, quoted=False),)
    found: list[Piece] = []
    rest = word.text
    for gap in word.gaps:
        before, _, rest = rest.partition(gap.text)
        found += [Piece(text=before), missing(gap)] if before else [missing(gap)]
    return (*found, Piece(text=rest)) if rest or not found else tuple(found)


def exported_word(name: str, value: Pieces, *, line: int) -> Word:
    """A variable's value in the environment of a command: what it inherits stands in it as ${NAME}."""
    return word_of(_exported(piece, name, line) if piece.inherits else piece for piece in value)


def _exported(piece: Piece, name: str, line: int) -> Piece:
    """Only its own name is filled in a burst."""
    reference = f"${{{piece.inherits}}}"
    if piece.inherits == name:
        return Piece(text=reference)
    return missing(Gap(name=piece.inherits or name, line=line, text=reference, why="what it was before the script"))
