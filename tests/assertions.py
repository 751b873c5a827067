"""Finds tests that can pass without asserting anything, by reading their source.

An assertion is certain if every run of the test that ends without an error has passed it. It is not certain inside a
loop whose iterable may be empty, in one branch of an `if`, behind a conditional `return`, or where it is `all(… for …
in …)` of what may be empty. A call of a helper of the tests counts where the helper's own assertion is certain. Where a
test asserts nothing at all, what it calls must not raise: there a call counts as the assertion.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

CHECKS = {"raises", "warns", "fail", "deprecated_call"}  # functions of pytest that check
TRANSPARENT = {"enumerate", "list", "reversed", "set", "sorted", "tuple", "zip"}  # as empty as their argument
FILLED = "filled"  # function of `tests.rows` that asserts that there is something, and returns it
Function = ast.FunctionDef | ast.AsyncFunctionDef
Helper = tuple[str, str]  # the names of its module and of the function


@dataclass(frozen=True)
class Module:
    """One file of tests: its dotted name, its tree, and the meaning of each name in it."""

    name: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, Function)]

    @cached_property
    def methods(self) -> set[str]:
        classes = (node for node in self.nodes if isinstance(node, ast.ClassDef))
        return {each.name for node in classes for each in node.body if isinstance(each, Function)}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Returns the module of each bare name: the one it is imported from, or this one for its own functions."""
        imports = (node for node in self.nodes if isinstance(node, ast.ImportFrom))
        imported = {name.name: node.module for node in imports if node.module for name in node.names}
        return imported | {each.name: self.name for each in self.functions}

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """Returns what is assigned to names at the top of the module."""
        return _assigned(self.tree.body)


def unsure_tests(root: Path) -> list[str]:
    """Returns `module::test` of every test below `root` that can pass without asserting."""
    modules = [
        Module(".".join(path.relative_to(root.parent).with_suffix("").parts), ast.parse(path.read_text("utf-8")))
        for path in sorted(root.rglob("*.py"))
    ]
    helpers = asserting_helpers(modules)
    return [
        f"{module.name}::{test.name}"
        for module in modules
        if ".test_" in module.name
        for test in module.functions
        if test.name.startswith("test_") and not _is_sure(test, _reading(module, helpers, test))
    ]


def asserting_helpers(modules: Iterable[Module]) -> set[Helper]:
    """Returns the helpers whose assertion is certain; helpers may call each other, and nothing calls a test."""
    open_ones = [
        (module, each)
        for module in modules
        for each in module.functions
        if each.name != FILLED and not each.name.startswith("test_")
    ]
    found: set[Helper] = set()
    while True:
        more = {
            (module.name, each.name) for module, each in open_ones if _reading(module, found, each).certain(each.body)
        }
        if more <= found:
            return found
        found |= more
        open_ones = [(module, each) for module, each in open_ones if (module.name, each.name) not in found]


def _reading(module: Module, helpers: set[Helper], function: Function) -> Reading:
    reached = {module.name, *module.sources.values()}
    return Reading(
        functions={name for name, source in module.sources.items() if (source, name) in helpers},
        methods={name for source, name in helpers if source in reached},
        constants=module.constants | _assigned(function.body),
    )


