"""Statements that start nothing: assignments, declarations, arithmetic, groups and functions."""

from __future__ import annotations

import re
from dataclasses import replace

from trainer.command_line.shell.arithmetic import assignments, changed_names
from trainer.command_line.shell.expansion import NOT_CALCULATED, NOT_SET
from trainer.command_line.shell.scope import Scope
from trainer.command_line.shell.state import Handler, Reading
from trainer.command_line.shell.syntax import Node, inside, parse, text_of
from trainer.command_line.shell.words import Piece, Pieces, Variable, is_open, plain

_KEYED = re.compile(r"""\[(?P<key>(?:"[^"]*"|'[^']*'|[^\]])*)\]=(?P<value>.*)""", re.DOTALL)


def assign(reading: Reading, node: Node, *, into: Scope | None = None) -> str | None:
    """The name that is set; None for `A[3]=x` of an array without keys, which is not followed."""
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if inside(node, "command_substitution"):
        reading.succeeded, reading.assumed = None, True
    if target.type != "variable_name":
        return _element(reading, node, target, value)
    name, scope = text_of(target), into or reading.scope
    held = _value(reading, value, name)
    if name not in reading.scope.given:
        adds = text_of(node)[len(name) :].startswith("+=")
        if (
            adds
            and value is not None
            and reading.scope.get(name) is None
            and text_of(value)[:2].strip("\"'").startswith(":")
        ):
            held = Variable(values=((Piece(text="", inherits=name), *held.values[0]),))  # PATH+=:/here
        _give(reading, node, name, held, adds=adds, scope=scope)
    if reading.all_exported:
        reading.exported[name] = None
    return name


def _give(reading: Reading, node: Node, name: str, given: Variable, *, adds: bool, scope: Scope) -> None:
    """`N=…` and `N+=…`: of an array its first value, unless it is declared anew."""
    before, anew = scope.variables.get(name), node.parent is not None and node.parent.type == "declaration_command"
    onto = before.values[0] if adds and before and before.values and not given.is_array else ()
    if scope.is_integer(name):
        values = tuple(reading.expansion.calculated(name, each, node, onto=onto) for each in given.values)
        given, adds, onto = replace(given, values=values), adds and given.is_array, ()
    if before and before.is_array and before.keys is None and not given.is_array and not anew:
        given, adds = replace(before, values=((*onto, *given.values[0]), *before.values[1:])), False
    (scope.append if adds else scope.assign)(name, given)


def _element(reading: Reading, node: Node, target: Node, value: Node | None) -> str | None:
    """`A[key]=x` of an array with keys, `A[1]=x` of one with so many values or one less."""
    name, _, index = text_of(target).partition("[")
    held = reading.scope.get(name)
    if held is not None and held.is_array and held.keys is None and _numbered(reading, held, name, index, node):
        return name
    key = reading.expansion.known_word(index.removesuffix("]"))
    if held is None or held.keys is None or key is None:
        reading.note(reading.line(node), f"{text_of(target)}=… was not followed")
        return None
    adds, is_integer = any(child.type == "+=" for child in node.children), reading.scope.is_integer(name)
    before = held.at(key) if adds and is_integer else None
    pieces = () if value is None else reading.expansion.value(value)
    pieces = reading.expansion.calculated(name, pieces, node, onto=before.values[0] if before else ())
    reading.scope.assign(name, held.with_key(key, pieces, adds=adds and not is_integer))
    return name


def _numbered(reading: Reading, held: Variable, name: str, index: str, node: Node) -> bool:
    """Whether the element could be set."""
    number, value = reading.expansion.number(index.removesuffix("]")), node.child_by_field_name("value")
    adds = any(child.type == "+=" for child in node.children)
    if number is None or not 0 <= number <= len(held.values) or adds or any(map(is_open, held.values)):
        return False
    pieces = () if value is None else reading.expansion.value(value)
    pieces = reading.expansion.calculated(name, pieces, node)
    reading.scope.assign(name, replace(held, values=(*held.values[:number], pieces, *held.values[number + 1 :])))
    return True


def _value(reading: Reading, node: Node | None, name: str) -> Variable:
    if node is None:
        return plain("")
    if node.type == "array":
        return _array(reading, node, name)
    return Variable(values=(_inheriting(reading, reading.expansion.value(node, assigned=name), name, node),))


def _array(reading: Reading, node: Node, name: str) -> Variable:
    children = [child for child in node.named_children if child.type != "comment"]
    held = reading.scope.variables.get(name)
    if held is not None and held.keys is not None:
        return _with_keys(reading, children)
    words = [pieces for child in children for pieces in reading.expansion.elements(child)]
    return Variable(values=tuple(words), is_array=True)


def _with_keys(reading: Reading, children: list[Node]) -> Variable:
    """`([key]=value "[k 2]"=…)`."""
    found = Variable(values=(), is_array=True, keys=())
    for child in children:
        pair = _KEYED.fullmatch(text_of(child))
        key = reading.expansion.known_word(pair["key"]) if pair else None
        if pair is None or key is None:
            reading.note(reading.line(child), f"{text_of(child)} in an array with keys was not followed")
        else:
            value = parse("x=" + pair["value"]).named_children[0].child_by_field_name("value")
            found = found.with_key(key, () if value is None else reading.expansion.value(value))
    return found


