"""A script read from top to bottom, as bash would run it, without running anything.

Assignments fill the scope; decided branches are taken; commands are collected with the environment they would see.
What cannot be decided is noted, and what it would have set becomes a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from trainer.command_line.shell.arithmetic import assignments, calculate, changed_names
from trainer.command_line.shell.branches import BRANCHES
from trainer.command_line.shell.scope import NOT_SET, Scope
from trainer.command_line.shell.script import Command, Script, headers_of, slurm_variables
from trainer.command_line.shell.syntax import Node, first_error, inside, line_of, parse, text_of
from trainer.command_line.shell.words import (
    Gap,
    Piece,
    Pieces,
    Variable,
    Word,
    exported_word,
    missing,
    plain,
)

NO_ARGUMENTS = "what the script is started with ($@) is not known: taken as nothing"
MOST_DEPTH = 5  # files and texts that start each other
SHELLS = frozenset({"bash", "sh", "zsh"})
ReadBeside = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A builtin that fills variables: its options with a value, its words before the names, the name without any."""

    valued: frozenset[str]
    without: str
    first: int = 0


# bash(1) 5.2
FILLING = {
    "read": Filling(valued=frozenset({"-d", "-i", "-n", "-N", "-p", "-t", "-u"}), without="REPLY"),
    "mapfile": Filling(valued=frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}), without="MAPFILE"),
    "readarray": Filling(valued=frozenset({"-d", "-n", "-O", "-s", "-u", "-C", "-c"}), without="MAPFILE"),
    "getopts": Filling(valued=frozenset(), without="OPTARG", first=1),
}


class _Exit(Exception):
    """The script ends here."""


class _Return(Exception):
    """The function, or the file that is read, ends here."""


def read_script(
    text: str,
    *,
    given: Mapping[str, str] | None = None,
    beside: ReadBeside = lambda name: None,
    path: str | None = None,
) -> Script:
    """What a bash script would start. `given`: values of `--set`; `beside`: the text of a file named in it, or None;
    `path`: the script's own, absolute."""
    scope = Scope(given=dict(given or {}), path=path)
    headers = headers_of(text)
    for name, value in slurm_variables(headers).items():
        scope.variables[name] = plain(value)
    reading = _Reading(scope=scope, beside=beside)
    reading.read(text)
    for name, line in scope.notes.items():
        reading.note(line, NO_ARGUMENTS if name in "@*" else f"${name} is not set in the script: taken as empty")
    return Script(commands=tuple(reading.commands), notes=tuple(reading.notes), headers=headers or reading.headers)


