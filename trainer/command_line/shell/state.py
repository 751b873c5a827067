"""Where the reading of a script stands: its variables, what it has started so far, and what could not be followed.

What each kind of statement does to it is the business of `branches`, `statements` and `launches`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from os.path import normpath
from typing import TypeAlias

from trainer.command_line.shell.expansion import Expansion
from trainer.command_line.shell.remote import is_apart
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.script import Command
from trainer.command_line.shell.syntax import Node, first_error, parse, text_of
from trainer.command_line.shell.words import Gap, Piece, Pieces, Variable, Word, exported_word, missing, pieces_of

_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)\}")
MOST_DEPTH = 5  # files and texts that start each other
ReadBeside = Callable[[str], str | None]
Handler: TypeAlias = "Callable[[Reading, Node], None]"


def written_as(name: str) -> str:
    """How a file is known that the script writes: also by variables that are not known."""
    return normpath(_VARIABLE.sub(lambda match: f"${match[1] or match[2]}", name))


class ScriptEnd(Exception):
    """The script ends here, or the shell `( … )` that says `exit`; `succeeds`: by its status, None where that is not
    known."""

    def __init__(self, *, succeeds: bool | None = True) -> None:
        self.succeeds = succeeds
        super().__init__()


class FunctionEnd(Exception):
    """The function, or the file that is read, ends here; `succeeds`: by its status, None where that is not known."""

    def __init__(self, *, succeeds: bool | None = True) -> None:
        self.succeeds = succeeds
        super().__init__()


class LoopEnd(Exception):
    """The loop ends here (`break`), or its turn does (`continue`); `levels`: 2 for the loop around it."""

    def __init__(self, *, goes_on: bool, levels: int = 1) -> None:
        self.goes_on, self.levels = goes_on, levels
        super().__init__()


@dataclass(kw_only=True)
class Output:
    """What is printed where that is looked at; `known` is false where only running it could tell."""

    pieces: list[Piece] = field(default_factory=list)
    known: bool = True


@dataclass(kw_only=True)
class Reading:
    """`handlers`: what is done with each kind of statement; one that is not there does nothing."""

    scope: Scope
    beside: ReadBeside
    handlers: Mapping[str, Handler]
    commands: list[Command] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)  # what prepares the shell itself
    notes: list[tuple[int, str]] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    before: tuple[Word, ...] = ()  # words in front of `bash -c`
    depth: int = 0
    sure: bool = True
    all_exported: bool = False
    headers: tuple[str, ...] = ()  # of a job that is submitted from here
    written: dict[str, str] = field(default_factory=dict)  # files that the script writes, by the name it gives them
    outside: list[str] = field(default_factory=list)  # of setup, what a container or another machine does not have
    substitution: Callable[[Reading, Node], Pieces | None] = lambda reading, node: None
    output: Output | None = None  # of the substitution that is read
    given_text: Pieces | None = None  # what commands read, as far as it is known
    hidden: list[dict[str, Variable | None]] = field(default_factory=list)  # by functions' own, the innermost last
    succeeded: bool | None = True  # the last function that was called, or shell of its own: `( … )`, or of X=$(…)
    assumed: bool = False  # whether that is not known because its commands are not run
    may_have_exited: bool = False  # whether an `exit` before may have ended the shell
    may_have_ended: bool = False  # whether a `return` before may have ended the function
    loops: int = 0  # that are followed here, one in another
    unsure_loops: int = 0  # of these, how many a `break` may have ended
    at_end: bool = True  # whether the last `read` came to the end
    unread: bool = False  # whether what it took is not known

    def __post_init__(self) -> None:
        self.scope.prints = lambda node: self.substitution(self, node)

    @property
    def expansion(self) -> Expansion:
        return Expansion(scope=self.scope)

    def read(self, text: str) -> None:
        root = parse(text)
        if wrong := first_error(root):
            self.note(self.line(wrong), f"not understood: {text_of(wrong).strip()[:40] or 'something is missing'}")
        try:
            self.statements(root.named_children)
        except ScriptEnd:
            if self.depth:
                raise

    def note(self, line: int, what: str) -> None:
        self.notes.append((line, f"{what} (of {self.scope.file})" if self.scope.file else what))

    def line(self, node: Node) -> int:
        return self.scope.line(node)

    def statements(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.scope.count()
            if handler := self.handlers.get(node.type):
                handler(self, node)

    def open(self, names: Iterable[str], node: Node, why: str, *, named: str | None = None) -> None:
        """From here on only running the script could tell what these variables hold; `named`: what --set fills instead
        of each of them."""
        for name in names:
            if name.isidentifier() and name not in self.scope.given:
                gap = Gap(name=named or name, line=self.line(node), text=f"${name}", why=why, file=self.scope.file)
                self.scope.hold(name, Variable(values=((missing(gap),),)))
                if self.all_exported:
                    self.exported[name] = None

    def prepare(self, node: Node) -> None:
        """A command that prepares the shell itself: as written, with the values that are known."""
        self.prepares(_VARIABLE.sub(self._known, text_of(node)))

    def prepares(self, line: str) -> None:
        """A line that the command needs its shell to have run."""
        self.setup.append(line)

    def forget_setup(self, count: int) -> list[str]:
        """What prepared a shell that has ended, or may never have been: all lines but the first so many."""
        left = self.setup[count:]
        del self.setup[count:]
        return left

    def fill(self, name: str, *values: Pieces, node: Node, is_array: bool = False) -> None:
        """A variable as a builtin or a loop sets it."""
        if name.isidentifier() and name not in self.scope.given:
            taken = tuple(self.expansion.calculated(name, each, node) for each in values)
            self.scope.assign(name, Variable(values=taken, is_array=is_array))
            if self.all_exported:
                self.exported[name] = None

    def plain_text(self, name: str) -> str | None:
        """Of a file, unless the script itself writes it with words that it would expand."""
        text = self.text_beside(name)
        own = written_as(name) in self.written
        return None if text is None or (own and re.search(r"[$`\\]", text)) else text

    def text_beside(self, name: str) -> str | None:
        """Of a file that the script wrote itself, or that lies beside it."""
        return self.written.get(written_as(name)) or self.beside(name)

    def _known(self, match: re.Match[str]) -> str:
        held = self.scope.get(match[1] or match[2])
        text = held.known if held and not held.is_array and held.values else None
        return match[0] if text is None else text

    def environment(self, line: int) -> dict[str, Word]:
        """What a command on this line would see."""
        held = ((name, self.scope.get(name)) for name in self.exported)
        return {name: exported_word(name, value.values[0], line=line) for name, value in held if value and value.values}

    def copy(self) -> Reading:
        """Of a shell that begins as this one stands, `( … )`: what it starts is the script's, all else ends with it."""
        found = self.inner({}, line=self.scope.first_line)
        found.depth, found.functions, found.all_exported = self.depth, dict(self.functions), self.all_exported
        found.scope.positional, found.scope.shifted = self.scope.positional, self.scope.shifted
        found.scope.path, found.given_text, found.output = self.scope.path, self.given_text, self.output
        return found

    def subshell(self) -> Reading:
        """Of a substitution: a copy of the shell, and what it starts is nobody's."""
        found = self.copy()
        found.commands, found.notes, found.scope.notes = [], [], {}
        found.depth, found.loops = self.depth + 1, self.loops
        return found

    def inner(
        self, own: Mapping[str, Word], *, before: tuple[Word, ...] = (), line: int, remote: bool = False
    ) -> Reading:
        """The reading of a text that a shell of its own is given, on `line`; `own` are variables set for it alone,
        `before` the words that start it, `remote`: on another machine."""
        apart = remote or is_apart(before)
        scope = Scope(
            given=self.scope.given,
            variables=dict(self.scope.variables),
            notes=self.scope.notes,
            first_line=line,
            steps=self.scope.steps,
            file=self.scope.file,
        )
        for name, word in own.items():
            scope.variables[name] = Variable(values=(pieces_of(word),))
        return Reading(
            scope=scope,
            beside=self.beside,
            handlers=self.handlers,
            commands=self.commands,
            setup=[] if apart else list(self.setup),
            written=self.written,
            outside=[*self.outside, *(self.setup if apart else ())],
            notes=self.notes,
            exported={**self.exported, **dict.fromkeys(own)},
            before=(*self.before, *before),
            depth=self.depth + 1,
            sure=self.sure,
            substitution=self.substitution,
        )
