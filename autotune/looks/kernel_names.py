"""Shortens kernel names: without return type, arguments and template parameters, cut in the middle if still too long.

Names come from traces: they may be kilobytes long, and may contain control characters that a terminal would execute.
"""

from __future__ import annotations

import re
from functools import lru_cache

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# return type, namespaces and casts, which do not describe the kernel
NOISE = re.compile(
    r"^void |at::native::|\(anonymous namespace\)::|<unnamed>::|c10::|std::"
    r"|\((?:int|unsigned int|unsigned long|long|bool)\)(?=\d)"
)
AFTER_SIGNATURE = re.compile(r"^(\)( const)?( \[.*\])?(\.\w+)*)?$")  # closed or cut off, perhaps a clone
BRACKETS = {"(": ")", "<": ">", "[": "]", "{": "}"}
# generic kernels, described only by the functor among their template arguments
GENERIC_HEAD = re.compile(
    r"(elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|\b[Kk]ernel2?|device_kernel)$"
)
WRAPPERS = re.compile(
    r"^(gpu_kernel_impl\w*|BinaryFunctor|BUnaryFunctor|AUnaryFunctor|func_wrapper_t|ReduceOp|at|native)$"
)
APPLIED = re.compile(
    r"functor|_kernel|_cuda|gemm|attn|attention|norm|conv|copy|softmax|universal|tensorop|[dfw](prop|grad)|ops$",
    re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z_]\w*")


def printable(text: str) -> str:
    """Replaces characters that move the cursor or change the writing direction."""
    return CONTROL.sub("�", text)


@lru_cache(maxsize=4096)
def short_name(name: str, width: int = 60) -> str:
    """Returns at most `width` characters that identify a kernel or an operator."""
    said = _without_signature(NOISE.sub("", printable(name)))
    if len(said) <= width:
        return said
    head, arguments = _split_template(said)
    if not arguments:
        return cut(said, width)
    applied = _applied(arguments) if GENERIC_HEAD.search(head) else None
    if applied and head.startswith("cutlass"):
        return cut(applied, width)
    return cut(f"{head}<{applied or '…'}>", width)


def _without_signature(name: str) -> str:
    """Shortens `R f<T>(int, g)` to `f<T>`. Names that are not C++ functions, such as those of ranges, are unchanged."""
    outside = _outside_brackets(name)
    opens = next((at for at in outside if at and name[at] == "("), None)
    if opens is None or not (name[opens - 1].isalnum() or name[opens - 1] in "_>"):
        return name
    after = "".join(name[at] for at in outside if at > opens)
    if not AFTER_SIGNATURE.match(after):
        return name
    space = max((at for at in outside if at < opens and name[at] == " "), default=-1)
    return name[space + 1 : opens]


def _outside_brackets(name: str) -> list[int]:
    """Returns the indices of the characters outside all brackets; a `>` inside (…) is a comparison."""
    closing: list[str] = []
    outside = []
    for at, character in enumerate(name):
        if not closing or closing == [character]:
            outside.append(at)
        if character in BRACKETS:
            closing.append(BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
    return outside


def _split_template(name: str) -> tuple[str, str]:
    at = name.find("<")
    return (name, "") if at <= 0 else (name[:at], name[at + 1 :].removesuffix(">"))


def _applied(arguments: str) -> str | None:
    """Returns the first template argument that names an operation, skipping wrappers."""
    words = (word for word in WORD.findall(arguments) if not WRAPPERS.match(word))
    return next((word for word in words if APPLIED.search(word)), None)


def cut(name: str, width: int) -> str:
    """Returns the start and the end of a name, which both identify it: `Cijk_Alik_Bljk…MO40_NTn1`."""
    if len(name) <= width:
        return name
    tail = (width - 1) // 3
    return f"{name[: width - 1 - tail]}…{name[len(name) - tail :]}"
