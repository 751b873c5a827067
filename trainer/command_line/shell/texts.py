"""Text that a script's own commands print and read: echo, printf, cat, functions of these; here-documents, read.

Nothing is run: what another program would print is not known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainer.command_line.shell.scope import SPACES
from trainer.command_line.shell.state import FunctionEnd, LoopEnd, Output, Reading, ScriptEnd
from trainer.command_line.shell.status import told
from trainer.command_line.shell.syntax import Node, inside, parse, text_of
from trainer.command_line.shell.words import Piece, Pieces, Word, is_open, pieces_of, text_of_pieces

_DIRECTIVE = re.compile(r"%(%|[-0 ]*\d{0,3}(?:\.\d{1,3})?[sdi])|\\(n|t|\\)")
_OUTWARD = re.compile(r"(?:1|&)?>")  # of standard output; 2> is another's
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}
MOST_TURNS = 1000  # of a format that is used again
MOST_COUNTED = 1000


# --- what is printed ---------------------------------------------------------------------------------------
def printed(reading: Reading, node: Node) -> Pieces | None:
    """What a substitution gives, without the line ends behind it; None where only running it could tell."""
    reading.succeeded, reading.assumed = None, True
    if file := _file_alone(node):
        found = input_of(reading, file)
        return None if found is None else _without_last_lines(found)
    inner = reading.subshell()
    inner.output = Output()
    succeeds = _read_to_its_end(inner, node.named_children)
    known = inner.output.known and not inner.commands
    if known:
        reading.succeeded, reading.assumed = None if inner.may_have_exited else succeeds, False
    return _without_last_lines(tuple(inner.output.pieces)) if known else None


def _read_to_its_end(inner: Reading, nodes: Sequence[Node]) -> bool | None:
    """Whether the shell of a substitution succeeds."""
    try:
        inner.statements(list(nodes))
    except (ScriptEnd, FunctionEnd) as end:
        return end.succeeds
    except LoopEnd:
        return None
    return told(inner, nodes[-1]) if nodes else None


def _file_alone(node: Node) -> Node | None:
    """The redirection of `$(< FILE)`."""
    children = node.named_children
    return children[0] if len(children) == 1 and children[0].type == "file_redirect" else None


def prints(reading: Reading, pieces: Pieces) -> None:
    """Where the output is looked at; in a branch that may not be taken it is not known."""
    if reading.output is not None:
        reading.output.known = reading.output.known and reading.sure
        reading.output.pieces += pieces


def hides(reading: Reading) -> None:
    """Something is printed that nobody knows."""
    if reading.output is not None:
        reading.output.known = False


def is_outward(redirect: Node) -> bool:
    """Whether standard output goes elsewhere."""
    return redirect.type == "file_redirect" and _OUTWARD.match(text_of(redirect)) is not None


def echo(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    rest = list(words[1:])
    flags = ""
    while rest and re.fullmatch(r"-[neE]+", rest[0].text):
        flags += rest.pop(0).text
    if "e" in flags and any("\\" in word.text for word in rest):
        hides(reading)
    joined = [piece for word in rest for piece in (Piece(text=" "), *pieces_of(word))][1:]
    prints(reading, (*joined, *(() if "n" in flags else (Piece(text="\n"),))))


def printf(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    """To where it prints, or into a variable."""
    rest = list(words[1:])
    name = rest[1].text if len(rest) > 1 and rest[0].text == "-v" else None
    rest = rest[2:] if name else rest
    rest = rest[1:] if rest and rest[0].text == "--" else rest
    known = bool(rest) and not any(word.gaps for word in rest)
    text = formatted(rest[0].text, [word.text for word in rest[1:]]) if known else None
    if name is None:
        hides(reading) if text is None else prints(reading, (Piece(text=text),))
    elif text is None:
        reading.open([name], node, "filled by printf, which is not run")
    else:
        reading.fill(name, (Piece(text=text),), node=node)


def formatted(form: str, values: Sequence[str]) -> str | None:
    """What printf makes of it; None for a directive that is not known."""
    if re.sub(_DIRECTIVE, "", form).count("%") or re.sub(_DIRECTIVE, "", form).count("\\"):
        return None
    left, found = list(values), []
    try:
        for _ in range(MOST_TURNS):
            found.append(_DIRECTIVE.sub(lambda match: _directed(match, left), form))
            if not left or "%" not in form.replace("%%", ""):
                return "".join(found)
    except ValueError:  # %d of what is no number
        return None
    return None


def _directed(match: re.Match[str], left: list[str]) -> str:
    if match[2]:
        return _ESCAPES[match[2]]
    if match[1] == "%":
        return "%"
    value = left.pop(0) if left else ""
    return f"%{match[1]}" % (value if match[1].endswith("s") else _number(value))


def _number(value: str) -> int:
    """What %d makes of a word; of 010 bash makes 8, and of 0x10 16."""
    if not re.fullmatch(r"(?:-?(?:0|[1-9][0-9]*))?", value):
        raise ValueError(value)
    return int(value or 0)


def cat(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    """Files beside the script, or what it is given."""
    if len(words) == 1:
        found = reading.given_text
        hides(reading) if found is None else prints(reading, found)
    for word in words[1:]:
        text = None if word.gaps or word.text.startswith("-") else reading.plain_text(word.text)
        hides(reading) if text is None else prints(reading, (Piece(text=text),))


def seq(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    texts = [word.text for word in words[1:]]
    numbers = [int(text) for text in texts if re.fullmatch(r"-?\d+", text)]
    if len(numbers) < len(texts) or not 1 <= len(numbers) <= 3 or (len(numbers) == 3 and not numbers[1]):
        hides(reading)
        return
    first, step = (1 if len(numbers) == 1 else numbers[0]), (numbers[1] if len(numbers) == 3 else 1)
    counted = range(first, numbers[-1] + (1 if step > 0 else -1), step)
    if len(counted) > MOST_COUNTED:
        hides(reading)
        return
    prints(reading, (Piece(text="".join(f"{n}\n" for n in counted)),))


def _without_last_lines(pieces: Pieces) -> Pieces:
    found = list(pieces)
    while found and found[-1].gap is None:
        text = found.pop().text.rstrip("\n")
        if text:
            return (*found, Piece(text=text))
    return tuple(found)


# --- what is read ------------------------------------------------------------------------------------------
def input_of(reading: Reading, redirect: Node) -> Pieces | None:
    """What a redirection gives a command to read; None where that is not known, and for one of output."""
    kind = redirect.type
    if kind == "herestring_redirect":
        return (*reading.expansion.value(redirect.named_children[-1]), Piece(text="\n"))
    if kind == "heredoc_redirect":
        return document_of(reading, redirect)
    if kind != "file_redirect" or not text_of(redirect).startswith("<"):
        return None
    source = redirect.named_children[-1]
    if source.type == "process_substitution":
        found = printed(reading, source)
        return None if found is None else (*found, Piece(text="\n"))
    words = reading.expansion.words(source)
    text = reading.plain_text(words[0].text) if len(words) == 1 and not words[0].gaps else None
    return None if text is None else (Piece(text=text),)


def document_of(reading: Reading, redirect: Node) -> Pieces | None:
    """A here-document, its variables expanded where its end is not quoted."""
    body = next(iter(inside(redirect, "heredoc_body")), None)
    start = next((text_of(each) for each in inside(redirect, "heredoc_start")), "")
    if body is None:
        return None
    text = text_of(body)
    if text_of(redirect).startswith("<<-"):
        text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
    if re.search(r"[\"'\\]", start):
        return (Piece(text=text),)
    quoted = parse('x="' + _quotes_escaped(text) + '"').named_children
    value = quoted[0].child_by_field_name("value") if len(quoted) == 1 else None
    return None if value is None else reading.expansion.value(value)


_EXPANDED = re.compile(r"\\.|\$\{[^}]*\}|\$\([^)]*\)|`[^`]*`|\"", re.DOTALL)


def _quotes_escaped(text: str) -> str:
    """Quotes of a here-document are text, those inside an expansion are not."""
    return _EXPANDED.sub(
        lambda match: '\\"' if match[0] == '"' else "\\\\" + '\\"' if match[0] == '\\"' else match[0], text
    )


def read(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    """The next line of what is given, or all of it, into variables."""
    options, names = _options(words[1:], _OF_READ)
    names = names or ([] if "a" in options else ["REPLY"])
    filled = read_names(words)
    text, at_end = _next(reading, options) if options.keys() <= {"r", "d", "a", "p"} else (None, True)
    reading.at_end, reading.unread = at_end, text is None
    known = None if text is None or is_open(text) else text_of_pieces(text)
    separators = reading.scope.separators
    if text is not None and (known is None or "d" in options) and len(names) == 1 and "a" not in options:
        reading.fill(names[0], text if not separators else _stripped(text), node=node)
    elif known is None or ("\\" in known and "r" not in options):
        reading.unread = True
        reading.open(filled, node, "filled by read, which is not run")
    elif "a" in options:
        reading.fill(
            options["a"], *((Piece(text=each),) for each in split(known, separators)), node=node, is_array=True
        )
    else:
        values = [*split(known, separators, most=len(names)), *[""] * len(names)]
        for name, value in zip(names, values, strict=False):
            reading.fill(name, (Piece(text=value),), node=node)


def read_names(words: Sequence[Word]) -> list[str]:
    """The variables that `read` fills."""
    options, names = _options(words[1:], _OF_READ)
    return [*names, *([options["a"]] if "a" in options else [])] or ["REPLY"]


def _next(reading: Reading, options: dict[str, str]) -> tuple[Pieces | None, bool]:
    """What read takes, and whether that is the end."""
    given = reading.given_text
    if given is None or not reading.sure or options.get("d"):
        return None, True
    if "d" in options:
        reading.given_text = ()
        return given, True
    if is_open(given):
        return None, True
    line, end, rest = text_of_pieces(given).partition("\n")
    reading.given_text = (Piece(text=rest),)
    return (Piece(text=line),), not end


def _stripped(text: Pieces) -> Pieces:
    first, *others = text or (Piece(text=""),)
    if first.gap is None:
        text = (Piece(text=first.text.lstrip(SPACES)), *others)
    *before, last = text
    return text if last.gap else (*before, Piece(text=last.text.rstrip(SPACES)))


def split(text: str, separators: str, *, most: int = 0) -> list[str]:
    """Fields of a line as read makes them; the last of so many has the rest."""
    spaces = "".join(letter for letter in separators if letter in SPACES)
    others = "".join(letter for letter in separators if letter not in SPACES)
    text = text.strip(spaces) if spaces else text
    if not separators or most == 1:
        return [text]
    white = f"[{re.escape(spaces)}]" if spaces else "(?!)"
    pattern = rf"{white}*[{re.escape(others)}]{white}*|{white}+" if others else rf"{white}+"
    found = re.split(pattern, text, maxsplit=max(0, most - 1))
    return found[:-1] if found and not found[-1] and not most else found


def mapfile(reading: Reading, words: tuple[Word, ...], node: Node) -> None:
    """Each line a value of an array."""
    options, names = _options(words[1:], _OF_MAPFILE)
    name = names[0] if names else "MAPFILE"
    given = reading.given_text
    if given is None or is_open(given) or not options.keys() <= {"t"}:
        reading.open([name], node, f"filled by {words[0].text}, which is not run")
        return
    lines = text_of_pieces(given).splitlines(keepends="t" not in options)
    reading.fill(name, *((Piece(text=line),) for line in lines), node=node, is_array=True)


_OF_READ, _OF_MAPFILE = "dinNptua", "dnOsuCc"  # options with a value, bash(1) 5.2


def _options(words: Sequence[Word], valued: str) -> tuple[dict[str, str], list[str]]:
    """Letters with their values, and the names behind them: -ra L, -r -d '' TEXT."""
    options: dict[str, str] = {}
    left = [word.text for word in words]
    while left and left[0].startswith("-") and len(left[0]) > 1:
        letters = left.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            options[letter] = ""
            if letter in valued:
                options[letter], letters = letters or (left.pop(0) if left else ""), ""
    return options, left