def _is_sure(test: Function, reading: Reading) -> bool:
    any_call = not reading.asserts_somewhere(test)
    return replace(reading, any_call=any_call).certain(test.body)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reads statements: which helpers assert, what the names of the module mean, and whether any call counts."""

    functions: set[str]
    methods: set[str]
    constants: dict[str, ast.expr]
    any_call: bool = False

    def certain(self, statements: Iterable[ast.stmt]) -> bool:
        """Returns whether a run to the end of the statements passes an assertion."""
        for statement in statements:
            if self._asserts(statement):
                return True
            if self._may_leave(statement):
                return False
        return False

    def _may_leave(self, statement: ast.stmt) -> bool:
        """Returns whether the test may end in this statement without an assertion."""
        if isinstance(statement, ast.If):
            branches = (statement.body, statement.orelse)
            return any(any(map(_returns, branch)) and not self.certain(branch) for branch in branches)
        return _returns(statement)

    def _asserts(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assert():
                return not self._vacuous(statement.test)
            case ast.If():
                return self.certain(statement.body) and self.certain(statement.orelse)
            case ast.For():
                return self._calls(statement.iter) or (self._filled(statement.iter) and self.certain(statement.body))
            case ast.While():  # its condition holds no more at the end
                return any(isinstance(node, ast.Assert) for node in ast.walk(statement))
            case ast.With():
                return any(self._calls(item.context_expr) for item in statement.items) or self.certain(statement.body)
            case ast.Try():
                return self.certain(statement.finalbody) or (
                    self.certain([*statement.body, *statement.orelse])
                    and all(self.certain(handler.body) for handler in statement.handlers)
                )
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case ast.Expr(value=ast.Call()) if self.any_call:
                return True
            case _:
                return self._calls(statement)

    def asserts_somewhere(self, test: Function) -> bool:
        """Returns whether the test has an assertion, certain or not."""
        return self._calls(test) or any(isinstance(node, ast.Assert) for node in ast.walk(test))

    def _calls(self, node: ast.AST) -> bool:
        """Returns whether the node calls a check of pytest or NumPy, or a helper that asserts."""
        called = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
        names = {func.id for func in called if isinstance(func, ast.Name)}
        attributes = {func.attr for func in called if isinstance(func, ast.Attribute)}
        numpys = any(name.startswith("assert_") for name in attributes)
        return numpys or bool(names & self.functions or attributes & (CHECKS | self.methods))

    def _vacuous(self, test: ast.expr) -> bool:
        """Returns whether the expression is `all(… for … in …)` of what may be empty."""
        if not (isinstance(test, ast.Call) and isinstance(test.func, ast.Name) and test.func.id == "all"):
            return False
        (argument,) = test.args
        if not isinstance(argument, ast.GeneratorExp | ast.ListComp):
            return not self._filled(argument)
        return any(each.ifs or not self._filled(each.iter) for each in argument.generators)

    def _filled(self, node: ast.expr) -> bool:
        """Returns whether the iterable is never empty."""
        match node:
            case ast.List() | ast.Tuple() | ast.Set():
                return any(not isinstance(each, ast.Starred) or self._filled(each.value) for each in node.elts)
            case ast.Dict():
                return bool(node.keys)
            case ast.Constant(value=str() | bytes() as text):
                return bool(text)
            case ast.Name(id=name) if name in self.constants:
                return self._filled(self.constants[name])
            case ast.Call(func=ast.Attribute(value=table, attr="items" | "keys" | "values")):
                return self._filled(table)
            case ast.Call(func=ast.Name(id="range")):
                return bool(_range(node))
            case ast.Call(func=ast.Name(id=name)) if name == FILLED:
                return True
            case ast.Call(func=ast.Name(id=name), args=given) if name in TRANSPARENT:
                strict = any(word.arg == "strict" for word in node.keywords)
                return bool(given) and (any if strict else all)(self._filled(each) for each in given)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return all(not each.ifs and self._filled(each.iter) for each in node.generators)
            case ast.BinOp(op=ast.Add()):
                return self._filled(node.left) or self._filled(node.right)
            case _:
                return False


def _range(call: ast.Call) -> range:
    """Returns the range of numbers written out; else an empty one."""
    numbers = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, int)]
    return range(*numbers) if len(numbers) == len(call.args) else range(0)


def _returns(statement: ast.AST) -> bool:
    """Returns whether the statement may end the function that it is in, functions inside it left out."""
    if isinstance(statement, ast.Return):
        return True
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(map(_returns, ast.iter_child_nodes(statement)))


def _assigned(statements: Iterable[ast.stmt]) -> dict[str, ast.expr]:
    """Returns what the statements assign to names."""
    assigned: dict[str, ast.expr] = {}
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                assigned[name] = value
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                assigned[name] = value
    return assigned