@dataclass(kw_only=True)
class _Reading:
    scope: Scope
    beside: ReadBeside
    commands: list[Command] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    exported: dict[str, None] = field(default_factory=dict)
    before: tuple[Word, ...] = ()  # words in front of `bash -c`
    depth: int = 0
    sure: bool = True
    all_exported: bool = False
    headers: tuple[str, ...] = ()  # of a job that is submitted from here

    def read(self, text: str) -> None:
        root = parse(text)
        if wrong := first_error(root):
            self.note(self.line(wrong), f"not understood: {text_of(wrong).strip()[:40] or 'something is missing'}")
        try:
            self.statements(root.named_children)
        except _Exit:
            if self.depth:
                raise

    def note(self, line: int, what: str) -> None:
        self.notes.append((line, f"{what} (of {self.scope.file})" if self.scope.file else what))

    def line(self, node: Node) -> int:
        return line_of(node) + self.scope.first_line - 1

    def statements(self, nodes: list[Node]) -> None:
        for node in nodes:
            self.scope.count()
            if handler := _STATEMENTS.get(node.type):
                handler(self, node)

    # --- assignments ------------------------------------------------------------------------------------
    def _assignment(self, node: Node, *, scope: Scope | None = None) -> str | None:
        """The name that is set; None for `A[3]=x`, which is not followed."""
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target.type != "variable_name":
            self.note(self.line(node), f"{text_of(target)}=… was not followed")
            return None
        name, into = text_of(target), scope or self.scope
        held = self._value(value, name)
        if name not in self.scope.given:
            adds = text_of(node)[len(name) :].startswith("+=")
            if (
                adds
                and value is not None
                and self.scope.get(name) is None
                and text_of(value)[:2].strip("\"'").startswith(":")
            ):
                held = Variable(values=((Piece(text="", inherits=name), *held.values[0]),))  # PATH+=:/here
            (into.append if adds else into.assign)(name, held)
        if self.all_exported:
            self.exported[name] = None
        return name

    def _value(self, node: Node | None, name: str) -> Variable:
        if node is None:
            return plain("")
        if node.type == "array":
            words = []
            for child in node.named_children:
                if child.type != "comment":
                    words += words_and_gaps(self.scope, child)
            return Variable(values=tuple(words), is_array=True)
        return Variable(values=(self._inheriting(self.scope.value(node, assigned=name), name, node),))

    def _inheriting(self, pieces: Pieces, name: str, node: Node) -> Pieces:
        """PYTHONPATH=/here:$PYTHONPATH holds what it held before the script too."""
        itself = [p for p in pieces if p.inherits == name or (p.gap and p.gap.name == name and p.gap.why == NOT_SET)]
        if not itself or not any(piece.text or piece.gap for piece in pieces if piece not in itself):
            return tuple(piece for piece in pieces if piece.inherits != name)
        if self.scope.get(name) is None:
            self.note(
                self.line(node), f"${name} is what it was before the script: ${{{name}}} in the environment, else empty"
            )
        return tuple(Piece(text="", inherits=name) if piece in itself else piece for piece in pieces)

    def _declaration(self, node: Node) -> None:
        options = [text_of(child) for child in node.named_children if child.type == "word"]
        flags = "".join(option[1:] for option in options if option.startswith("-"))
        is_export = text_of(node.children[0]) == "export"
        exports, keeps = (is_export or "x" in flags), (is_export and "n" in flags) or "+x" in options
        for child in node.named_children:
            is_set = child.type == "variable_assignment"
            name = self._assignment(child) if is_set else text_of(child) if child.type == "variable_name" else None
            if name and "A" in flags:
                self._open([name], node, "an array with names for keys, which was not followed")
            if name and keeps:
                self.exported.pop(name, None)
            elif name and exports:
                self.exported[name] = None

    def _unset(self, node: Node) -> None:
        for child in node.named_children:
            self.scope.variables.pop(text_of(child), None)

    # --- commands ---------------------------------------------------------------------------------------
    def _command(self, node: Node) -> None:
        own: dict[str, Word] = {}
        words: list[Word] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                local = Scope(given=self.scope.given)
                name = self._assignment(child, scope=local)
                if name and (value := local.get(name)):
                    own[name] = exported_word(name, value.values[0], line=self.line(child))
            elif "redirect" not in child.type:
                words += self.scope.words(child)
        self._run(tuple(words), own, node)

    def _redirected(self, node: Node) -> None:
        """A here-document of a shell or of sbatch is a script; of any other command it is data."""
        body = node.child_by_field_name("body")
        if body is not None:
            self.statements([body])
        document = next((each for each in inside(node, "heredoc_body")), None)
        name = text_of(body).split()[0] if body is not None and body.type == "command" else ""
        if document is None or name not in SHELLS | {"sbatch"}:
            return
        text = text_of(document).replace("\\$", "$")
        self.headers = headers_of(text)
        self._nested(_nested(self, (), {}, line=self.line(document)), text, ())

    def _run(self, words: tuple[Word, ...], own: Mapping[str, Word], node: Node) -> None:
        if not words:
            return
        name = words[0].text
        if name in self.functions:
            with self._beside(own):
                self._call(words, node)
        elif handler := _BUILTINS.get(name):
            with self._beside(own):
                handler(self, words, node)
        else:
            self._external(words, own, node)

    @contextmanager
    def _beside(self, own: Mapping[str, Word]) -> Iterator[None]:
        """`VAR=1 train`: what is set and exported while a function or a builtin runs."""
        held = {name: (self.scope.variables.get(name), name in self.exported) for name in own}
        for name, word in own.items():
            self.scope.variables[name] = Variable(values=(_pieces(word),))
            self.exported[name] = None
        yield
        for name, (value, exported) in held.items():
            self.scope.variables.pop(name, None)
            if value is not None:
                self.scope.variables[name] = value
            if not exported:
                self.exported.pop(name, None)

    def _external(self, words: tuple[Word, ...], own: Mapping[str, Word], node: Node) -> None:
        for index, word in enumerate(words):
            if word.text.rpartition("/")[2] in SHELLS and index + 1 < len(words):
                self._shell(words[:index], words[index + 1 :], own, node)
                return
        self.commands.append(
            Command(
                line=self.line(node),
                words=(*self.before, *words),
                env={**self._environment(self.line(node)), **own},
                sure=self.sure,
            )
        )

    def _shell(self, before: tuple[Word, ...], rest: tuple[Word, ...], own: Mapping[str, Word], node: Node) -> None:
        """`bash -c TEXT`, or `bash FILE` of a file that lies beside the script."""
        options = 0
        while options < len(rest) and rest[options].text.startswith("-"):
            options += 1
        is_text = any("c" in word.text and not word.text.startswith("--") for word in rest[:options])
        if options == len(rest):
            return
        first, arguments = rest[options], rest[options + 1 :]
        text = first.text if is_text else self.beside(first.text)
        if text is None:
            self.note(self.line(node), f"{first.text} is started and was not read: it does not lie beside the script")
            return
        inner = _nested(self, before, own, line=self.line(node) if is_text else 1)
        inner.scope.positional = tuple(_pieces(word) for word in arguments[1 if is_text else 0 :])
        inner.scope.file = self.scope.file if is_text else first.text
        inner.scope.path = arguments[0].text if is_text and arguments and not arguments[0].gaps else None
        self._nested(inner, text, first.gaps)

    def _nested(self, inner: _Reading, text: str, gaps: tuple[Gap, ...]) -> None:
        if inner.depth > MOST_DEPTH:
            return
        for gap in gaps:  # they stand in the text as they were written, and are gaps again there
            if gap.has_own_name:
                inner.scope.variables.pop(gap.name, None)
        with suppress(_Exit):
            inner.read(text)

    def _environment(self, line: int) -> dict[str, Word]:
        held = ((name, self.scope.get(name)) for name in self.exported)
        return {name: exported_word(name, value.values[0], line=line) for name, value in held if value and value.values}

    def _call(self, words: tuple[Word, ...], node: Node) -> None:
        if self.depth >= MOST_DEPTH:
            return
        held, self.scope.positional = self.scope.positional, tuple(_pieces(word) for word in words[1:])
        self.depth += 1
        with suppress(_Return):
            self.statements(self.functions[words[0].text].named_children)
        self.depth -= 1
        self.scope.positional = held

    def _source(self, words: tuple[Word, ...], node: Node) -> None:
        name = words[1].text if len(words) > 1 else ""
        beside = name.rpartition("/")[2] if name and words[1].gaps else name  # $(dirname "$0")/env.sh
        text = self.beside(beside) if name and self.depth < MOST_DEPTH else None
        if text is None:
            self.note(self.line(node), f"source {name} was not read: what it sets is not known")
            return
        outer, self.scope.first_line = self.scope.first_line, 1
        file, self.scope.file = self.scope.file, beside
        self.depth += 1
        with suppress(_Exit, _Return):
            self.read(text)
        self.depth -= 1
        self.scope.first_line, self.scope.file = outer, file

    def _eval(self, words: tuple[Word, ...], node: Node) -> None:
        if self.depth >= MOST_DEPTH:
            return
        outer, self.scope.first_line = self.scope.first_line, self.line(node)
        self.depth += 1
        self.read(" ".join(word.text for word in words[1:]))
        self.depth -= 1
        self.scope.first_line = outer

    def _exec(self, words: tuple[Word, ...], node: Node) -> None:
        self._run(words[1:], {}, node)

    def _cd(self, words: tuple[Word, ...], node: Node) -> None:
        if len(words) > 1:
            self.note(
                self.line(node), f"cd {words[1].text}: start moe-autotune there, the command is run where you are"
            )

    def _exit(self, words: tuple[Word, ...], node: Node) -> None:
        if self.sure:
            raise _Exit

    def _return(self, words: tuple[Word, ...], node: Node) -> None:
        if self.sure:
            raise _Return

    def _shift(self, words: tuple[Word, ...], node: Node) -> None:
        by = words[1].text if len(words) > 1 else "1"
        if not by.isdigit():
            self.note(self.line(node), f"shift {by} was not followed: what $1 and $@ are is not known")
        elif not self.sure:
            self.note(self.line(node), "a shift depends on an undecided test and was not followed")
        elif self.scope.positional is None:
            self.scope.shifted += int(by)
        elif int(by) <= len(self.scope.positional):
            self.scope.positional = self.scope.positional[int(by) :]

    def _set(self, words: tuple[Word, ...], node: Node) -> None:
        texts = [word.text for word in words]
        if "--" in texts:
            self.scope.positional = tuple(_pieces(word) for word in words[texts.index("--") + 1 :])
            return
        for index, text in enumerate(texts[1:], start=1):
            by_name = text[1:].endswith("o") and texts[index + 1 : index + 2] == ["allexport"]
            if text[:1] in "-+" and ("a" in text[1:] or by_name):
                self.all_exported = text[0] == "-"

    # --- what sets variables by other means -------------------------------------------------------------
    def _arithmetic(self, text: str, node: Node) -> None:
        """`(( N *= 2 ))`: calculated where it is plain, else what it would set is open."""
        plainly = assignments(text)
        if plainly is None:
            self._open(changed_names(text), node, "arithmetic that was not followed")
        for each in plainly or ():
            value = calculate(each.expression, self._number)
            if value is None:
                self._open([each.name], node, "arithmetic on what is not known")
            elif each.name not in self.scope.given:
                self.scope.assign(each.name, plain(str(value)))

    def _number(self, name: str) -> int | None:
        """A name without a value counts as 0."""
        return 0 if self.scope.get(name) is None else self.scope.whole_number(name)

    def _open(self, names: Iterable[str], node: Node, why: str) -> None:
        for name in names:
            if name.isidentifier() and name not in self.scope.given:
                gap = Gap(name=name, line=self.line(node), text=f"${name}", why=why, file=self.scope.file)
                self.scope.variables[name] = Variable(values=((missing(gap),),))
                if self.all_exported:
                    self.exported[name] = None

    def _let(self, words: tuple[Word, ...], node: Node) -> None:
        for word in words[1:]:
            self._arithmetic(word.text, node)

    def _reads(self, words: tuple[Word, ...], node: Node) -> None:
        """read, mapfile and their like: the names they fill."""
        name = words[0].text
        names, skip = [], False
        for word in words[1:]:
            if skip or word.text.startswith("-"):
                skip = not skip and word.text in FILLING[name].valued
            else:
                names.append(word.text)
        self._open(names[FILLING[name].first :] or [FILLING[name].without], node, f"filled by {name}, which is not run")

    def _printf(self, words: tuple[Word, ...], node: Node) -> None:
        if len(words) > 2 and words[1].text == "-v":
            self._open([words[2].text], node, "filled by printf, which is not run")

    def _skip(self, words: tuple[Word, ...], node: Node) -> None:
        """A command that starts nothing."""

    def _subshell(self, node: Node) -> None:
        held = dict(self.scope.variables)
        self.statements(node.named_children)
        self.scope.variables = held

    def _group(self, node: Node) -> None:
        text = text_of(node)
        if text.startswith("(("):
            self._arithmetic(text.removeprefix("((").removesuffix("))"), node)
        else:
            self.statements(node.named_children)

    def _function(self, node: Node) -> None:
        self.functions[text_of(node.child_by_field_name("name"))] = node.child_by_field_name("body")