def _inheriting(reading: Reading, pieces: Pieces, name: str, node: Node) -> Pieces:
    """PYTHONPATH=/here:$PYTHONPATH holds what it held before the script too."""

    def itself(piece: Piece) -> bool:
        return piece.inherits == name or bool(piece.gap and piece.gap.name == name and piece.gap.why == NOT_SET)

    others = [piece for piece in pieces if not itself(piece)]
    if len(others) == len(pieces) or not any(piece.text or piece.gap for piece in others):
        return tuple(piece for piece in pieces if piece.inherits != name)
    if reading.scope.get(name) is None:
        reading.note(
            reading.line(node), f"${name} is what it was before the script: ${{{name}}} in the environment, or empty"
        )
    return tuple(Piece(text="", inherits=name) if itself(piece) else piece for piece in pieces)


def _declaration(reading: Reading, node: Node) -> None:
    options = [text_of(child) for child in node.named_children if child.type == "word"]
    flags = "".join(option[1:] for option in options if option.startswith("-"))
    is_export = text_of(node.children[0]) == "export"
    if "n" in flags and not is_export:
        reading.note(reading.line(node), f"{text_of(node)}: what is set by another name was not followed")
    own = reading.hidden and not is_export and text_of(node.children[0]) != "readonly" and not set(flags) & set("gpfF")
    exports, keeps = (is_export or "x" in flags), (is_export and "n" in flags) or "+x" in options
    for child in node.named_children:
        is_set = child.type == "variable_assignment"
        if own and child.type in ("variable_assignment", "variable_name"):
            _hide(reading, text_of(child.child_by_field_name("name")) if is_set else text_of(child), is_set=is_set)
        if "A" in flags and child.type in ("variable_assignment", "variable_name"):
            declared = text_of(child.child_by_field_name("name")) if is_set else text_of(child)
            reading.scope.variables.setdefault(declared, Variable(values=(), is_array=True, keys=()))
        if child.type in ("variable_assignment", "variable_name") and ("i" in flags or "+i" in options):
            declared = text_of(child.child_by_field_name("name")) if is_set else text_of(child)
            reading.scope.declare_integer(declared, "i" in flags)
        name = assign(reading, child) if is_set else text_of(child) if child.type == "variable_name" else None
        if name and keeps:
            reading.exported.pop(name, None)
        elif name and exports:
            reading.exported[name] = None


def _hide(reading: Reading, name: str, *, is_set: bool) -> None:
    """A function's own variable: what it held outside comes back when the function ends, and is still what `local N=$N`
    begins with."""
    held = reading.scope.variables.get(name)
    if name in reading.hidden[-1]:
        return
    reading.hidden[-1][name] = held
    if held is not None and is_set:
        reading.scope.variables[name] = replace(held, is_integer=False)
    elif held is not None:
        reading.scope.variables.pop(name)


def _unset(reading: Reading, node: Node) -> None:
    for child in node.named_children:
        text = text_of(child).strip("\"'")
        if "[" in text:
            reading.note(reading.line(node), f"unset {text} was not followed")
        reading.scope.variables.pop(text, None)


def arithmetic(reading: Reading, text: str, node: Node) -> None:
    """`(( N *= 2 ))`: calculated where it is plain, else what it would set is open."""
    plainly = assignments(text)
    if plainly is None:
        reading.open(changed_names(text), node, "arithmetic that was not followed")
    for each in plainly or ():
        value = reading.expansion.number(each.expression, reading.scope.whole_or_zero)
        if value is None:
            reading.open([each.name], node, NOT_CALCULATED)
        elif each.name not in reading.scope.given:
            reading.scope.assign(each.name, plain(str(value)))


def _group(reading: Reading, node: Node) -> None:
    text = text_of(node)
    if text.startswith("(("):
        arithmetic(reading, text.removeprefix("((").removesuffix("))"), node)
    else:
        reading.statements(node.named_children)


def _function(reading: Reading, node: Node) -> None:
    reading.functions[text_of(node.child_by_field_name("name"))] = node.child_by_field_name("body")


def _inside(reading: Reading, node: Node) -> None:
    reading.statements(node.named_children)


def _pipeline(reading: Reading, node: Node) -> None:
    """What the last of it prints is another program's business."""
    if reading.output is not None:
        reading.output.known = False
    _inside(reading, node)


def _assignment(reading: Reading, node: Node) -> None:
    assign(reading, node)


STATEMENTS: dict[str, Handler] = {
    "variable_assignment": _assignment,
    "variable_assignments": _inside,
    "declaration_command": _declaration,
    "unset_command": _unset,
    "pipeline": _pipeline,
    "compound_statement": _group,
    "do_group": _group,
    "function_definition": _function,
    "negated_command": _inside,
}
