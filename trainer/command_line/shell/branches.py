"""Tests, cases, lists and loops of a script: the branch that would be run, or a gap for what it would set."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from trainer.command_line.shell.arithmetic import changed_names
from trainer.command_line.shell.conditions import holds, truth
from trainer.command_line.shell.loops import ARGUMENTS, follow, of_own_options, own_options, reading_command
from trainer.command_line.shell.preparing import prepares
from trainer.command_line.shell.state import FunctionEnd, Handler, Reading, ScriptEnd
from trainer.command_line.shell.status import YES, asks, calls, is_followed, is_test, name_of, place, told
from trainer.command_line.shell.syntax import Node, inside, text_of
from trainer.command_line.shell.texts import read_names
from trainer.command_line.shell.words import Gap, Variable, missing, word_of

# a loop or a test without any of these words starts no training
_STARTS = re.compile(r"\b(python[\d.]*|torchrun|srun|mpirun|mpiexec|accelerate|deepspeed|bash|sh|ssh)\b")
SETTING = ("variable_assignment", "variable_assignments", "declaration_command")
FILLING = frozenset({"read", "mapfile", "readarray", "printf", "source", ".", "eval", "let", "set", "shift"})
FALLS, TESTS_ON = ";&", ";;&"  # what may end the commands of a case: the next ones too, or if their pattern fits
_LEAVES = re.compile(r"\b(?:break|continue)\s+[2-9$\"]")  # also the loop around it


def _if(reading: Reading, node: Node) -> None:
    branches = [node, *(child for child in node.named_children if child.type in ("elif_clause", "else_clause"))]
    for index, branch in enumerate(branches):
        verdict = True if branch.type == "else_clause" else _condition(reading, branch)
        if verdict is None:
            for undecided in branches[index:]:
                _maybe(reading, _body(undecided), node, "if")
            return
        if verdict:
            reading.statements(_body(branch))
            return


def _condition(reading: Reading, branch: Node) -> bool | None:
    if (asked := reading.scope.given.get(place(reading, reading.line(branch)))) is not None:
        return asked.lower() in YES
    *before, test = _tests(branch) or [None]
    reading.statements(before)
    if test is None:
        return None
    if _sets(reading, test):
        return status_of(reading, test).known
    reading.statements([test] if _starts(test) else [])  # if ! torchrun …; then
    return holds(test, reading.scope)


def _sets(reading: Reading, test: Node) -> bool:
    """Whether a test has to be read for what it sets: `if is_big "$SIZE"`, `if ! ( … )`, `if X=$(f) && [ "$X" ]`."""
    if test.type == "list":
        return any(_sets(reading, side) for side in (test.children[0], test.children[-1]))
    inner = test.named_children[0] if test.type == "negated_command" else test
    sets = inner.type in SETTING or name_of(inner) in FILLING or bool(_calculated(inner))
    return sets or is_followed(reading, inner)


def _case(reading: Reading, node: Node) -> None:
    value = word_of(reading.expansion.value(node.child_by_field_name("value"), empty=True))
    items = [child for child in node.named_children if child.type == "case_item"]
    if value.gaps:
        for item in items:
            _maybe(reading, _commands_of_case(item), node, "case")
        return
    falls = False  # into the next commands, whatever their pattern
    for item in items:
        if not falls and not _is_case(reading, item, value.text):
            continue
        reading.statements(_commands_of_case(item))
        end = text_of(item.children[-1])
        if end not in (FALLS, TESTS_ON):
            return
        falls = end == FALLS


def _is_case(reading: Reading, item: Node, text: str) -> bool:
    patterns = [word_of(reading.expansion.value(each)).text for each in item.children_by_field_name("value")]
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _subshell(reading: Reading, node: Node) -> None:
    said = read_apart(reading, [each for each in node.named_children if each.type != "comment"])
    reading.succeeded, reading.assumed = said.known, said.assumed


def read_apart(reading: Reading, nodes: list[Node]) -> Status:
    """Reads statements in a copy of the shell, and says whether they succeed."""
    inner = reading.copy()
    try:
        said = read_body(inner, nodes)
    except (ScriptEnd, FunctionEnd) as end:
        said = Status(succeeds=end.succeeds)
    reading.headers, reading.given_text = inner.headers or reading.headers, inner.given_text
    return Status(succeeds=None) if inner.may_have_exited or inner.may_have_ended else said


def read_body(reading: Reading, nodes: list[Node]) -> Status:
    """Reads statements, and says whether the last of them succeeds."""
    reading.statements(nodes[:-1])
    return status_of(reading, nodes[-1]) if nodes else Status(succeeds=None)


def _list(reading: Reading, node: Node) -> None:
    status_of(reading, node)


@dataclass(frozen=True, kw_only=True)
class Status:
    """`succeeds`: None where nothing tells; `assumed`: of commands that are not run, which count as successes in the
    list that they stand in and nowhere else."""

    succeeds: bool | None
    assumed: bool = False

    @property
    def known(self) -> bool | None:
        return None if self.assumed else self.succeeds


def status_of(reading: Reading, node: Node) -> Status:
    """Reads a statement as the shell would run it, and says whether it succeeds."""
    if node.type == "list":
        return _status_of_list(reading, node)
    decides = is_test(node) or calls(reading, node) or asks(node)
    if node.type == "negated_command":
        reading.statements(node.named_children)
    elif not is_test(node) and truth(node, reading.scope) is None:
        reading.statements([node])
    said = told(reading, node)
    decides = decides or (is_followed(reading, node) and not reading.assumed)
    return Status(succeeds=True, assumed=True) if said is None and not decides else Status(succeeds=said)


def _status_of_list(reading: Reading, node: Node) -> Status:
    """`a && b || c` is read as `(a && b) || c`."""
    left, sign, right = node.children[0], text_of(node.children[1]), node.children[-1]
    if sign == "||" and _prepares(reading, left):
        reading.prepare(node)
        return Status(succeeds=None)
    first = status_of(reading, left)
    if first.succeeds is None:
        _maybe(reading, [right], node, "test")
        return first
    if first.succeeds is not (sign == "&&"):
        return first
    second = status_of(reading, right)
    return Status(succeeds=second.succeeds, assumed=first.assumed or second.assumed)


def _prepares(reading: Reading, node: Node) -> bool:
    """Whether all of the left side prepares the shell: of `module load a || module load b` only a shell knows which."""
    if node.type == "list":
        return all(_prepares(reading, side) for side in (node.children[0], node.children[-1]))
    command = node.child_by_field_name("body") if node.type == "redirected_statement" else node
    parts = [] if command is None or command.type != "command" else command.named_children
    words = [word for part in parts if "redirect" not in part.type for word in reading.expansion.words(part)]
    return bool(words) and prepares(tuple(words))


def _loop(reading: Reading, node: Node) -> None:
    """A loop that starts nothing is followed where its turns are known. What any other sets is open behind it, and what
    it starts is read as of one turn, its own variable open."""
    body = node.child_by_field_name("body")
    if not _starts(body) and follow(reading, node):
        return
    reading.note(reading.line(node), "a loop was not followed")
    name = node.child_by_field_name("variable")
    sets = _assigned(body) | (set() if _starts(body) else _changed(reading, body))
    unsure = reading.loops if _LEAVES.search(text_of(body)) else reading.unsure_loops
    reading.open(_counted(node), node, "set by a loop")
    reading.may_have_ended |= re.search(r"\breturn\b", text_of(body)) is not None
    if condition := node.child_by_field_name("condition"):
        reading.open(_calculated(condition), node, "set by a loop")
        reading.statements([condition] if _starts(condition) else [])
        _maybe(reading, [condition] if _sets(reading, condition) else [], node, "loop")
        reads = reading_command(condition)
        parts = [] if reads is None else [each for each in reads.named_children[1:] if "redirect" not in each.type]
        words = tuple(word for each in parts for word in reading.expansion.words(each))
        reading.open([] if reads is None else read_names(words), node, "set by a loop")
    if name is not None and text_of(name) not in reading.scope.given:
        gap = Gap(name=text_of(name), line=reading.line(node), text=f"${text_of(name)}", why="set by a loop")
        reading.scope.hold(text_of(name), Variable(values=((missing(gap),),)))
    _maybe(reading, [body] if _starts(body) else [], node, "loop", sets=sets)
    reading.unsure_loops = unsure
    if of_own_options(reading, node):
        reading.open(_assigned(body), node, own_options(node), named=ARGUMENTS)


def _counted(loop: Node) -> set[str]:
    """What `for ((i = 0; i < 3; i++))` itself sets."""
    header = text_of(loop)[: loop.child_by_field_name("body").start_byte - loop.start_byte]
    return set(changed_names(header)) if loop.type == "c_style_for_statement" else set()


def _starts(node: Node) -> bool:
    return bool(inside(node, "command")) and _STARTS.search(text_of(node)) is not None


def _maybe(reading: Reading, nodes: list[Node], whole: Node, what: str, sets: Collection[str] = ()) -> None:
    """Statements that may or may not be run: what they set is a gap, what they start is not sure."""
    line = reading.line(whole)
    names = {*sets, *(name for node in nodes for name in _assigned(node))}
    commands = [node for node in nodes if inside(node, "command") and truth(node, reading.scope) is None]
    if (names or commands) and what != "loop":
        reading.note(line, f"the {what} could not be decided")
    held, reading.sure, variables = reading.sure, False, dict(reading.scope.variables)
    prepared, started = len(reading.setup), len(reading.commands)
    reading.statements(nodes)
    lines = reading.forget_setup(prepared)  # what is started among them has its own
    for text in lines if len(reading.commands) == started else ():
        reading.note(line, f"{text} depends on a test that could not be decided: bursts and exports go without it")
    names |= {name for name, value in reading.scope.variables.items() if value is not variables.get(name)}
    reading.sure, reading.scope.variables = held, variables
    for name in names - set(reading.scope.given):
        gap = Gap(name=name, line=line, text=f"${name}", why=f"set in the {what} of line {line}, which is undecided")
        before = reading.scope.variables.get(name)
        if before is not None and before.is_array:
            gap = Gap(
                name=place(reading, line), line=line, text=f"({what} of line {line})", why="undecided: yes or no?"
            )
        gap = replace(gap, file=reading.scope.file)
        is_array = before is not None and before.is_array
        values = before.values if before is not None and is_array else ()
        reading.scope.hold(name, Variable(values=(*values, (missing(gap),)), is_array=is_array))


def _tests(branch: Node) -> list[Node]:
    """What stands between `if` and `then`."""
    words = [child.type for child in branch.children]
    end = words.index("then") if "then" in words else 0
    return [child for child in branch.children[1:end] if child.is_named]


def _body(branch: Node) -> list[Node]:
    words = [child.type for child in branch.children]
    start = words.index("then") if "then" in words else 0
    clauses = ("elif_clause", "else_clause")
    return [child for child in branch.children[start + 1 :] if child.is_named and child.type not in clauses]


def _commands_of_case(item: Node) -> list[Node]:
    values = {(each.start_byte, each.end_byte) for each in item.children_by_field_name("value")}
    return [child for child in item.named_children if (child.start_byte, child.end_byte) not in values]


def _assigned(node: Node) -> set[str]:
    """Names that a statement would set, also behind export."""
    found = (each.child_by_field_name("name") for each in inside(node, "variable_assignment"))
    return {text_of(name) for name in found if name.type == "variable_name"} | _calculated(node)


def _changed(reading: Reading, node: Node) -> set[str]:
    """Names that a statement may set, also by what it calls: `read`, `let`, a function."""
    inner = reading.subshell()
    inner.sure, inner.written, before = False, dict(reading.written), dict(inner.scope.variables)
    inner.statements([node])
    return {name for name, value in inner.scope.variables.items() if value is not before.get(name)}


def _calculated(node: Node) -> set[str]:
    """Names that arithmetic in a statement would set: `((N++))`, `$((N--))`."""
    texts = [text_of(each) for kind in ("compound_statement", "arithmetic_expansion") for each in inside(node, kind)]
    return {name for text in texts if text.startswith(("((", "$((", "$[")) for name in changed_names(text)}


BRANCHES: dict[str, Handler] = {
    "if_statement": _if,
    "case_statement": _case,
    "list": _list,
    "subshell": _subshell,
    "for_statement": _loop,
    "c_style_for_statement": _loop,
    "while_statement": _loop,
}
