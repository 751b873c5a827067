"""What a script's variables hold while it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from trainer.command_line.shell.script import TooMuchError
from trainer.command_line.shell.syntax import Node, line_of
from trainer.command_line.shell.words import Pieces, Variable, merged, plain

WHOLE = re.compile(r"\s*-?(0|[1-9]\d*)\s*")  # 010 is 8 in arithmetic
SPACES = " \t\n"  # at which words end where IFS is not set
MOST_STEPS = 50_000
MOST_LETTERS = 2**20
MOST_PIECES = 2**14  # of the words of one variable, known or not


@dataclass(kw_only=True)
class Scope:
    """Variables by name. `given` are those of `--set`: they win over what the script assigns."""

    given: Mapping[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    positional: tuple[Pieces, ...] | None = None  # None: the script's own, which nobody knows
    shifted: int = 0  # how many of the script's own arguments were shifted away
    notes: dict[str, int] = field(default_factory=dict)  # variables taken as empty -> the line that did
    first_line: int = 1  # of the text that is read, in the file
    file: str | None = None  # that is read, where it is not the script itself
    path: str | None = None  # of the script, absolute: what it finds its own folder by
    steps: Iterator[int] = field(default_factory=lambda: iter(range(MOST_STEPS)))  # those left
    prints: Callable[[Node], Pieces | None] = lambda node: None  # what a substitution gives, where that is known

    def get(self, name: str) -> Variable | None:
        if name.isdigit() and self.positional is None:
            name = self.argument(name)
        if name in self.given and not (name.isdigit() and self.positional is not None):
            return plain(self.given[name])
        if name.isdigit() and self.positional is not None:
            index = int(name) - 1
            return Variable(values=(self.positional[index],)) if 0 <= index < len(self.positional) else plain("")
        return self.variables.get(name)

    def argument(self, name: str) -> str:
        """The number of `$1` among the arguments the script was started with."""
        return str(int(name) + self.shifted) if name.isdigit() and name != "0" else name

    def count(self) -> None:
        """TooMuchError after more statements than a script has."""
        if next(self.steps, None) is None:
            raise TooMuchError(f"more than {MOST_STEPS} statements would be run")

    def assign(self, name: str, value: Variable) -> None:
        """A gap that is the whole value is asked for by this variable's name from now on."""
        if sum(len(piece.text) for pieces in value.values for piece in pieces) > MOST_LETTERS:
            raise TooMuchError(f"${name} would have more than {MOST_LETTERS} letters")
        if sum(map(len, value.values)) > MOST_PIECES:
            raise TooMuchError(f"${name} would be made of more than {MOST_PIECES} parts")
        if not value.is_array:
            value = Variable(values=tuple(map(merged, value.values)))
        only = value.values[0] if not value.is_array and len(value.values) == 1 else ()
        only = tuple(piece for piece in only if piece.text or piece.gap)
        if len(only) == 1 and only[0].gap and not only[0].gap.has_own_name:
            value = Variable(values=((replace(only[0], gap=replace(only[0].gap, name=name)),),))
        self.hold(name, value)

    def hold(self, name: str, value: Variable) -> None:
        """The value as it is, of a variable that stays what it was declared to be."""
        self.variables[name] = replace(value, is_integer=self.is_integer(name))

    def is_integer(self, name: str) -> bool:
        """Whether what it is given is calculated (`declare -i`)."""
        return name in self.variables and self.variables[name].is_integer

    def declare_integer(self, name: str, is_integer: bool) -> None:
        self.variables[name] = replace(self.variables.get(name, plain("")), is_integer=is_integer)

    def put_back(self, values: Mapping[str, Variable | None]) -> None:
        """What variables held before; None: nothing."""
        for name, value in values.items():
            self.variables.pop(name, None)
            if value is not None:
                self.variables[name] = value

    def append(self, name: str, value: Variable) -> None:
        held = self.variables.get(name, Variable(values=(), is_array=value.is_array))
        if held.keys is not None and value.keys is not None:
            for key, each in zip(value.keys, value.values, strict=True):
                held = held.with_key(key, each)
            self.assign(name, held)
            return
        if value.is_array or held.is_array:
            self.assign(name, Variable(values=(*held.values, *value.values), is_array=True))
        else:
            joined = (*(held.values[0] if held.values else ()), *value.values[0])
            self.assign(name, Variable(values=(joined,)))

    def named(self, name: str) -> Variable | None:
        """What `$name` stands for: a variable, an argument, all of them (@, *) or their number (#)."""
        if name in ("0", "BASH_SOURCE") and self.path is not None:
            return plain(self.path)
        if name in "@*":
            return Variable(values=self.positional or (), is_array=True)
        if name == "#" and self.positional is not None:
            return plain(str(len(self.positional)))
        return self.get(name)

    def whole_number(self, name: str) -> int | None:
        """A variable as arithmetic reads it; None where it is no number, or not known."""
        variable = self.named(name)
        text = variable.known if variable else None
        return int(text) if text is not None and WHOLE.fullmatch(text) else None

    def whole_or_zero(self, name: str) -> int | None:
        """The same; a name without a value counts as 0."""
        return 0 if self.get(name) is None else self.whole_number(name)

    @property
    def separators(self) -> str:
        """Of words that an expansion gives: IFS."""
        held = self.get("IFS")
        known = None if held is None else held.known
        return SPACES if known is None else known

    def note(self, name: str, node: Node) -> None:
        """A variable that is taken as empty."""
        self.notes.setdefault(name, self.line(node))

    def line(self, node: Node) -> int:
        """In the file."""
        return line_of(node) + self.first_line - 1