def words_and_gaps(scope: Scope, node: Node) -> list[Pieces]:
    """The elements that one word of an array literal gives."""
    return [_pieces(word) for word in scope.words(node)]


def _pieces(word: Word) -> Pieces:
    """A word as pieces again: each gap apart, so that it is still known to be one."""
    if word.pattern and not word.gaps and " " not in word.text:  # files are looked for where it is used
        return (Piece(text=word.text, quoted=False),)
    found: list[Piece] = []
    rest = word.text
    for gap in word.gaps:
        before, _, rest = rest.partition(gap.text)
        found += [Piece(text=before), missing(gap)] if before else [missing(gap)]
    return (*found, Piece(text=rest)) if rest or not found else tuple(found)


def _nested(outer: _Reading, before: tuple[Word, ...], own: Mapping[str, Word], *, line: int) -> _Reading:
    scope = Scope(
        given=outer.scope.given,
        variables=dict(outer.scope.variables),
        notes=outer.scope.notes,
        first_line=line,
        steps=outer.scope.steps,
        file=outer.scope.file,
    )
    for name, word in own.items():
        scope.variables[name] = Variable(values=(_pieces(word),))
    return _Reading(
        scope=scope,
        beside=outer.beside,
        commands=outer.commands,
        notes=outer.notes,
        exported={**outer.exported, **dict.fromkeys(own)},
        before=(*outer.before, *before),
        depth=outer.depth + 1,
        sure=outer.sure,
    )


