"""Extracts a kernel's own name from a profiler's text: without return type, template arguments and parameters.

`void cutlass::Kernel2<flash_...>(Params)` is `cutlass::Kernel2`. The own name identifies the kernel; arguments and
parameters mention much else. Mangled names, which profilers leave if they are long, are read as well.
"""

from __future__ import annotations

import re

ANONYMOUS = "anonymous"
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>")
# the usual form: a simple return type and the name
_PLAIN = re.compile(r"(?:(?:void|int|bool|float|static|inline|__global__) )*((?:\w+::)*\w+)(?=$|[<(\[ .@])")
_INNERMOST = (re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]"), re.compile(r"<[^<>]*>"))
_MANGLED = re.compile(r"_Z(N[rVK]*)?(?:St)?(?=L?\d)")
_LENGTH = re.compile(r"L?(\d+)")


def own_name(text: str) -> str:
    """Returns `namespace::kernel` of a kernel as profilers write it, demangled or not."""
    mangled = _MANGLED.match(text)
    if mangled:
        return _of_mangled(text, mangled.end(), nested=mangled[1] is not None)
    named = _UNNAMED.sub(ANONYMOUS, text)
    plain = _PLAIN.match(named)
    if plain and not plain[1].startswith("std::"):
        return plain[1]
    for inside in _INNERMOST:  # a templated return type: std::enable_if<...>::type name<...>(...)
        found = 1
        while found:
            named, found = inside.subn("", named)
    return (named.split() or [""])[-1]


def _of_mangled(text: str, at: int, *, nested: bool) -> str:
    """Returns the own name at the start of a mangled name, in which each part follows its length."""
    parts: list[str] = []
    while (nested or not parts) and (length := _LENGTH.match(text, at)):
        at = length.end() + int(length[1])
        part = text[length.end() : at]
        parts.append(ANONYMOUS if part.startswith("_GLOBAL__N") else part)
    return "::".join(parts)
