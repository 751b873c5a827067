"""How a word of a script expands, with what its variables hold: into text, and gaps for what only running it tells."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from trainer.command_line.shell.arithmetic import calculate, changed_names, names_in
from trainer.command_line.shell.braces import alternatives
from trainer.command_line.shell.literals import LITERAL, QUOTED, unescaped
from trainer.command_line.shell.paths import path_of
from trainer.command_line.shell.scope import WHOLE, Scope
from trainer.command_line.shell.syntax import Node, parse, space_before, text_of
from trainer.command_line.shell.transforms import transformed
from trainer.command_line.shell.words import (
    BREAK,
    Gap,
    Piece,
    Pieces,
    Variable,
    Word,
    is_open,
    missing,
    pieces_of,
    split_pieces,
    text_of_pieces,
    words_of,
)

_EXPANSION = re.compile(
    r"\$\{(?P<size>#)?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<operator>:?[-=+?])?(?P<rest>.*)\}",
    re.DOTALL,
)
_PARTS_OF_REGEX = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'[^']*'|\$\{[^}]*\}|\$\w+|\\.|.""", re.DOTALL)
_ALL_WORDS = re.compile(r'"\$(@|\{@\}|\{\w+\[@\](:?[-+][^"]*)?\}|\{@:[^"]*\})"')
_IN_ARITHMETIC = re.compile(r"\$\{(?!\w+\}|#\})[^{}]*\}|\$\([^()]*\)|\b[A-Za-z_]\w*\[[^\]]*\]")  # plain names apart
_ESCAPED = re.compile(r"(\\(?:.|\n))", re.DOTALL)
_HOME = re.compile(r"^(~)(?=/|$|:)")
_HOMES = re.compile(r"(?:(?<=:)|^)(~)(?=/|$|:)")  # of a value that is assigned
_LATER_HOMES = re.compile(r"(?<=:)(~)(?=/|$|:)")
NOT_SET = "not set in the script"
NOT_UNDERSTOOD = "not understood"
NOT_COUNTED = "it counts what is not known"
NOT_RUN = "a command that is not run"
NOT_CALCULATED = "arithmetic on what is not known"


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """`assigned`: the variable whose new value is being read, if one is."""

    scope: Scope
    assigned: str | None = None

    def pieces(self, node: Node, *, quoted: bool = False, empty: bool = False) -> Iterator[Piece]:
        """A word's node as pieces. `empty`: what is not set counts as empty, as in tests."""
        kind = node.type
        if kind in LITERAL:
            yield from self._literal(node)
        elif kind in ("string", "translated_string"):
            if not _ALL_WORDS.fullmatch(text_of(node)):  # an empty array gives no word at all
                yield Piece(text="")
            yield from self._string(node, empty)
        elif kind in ("concatenation", "command_name"):
            for child in node.children:
                yield from self.pieces(child, quoted=quoted, empty=empty)
        elif kind in ("simple_expansion", "expansion"):
            yield from self._expansion(node, quoted, empty)
        elif kind == "arithmetic_expansion":
            yield from self._arithmetic(node)
        elif kind == "command_substitution" and (path := path_of(_spelled(node), self.known_word)) is not None:
            yield Piece(text=path)
        elif kind == "command_substitution" and _spelled(node) not in self.scope.given:
            yield from self._printed(node, quoted)
        else:
            yield self._gap(node, _spelled(node), NOT_RUN if "substitution" in kind else NOT_UNDERSTOOD)

    def _printed(self, node: Node, quoted: bool) -> Iterator[Piece]:
        found = self.scope.prints(node)
        if found is None:
            yield self._gap(node, _spelled(node), NOT_RUN)
        else:
            yield from found if quoted else self._split(found)

    def _split(self, value: Pieces) -> Iterator[Piece]:
        return split_pieces(value, self.scope.separators)

    def words(self, node: Node) -> tuple[Word, ...]:
        """The words that one word of a command or of an array gives."""
        text = text_of(node)
        choices = (
            alternatives(text) if "{" in text and node.type in ("word", "concatenation", "brace_expression") else []
        )
        if len(choices) < 2:
            return words_of(self.pieces(node))
        held, self.scope.first_line = self.scope.first_line, self.scope.line(node)
        values = map(_read, choices)
        found = [word for value in values if value is not None for word in words_of(self.pieces(value))]
        self.scope.first_line = held
        return tuple(found)

    def elements(self, node: Node) -> list[Pieces]:
        """What one word of an array literal gives."""
        return [pieces_of(word) for word in self.words(node)]

    def _literal(self, node: Node) -> Iterator[Piece]:
        """Text; `~` at the start of a word, or behind a colon of an assignment, is the home folder."""
        kind, text = node.type, text_of(node)
        for part in self._at_homes(node, text) if kind == "word" else [text]:
            if part == "~":
                yield from self._home(node)
            elif "\\" in part and kind in ("word", "extglob_pattern"):
                yield from _with_escapes(part)
            elif part:
                yield Piece(text=LITERAL[kind](part), quoted=kind in QUOTED)
        if not text:
            yield Piece(text="")

    def _at_homes(self, node: Node, text: str) -> list[str]:
        if self.assigned is None:
            return _HOME.split(text) if _is_start(node) else [text]
        return (_HOMES if _is_start(node) else _LATER_HOMES).split(text)

    def _home(self, node: Node) -> Iterator[Piece]:
        home = self.scope.get("HOME")
        gap = Gap(name="HOME", line=self.scope.line(node), text="~", why="the home folder of whoever runs it")
        yield from home.values[0] if home and home.values else [missing(gap)]

    def value(self, node: Node, *, empty: bool = False, assigned: str | None = None) -> Pieces:
        """A word as it is assigned: one value, never split. `assigned`: the variable that gets it."""
        found = replace(self, assigned=assigned).pieces(node, quoted=True, empty=empty)
        return tuple(Piece(text=" ") if piece is BREAK else replace(piece, quoted=True) for piece in found)

    def pattern(self, node: Node, *, regex: bool = False) -> str | None:
        """A word as a pattern (regex: a regular expression) in which what is quoted is text; None while it has gaps."""
        pieces = [*self._of_regex(node, regex)] if node.type == "regex" else [*self.pieces(node, empty=True)]
        if any(piece.gap for piece in pieces):
            return None
        text = re.escape if regex else glob.escape
        return "".join(text(piece.text) if piece.quoted else piece.text or " " * (piece is BREAK) for piece in pieces)

    def _of_regex(self, node: Node, regex: bool) -> Iterator[Piece]:
        """The parser leaves quotes and variables in it as they are."""
        for part in _PARTS_OF_REGEX.findall(text_of(node)):
            if part[0] in "\"'$" and len(part) > 1:
                yield from self.pieces(_read(part), empty=True)
            else:
                escaped = part[0] == "\\" and not regex
                yield Piece(text=part[escaped:], quoted=escaped)

    def _string(self, node: Node, empty: bool) -> Iterator[Piece]:
        """White space between expansions belongs to no child: it is what lies between their bytes."""
        end = node.children[0].end_byte
        source: bytes = node.text
        for child in [*node.children[1:-1], node.children[-1]]:
            begin = child.end_byte - 1 if child is node.children[-1] else child.start_byte  # `" "` ends in ` "`
            between = source[end - node.start_byte : begin - node.start_byte].decode()
            if between:
                yield Piece(text=between)
            end = child.end_byte
            if child.type == "string_content":
                yield Piece(text=unescaped(text_of(child)))
            elif child.is_named:
                yield from [Piece(text=space)] if (space := space_before(child)) else ()
                yield from self.pieces(child, quoted=True, empty=empty)
            elif child is not node.children[-1]:
                yield Piece(text=text_of(child))

    def _expansion(self, node: Node, quoted: bool, empty: bool) -> Iterator[Piece]:
        text = _spelled(node)
        braced = text if text.startswith("${") else "${" + text[1:] + "}"
        if keys := self._keys(braced):
            yield from self._spread(keys, "@", quoted)
            return
        if (named := re.fullmatch(r"\$\{!([A-Za-z_]\w*)\}", braced)) and (name := self._known_name(named[1])):
            text = braced = f"${{{name}}}"
        match = _EXPANSION.fullmatch(braced)
        if match is None or (match["rest"] and not match["operator"]):
            yield from self._transformed(node, match, quoted)
            return
        variable = self.scope.named(match["name"])
        keyed = variable is not None and variable.keys is not None and match["index"] not in (None, "@", "*")
        if keyed and variable is not None:
            key = self.known_word(match["index"])
            variable = None if key is None else variable.at(key)
        if match["name"] in "@*" and self.scope.positional is None and not empty:
            self.scope.note(match["name"], node)
        if match["size"]:
            yield self._size(node, match, variable)
        elif match["operator"]:
            yield from self._with_operator(node, match, variable, quoted, empty)
        elif variable is None and match["index"] in ("@", "*"):  # no environment holds arrays
            self.scope.note(match["name"], node)
        elif variable is None and keyed and not empty:
            yield self._no_key(node, f"{match['name']}[{match['index']}]", match["index"], text)
        elif variable is None:
            yield from self._unset(node, match["name"], text, empty)
        elif (index := match["name"] if keyed else self._index(match)) is None:
            yield self._gap(node, text, NOT_UNDERSTOOD)
        else:
            yield from self._spread(variable, index, quoted)

    def _known_name(self, name: str) -> str | None:
        """What `${!NAME}` stands for the value of."""
        held = self.scope.get(name)
        return held.known if held and held.known and held.known.isidentifier() else None

    def _no_key(self, node: Node, element: str, index: str, text: str) -> Piece:
        """The variable that the key is made of is asked for, else the element."""
        value = _read(index)
        open_ones = [] if value is None else [piece.gap for piece in self.value(value) if piece.gap]
        name = open_ones[0].name if open_ones else element
        return self._gap(
            node, name, "it is a key of an array" if open_ones else "no such key is set in the script", text
        )

    def _keys(self, braced: str) -> Variable | None:
        """${!A[@]}: the keys of an array."""
        match = re.fullmatch(r"\$\{!(\w+)\[[@*]\]\}", braced)
        held = self.scope.get(match[1]) if match else None
        if held is None or not held.is_array:
            return None
        keys = map(str, range(len(held.values))) if held.keys is None else held.keys
        return Variable(values=tuple((Piece(text=key),) for key in keys), is_array=True)

    def _index(self, match: re.Match[str]) -> str | None:
        """`@`, `*` or the number of an element; None for what is no number, as the keys of `declare -A`."""
        index = match["index"]
        if index is None or index in ("@", "*") or index.isdigit():
            return index or match["name"]
        number = self.number(index)
        held = self.scope.get(match["name"])
        if number is not None and number < 0 and held is not None:
            number += len(held.values)  # ${A[-1]}
        return None if number is None or number < 0 else str(number)

    def _size(self, node: Node, match: re.Match[str], variable: Variable | None) -> Piece:
        """${#A[@]} counts values, ${#A} letters."""
        if variable is None:
            return Piece(text="0")
        if (match["index"] or match["name"]) in ("@", "*"):
            sure = variable.keys is not None or not any(is_open(value) for value in variable.values)
            return Piece(text=str(len(variable.values))) if sure else self._gap(node, _spelled(node), NOT_COUNTED)
        known = None if match["index"] else variable.known
        return self._gap(node, _spelled(node), NOT_UNDERSTOOD) if known is None else Piece(text=str(len(known)))

    def _transformed(self, node: Node, match: re.Match[str] | None, quoted: bool) -> Iterator[Piece]:
        """${NAME##*/} and its like; a gap of its own, which NAME's value would not fill, where that is not known."""
        if match and (part := self._part_of_array(node, match)) is not None:
            yield from self._spread(part, match["index"] or match["name"], quoted)
            return
        variable = self.scope.named(match["name"]) if match and not match["index"] and not match["size"] else None
        text = variable.known if variable and not variable.is_array else None
        found = None
        if match and text is not None:
            found = transformed(text, match["rest"], pattern=self._known_pattern, word=self.known_word)
        if found is None:
            yield self._gap(node, _spelled(node), "it splits a value that is not known" if match else NOT_UNDERSTOOD)
        else:
            yield from [Piece(text=found)] if quoted else self._split((Piece(text=found),))

    def _part_of_array(self, node: Node, match: re.Match[str]) -> Variable | None:
        """`${A[@]:2:1}`, and `${@:2}`, whose numbers begin with 1."""
        of_arguments = match["name"] in "@*"
        cut = re.fullmatch(r":\s*(\d+)\s*(?::\s*(\d+)\s*)?", match["rest"])
        variable = self.scope.named(match["name"])
        if cut is None or not (of_arguments or match["index"] in ("@", "*")) or (of_arguments and cut[1] == "0"):
            return None
        if of_arguments and self.scope.positional is None:
            self.scope.note(match["name"], node)
        if variable is None or variable.keys is not None or any(is_open(value) for value in variable.values):
            return None
        first = int(cut[1]) - of_arguments
        return Variable(values=variable.values[first : first + int(cut[2]) if cut[2] else None], is_array=True)

    def _with_operator(
        self, node: Node, match: re.Match[str], variable: Variable | None, quoted: bool, empty: bool
    ) -> Iterator[Piece]:
        sign, name = match["operator"], match["name"]
        if variable is None and name == self.assigned:  # PATH=/here${PATH:+:$PATH}, PATH=/here:${PATH:-}
            if sign.endswith("+") and re.search(rf"\$\{{?{name}\b", match["rest"]):
                yield from self._reread(match["rest"], quoted, empty)
                return
            if sign.endswith("-") and match["rest"] in ("", '""', "''"):
                yield Piece(text="", inherits=name)
                return
        holds = variable is not None and not (sign.startswith(":") and variable.known == "" and not variable.is_array)
        if sign.endswith("+"):
            if holds:
                yield from self._reread(match["rest"], quoted, empty)
        elif holds and variable is not None:
            yield from self._spread(variable, match["index"] or name, quoted)
        elif sign.endswith("?"):
            yield from self._unset(node, name, _spelled(node), empty)
        else:
            found = tuple(self._reread(match["rest"], quoted, empty))
            if sign.endswith("="):
                found = self.calculated(name, found, node)
                self.scope.assign(name, Variable(values=(found,)))
            yield from found

    def _reread(self, rest: str, quoted: bool, empty: bool) -> Iterator[Piece]:
        """The word behind an operator, which the tree holds in pieces."""
        if not quoted and re.search("[\"']", rest):  # ${N:+--flag "a b"}
            yield from self._words(parse(f"x=({rest})"), empty)
            return
        has_quotes = len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "\"'"
        value = _read(rest if has_quotes else '"' + rest.replace('"', "") + '"')
        found = () if value is None else tuple(self.pieces(value, quoted=True, empty=empty))
        yield from found if quoted or has_quotes else self._split(found)

    def _words(self, root: Node, empty: bool) -> Iterator[Piece]:
        array = root.named_children[0].child_by_field_name("value") if root.named_children else None
        for index, child in enumerate(array.named_children if array is not None else ()):
            if index:
                yield BREAK
            yield from self.pieces(child, empty=empty)

    def _known_pattern(self, text: str) -> str | None:
        spaced = text if re.search(r"[\"'\\]", text) else text.replace(" ", '" "')
        value = _read_alone(spaced)
        return None if value is None or "\\" in text else self.pattern(value)

    def known_word(self, text: str) -> str | None:
        """The text of a word of the script, as in a substitution; None while a part of it is not known."""
        if not text.strip():
            return text
        value = _read_alone(text)
        pieces = () if value is None else self.value(value)
        return None if value is None or any(piece.gap for piece in pieces) else "".join(p.text for p in pieces)

    def _unset(self, node: Node, name: str, text: str, empty: bool) -> Iterator[Piece]:
        if empty and name not in "#?$!-":
            self.scope.note(name, node)
            yield Piece(text="")
        else:
            told = name if name.isidentifier() else self.scope.argument(name)
            yield self._gap(node, told, NOT_SET if name.isidentifier() else "given when it is started", text)

    def _arithmetic(self, node: Node) -> Iterator[Piece]:
        """Its number; else gaps for the variables that it lacks, and one of its own where it is not they."""
        text = _spelled(node)
        inner = text.removeprefix("$((").removesuffix("))").removeprefix("$[").removesuffix("]")
        value = self.number(inner)
        self._forget(changed_names(inner) if value is None else [], node)  # $((N++)): not followed
        lacks = {gap.name: gap for name in names_in(inner) for gap in self._lacking(node, name)}
        if value is not None:
            yield Piece(text=str(value))
        elif not lacks or text in self.scope.given or not all(g.has_own_name or g.is_asked for g in lacks.values()):
            yield self._gap(node, text, NOT_CALCULATED)
        else:
            first, *others = lacks.values()
            yield Piece(text=text, gap=first)
            yield from (Piece(text="", gap=gap) for gap in others)

    def _forget(self, names: Iterable[str], node: Node) -> None:
        """What arithmetic sets that was not followed."""
        for name in names:
            if name not in self.scope.given:
                self.scope.hold(name, Variable(values=((self._gap(node, name, NOT_UNDERSTOOD),),)))

    def calculated(self, name: str, value: Pieces, node: Node, *, onto: Pieces = ()) -> Pieces:
        """A value as a variable takes it: the number it comes to where that is declared to hold one (`declare -i`);
        `onto`: what that number is added to."""
        if not self.scope.is_integer(name):
            return value
        texts = [text for text in map(text_of_pieces, (onto, value)) if text.strip()]
        text = texts[0] if len(texts) == 1 else " + ".join(f"({each})" for each in texts) or "0"
        number = None if is_open((*onto, *value)) else self.number(text, self.scope.whole_or_zero)
        if number is not None:
            return (Piece(text=str(number)),)
        self._forget(changed_names(text), node)
        return (self._gap(node, name, NOT_CALCULATED, text=f"${name}"),)

    def number(self, text: str, number_of: Callable[[str], int | None] | None = None) -> int | None:
        """The value of an arithmetic expression, what is expanded in it too; None where it is not known."""

        def filled(match: re.Match[str]) -> str:
            written = match[0] if match[0].startswith("$") else f"${{{match[0]}}}"
            known = self.known_word(written)
            return f"({known})" if known is not None and WHOLE.fullmatch(known) else match[0]

        return calculate(_IN_ARITHMETIC.sub(filled, text), number_of or self.scope.whole_number)

    def _lacking(self, node: Node, name: str) -> Iterator[Gap]:
        """What has to be known for a name to be a number."""
        variable = self.scope.named(name)
        if variable is None:
            yield Gap(name=name, line=self.scope.line(node), text=f"${name}", why=NOT_SET, file=self.scope.file)
        elif not variable.is_array:
            yield from (piece.gap for value in variable.values for piece in value if piece.gap)

    def _spread(self, variable: Variable, index: str, quoted: bool) -> Iterator[Piece]:
        """The values an index names: all of them for @ and *, else one."""
        if index in ("@", "*") and (variable.is_array or index == "@"):
            chosen = variable.values
        else:
            number = int(index) if index.isdigit() and variable.is_array else 0
            chosen = variable.values[number : number + 1]
        for position, value in enumerate(chosen):
            if position:
                yield Piece(text=self.scope.separators[:1]) if quoted and index == "*" else BREAK
            yield from ([Piece(text=""), *value] if quoted else self._split(value))

    def _gap(self, node: Node, name: str, why: str, text: str = "") -> Piece:
        if name in self.scope.given:
            return Piece(text=self.scope.given[name])
        scope = self.scope
        return missing(Gap(name=name, line=scope.line(node), text=text or _spelled(node), why=why, file=scope.file))


def _spelled(node: Node) -> str:
    return text_of(node).removeprefix(space_before(node))


def _with_escapes(text: str) -> Iterator[Piece]:
    """What stands behind a backslash is quoted, the rest of the word is not."""
    for part in _ESCAPED.split(text):
        if part[:1] == "\\":
            yield Piece(text=part[1:].replace("\n", ""))
        elif part:
            yield Piece(text=part, quoted=False)


def _read(text: str) -> Node | None:
    """The node of a word that is read by itself: what stands behind `x=`."""
    return parse("x=" + text).named_children[0].child_by_field_name("value")


def _read_alone(text: str) -> Node | None:
    """The same; None where the text is more than one word."""
    nodes = parse("x=" + text).named_children
    return nodes[0].child_by_field_name("value") if len(nodes) == 1 else None


def _is_start(node: Node) -> bool:
    """Whether a word's node is the first of its word."""
    return node.parent is None or node.parent.type != "concatenation" or node.parent.children[0] == node