Handler = Callable[[_Reading, Node], None]
_STATEMENTS: dict[str, Handler] = {
    **BRANCHES,
    "variable_assignment": lambda reading, node: void(reading._assignment(node)),
    "variable_assignments": lambda reading, node: reading.statements(node.named_children),
    "declaration_command": _Reading._declaration,
    "unset_command": _Reading._unset,
    "command": _Reading._command,
    "redirected_statement": _Reading._redirected,
    "pipeline": lambda reading, node: reading.statements(node.named_children),
    "subshell": _Reading._subshell,
    "compound_statement": _Reading._group,
    "do_group": _Reading._group,
    "function_definition": _Reading._function,
    "negated_command": lambda reading, node: reading.statements(node.named_children),
}
_BUILTINS: dict[str, Callable[[_Reading, tuple[Word, ...], Node], None]] = {
    "source": _Reading._source,
    ".": _Reading._source,
    "eval": _Reading._eval,
    "exec": _Reading._exec,
    "cd": _Reading._cd,
    "pushd": _Reading._cd,
    "exit": _Reading._exit,
    "return": _Reading._return,
    "shift": _Reading._shift,
    "set": _Reading._set,
    "echo": _Reading._skip,
    "printf": _Reading._printf,
    "let": _Reading._let,
    **dict.fromkeys(FILLING, _Reading._reads),
}


def void(_: object) -> None:
    """Takes a value that nobody asked for."""
