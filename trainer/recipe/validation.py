"""Turns plain data into a recipe, or reports every problem in it at once: place, fact and next step."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainer.errors import BadInputError, Problem
from trainer.recipe.architecture import Architecture, Section
from trainer.recipe.hardware import known_hardware
from trainer.recipe.knobs import KNOBS
from trainer.recipe.models import presets
from trainer.recipe.names import safe_name
from trainer.recipe.sections import (
    BurstSettings,
    Cluster,
    Parallelism,
    TrainerSettings,
    Training,
    TuneSettings,
    knob_problem,
)
from trainer.recipe.source import KeyPath, Source, nearest
from trainer.secrets import is_secret, masked, secrets_in

Model = TypeVar("Model", bound=Section)
Known = Iterable[str]  # keys that are valid in a section

ALIASES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
}
SECTIONS: dict[str, type[Section]] = {
    "model": Architecture,
    "cluster": Cluster,
    "training": Training,
    "parallelism": Parallelism,
    "burst": BurstSettings,
    "tune": TuneSettings,
    "trainer": TrainerSettings,
}


def validated(model: type[Model], source: Source) -> Model:
    """Returns plain data as `model`, a whole file. Raises BadInputError with every problem found."""
    data, problems = _spelled_out(source)
    problems += [*_knob_problems(source, data), *_secret_problems(source, data.get("trainer"))]
    if isinstance(data.get("knobs"), dict):
        data["knobs"] = {k: v for k, v in data["knobs"].items() if k in KNOBS and knob_problem(k, v) is None}
    data.setdefault("name", _default_name(source))
    try:
        found = model.model_validate(data)
        if not problems:
            return found
    except ValidationError as error:
        problems += _schema_problems(source, data, error.errors(), model)
    raise BadInputError(*sorted(problems, key=lambda problem: _line(problem.where)))


def validated_part(model: type[Model], source: Source) -> Model:
    """Returns plain data as `model`, a section. Raises BadInputError with every problem found."""
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        raise BadInputError(*_schema_problems(source, source.data, error.errors(), model)) from None


def _line(where: str) -> int:
    digits = where.split(" ")[0].rpartition(":")[2]
    return int(digits) if digits.isdigit() else 0


def _default_name(source: Source) -> str:
    return safe_name(source.name.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml"))


def _spelled_out(source: Source) -> tuple[dict[str, Any], list[Problem]]:
    """Returns a copy of the data with full names of parallel sizes and without empty sections, and the problems
    found."""
    data: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value
        for key, value in source.data.items()
        if value is not None
    }
    problems = []
    layout = data.get("parallelism")
    if not isinstance(layout, dict):
        return data, []
    for short, name in ALIASES.items():
        if short not in layout:
            continue
        if name in layout:
            where = source.where(("parallelism", short))
            problems.append(Problem(where=where, what=f"also written as {name}", hint="keep one of them"))
        layout[name] = layout.pop(short)
    return data, problems


def _knob_problems(source: Source, data: dict[str, Any]) -> list[Problem]:
    knobs = data.get("knobs")
    if not isinstance(knobs, dict):
        return []
    return [
        Problem(where=source.where(("knobs", name)), what=what, hint=_knob_hint(name, value))
        for name, value in knobs.items()
        if (what := knob_problem(name, value))
    ]


def _secret_problems(source: Source, trainer: Any) -> Iterator[Problem]:
    """Yields a problem for each secret in the recipe, which is copied into journals, reports and exports: it names the
    key, not the value."""
    env = trainer.get("env") if isinstance(trainer, dict) else None
    for name, value in env.items() if isinstance(env, dict) else ():
        if isinstance(value, str) and is_secret(str(name), value) and value != f"${{{name}}}":
            yield Problem(
                where=source.where(("trainer", "env", name)),
                what="it contains a secret, and a recipe is copied into journals, reports and exports",
                hint=f"write {name}: ${{{name}}} and export {name} in the shell that starts the study",
            )
    command = trainer.get("command") if isinstance(trainer, dict) else None
    words = [word for word in command if isinstance(word, str)] if isinstance(command, (list, tuple)) else []
    for name in secrets_in(words):
        yield Problem(
            where=source.where(("trainer", "command")),
            what=f"{name} contains a secret, and a recipe is copied into journals, reports and exports",
            hint="take it out of the command, and export the variable that the trainer reads it from",
        )
    setup = trainer.get("setup") if isinstance(trainer, dict) else None
    for number, line in enumerate(setup if isinstance(setup, (list, tuple)) else ()):
        if isinstance(line, str) and masked(line, {}) != line:
            yield Problem(
                where=source.where(("trainer", "setup", number)),
                what=f"`{masked(line, {})}` holds a secret, and a recipe is copied into journals, reports and exports",
                hint="take it out, and export it in the shell that starts the study",
            )


def _knob_hint(name: Any, value: Any) -> str:
    knob = KNOBS.get(name)
    if knob is None:
        return _unknown_hint(str(name), "knobs", [n for n, knob in KNOBS.items() if knob.section == "knobs"])
    if knob.section != "knobs":
        return f"move it to {knob.section}"
    if knob.domain.kind == "one" and isinstance(value, str) and (word := nearest(value, knob.domain.words)):
        return f"did you mean {word}?"
    if knob.domain.kind == "any" and isinstance(value, (list, tuple)):
        meant = {word: nearest(str(word), knob.domain.words) for word in value if word not in knob.domain.words}
        if meant and all(meant.values()):  # guides and configurations shorten these words
            return f"did you mean {', '.join(filter(None, meant.values()))}?"
    return _number_hint(value) or f"write {knob.domain}"


def _number_hint(value: Any) -> str | None:
    """Returns the hint for a number that YAML reads as text ("8", 1e3); None for other values."""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if number is None or not math.isfinite(number):
        return None
    plain = int(number) if number.is_integer() else number
    if "e" in str(plain):  # YAML reads an exponent only after a decimal point
        pointed = str(plain) if "." in str(plain) else str(plain).replace("e", ".0e")
        return f"YAML reads {value} as text here; write {pointed}, without quotes"
    return f"YAML reads {value} as text here; write {plain}, without quotes or exponent"


def _unknown_hint(name: str, section: str, known: Iterable[str]) -> str:
    """Returns the hint for an unknown key: the section that has it, else the nearest key, else the known keys."""
    spelled = ALIASES.get(name, name)
    if spelled in KNOBS and KNOBS[spelled].section != section:
        return f"move it to {KNOBS[spelled].section}"
    for other, model in SECTIONS.items():
        if other != section and name in model.model_fields:
            return f"move it to {other}"
    known = list(known)
    word = nearest(name, [*known, *ALIASES] if section == "parallelism" else known)
    if word:
        return f"did you mean {word}?"
    return f"known keys: {', '.join(known)}" if len(known) <= 20 else "see `moe-autotune init` for all keys"


def _schema_problems(
    source: Source, data: dict[str, Any], errors: list[ErrorDetails], model: type[Section]
) -> list[Problem]:
    """Returns pydantic's errors as problems, one per key path, without those of union members that were not meant."""
    problems: dict[KeyPath, Problem] = {}
    for error in errors:
        if _other_union_member(data, error["loc"]):
            continue
        path = _path_in(data, error["loc"])
        if path not in problems:
            problems[path] = _problem(source, path, error, model)
    return list(problems.values())


# Keys that hold a name or a mapping, as pydantic's locations name the mapping
NAME_OR_MAPPING: dict[KeyPath, str] = {("model",): "Architecture", ("cluster", "gpu"): "GpuFigures"}


def _other_union_member(data: dict[str, Any], loc: tuple[int | str, ...]) -> bool:
    """Returns True if the error is of the union's name form where a mapping is given, or the reverse."""
    for path, mapping in NAME_OR_MAPPING.items():
        if loc[: len(path)] == path and len(loc) > len(path):
            written: Any = data
            for key in path:
                written = written.get(key) if isinstance(written, dict) else None
            return loc[len(path)] == ("str" if isinstance(written, dict) else mapping)
    return False


def _path_in(data: Any, loc: tuple[int | str, ...]) -> KeyPath:
    """Returns the error's location as keys of the file: pydantic inserts the names of union members."""
    path: list[str | int] = []
    for part in loc:
        written = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if written:
            data = data[part]
        if written or (part == loc[-1] and isinstance(data, dict)):
            path.append(part)
    return tuple(path)


def _problem(source: Source, path: KeyPath, error: ErrorDetails, model: type[Section]) -> Problem:
    key = str(path[-1]) if path else ""
    section = ".".join(map(str, path[:-1]))
    known = _fields(model, path[:-1])
    what, hint = MESSAGES.get(error["type"], _other)(error, key, section, known)
    return Problem(where=source.where(path), what=what, hint=hint)


def _fields(model: type[Section], path: KeyPath) -> Known:
    """Returns the valid keys of the section at `path`."""
    found = [model]
    for key in path:
        fields = [field for each in found if (field := each.model_fields.get(str(key)))]
        inside = [SECTIONS[str(key)]] if found == [model] and str(key) in SECTIONS else []
        inside = inside or [each for field in fields for each in _sections_in(field.annotation)]
        if not inside:
            break
        found = inside
    return [name for each in found for name in each.model_fields]


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    """Yields the sections that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for each in get_args(annotation):
        yield from _sections_in(each)


Message = Callable[[ErrorDetails, str, str, Known], tuple[str, str]]


def _unknown_key(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return "unknown key", _unknown_hint(key, section, known)


def _missing(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    examples = {
        "model": "a preset such as qwen3-30b-a3b, or a mapping of Megatron-Core's fields",
        "cluster": "for example `cluster: {gpu: h100, nodes: 1}`",
    }
    return "missing", examples.get(key, f"write {key} under {section}" if section else f"write {key}")


def _own_check(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    tables: dict[str, Iterable[str]] = {"model": presets(), "gpu": known_hardware(), "freeze": KNOBS}
    named = list(tables.get(key, ()))
    value = error["input"]
    words = value if isinstance(value, (list, tuple)) else [value]
    found = [word for wrong in words if wrong not in named and (word := nearest(str(wrong), named))]
    hint = f"did you mean {', '.join(found)}?" if found else f"there are {', '.join(named[:30])}"
    return error["msg"].removeprefix("Value error, "), hint


def _announced(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], str(error["ctx"]["hint"])


def _recipe_name(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], "write letters, digits, '-', '_' and '.': the study's folder is named after it"


def _not_our_ranks(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    if error["ctx"]["engine"] == "command":
        return "engine command starts the trainer's ranks, not ours", "write the variables to trainer.env"
    return f"engine {error['ctx']['engine']} starts no process", "leave the variables out"


def _not_simulated(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], "take burst.machine out, or set burst.engine to simulated"


def _trainer_version(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], "write the trainer's release, such as 0.16.1, head for its newest, or leave it out"


def _literal(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    expected = str(error["ctx"]["expected"])
    words = [word.strip("' ") for word in expected.replace(" or ", ", ").split(",")]
    word = nearest(str(error["input"]), words)
    return f"{_shown(error['input'])} is not one of {', '.join(words)}", (
        f"did you mean {word}?" if word else f"write one of {', '.join(words)}"
    )


def _other(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    value = error["input"]
    text = error["msg"].removeprefix("Input should be ").replace("a valid integer", "a whole number")
    text = f"a number {text}" if text.startswith(("greater", "less")) else text
    text = re.sub(r"a valid dictionary(?: or instance of \w+)?", "a mapping of keys", text).replace("valid ", "")
    text = WORDS.get(text, text)
    return f"expected {text}, got {_shown(value)}", _number_hint(value) or f"write {text}"


def _key_that_is_none(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return "a key that is not text", f"known here: {', '.join(known)}"


def _too_short(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return "it is empty", f"write at least one word: {key}: [...]"


def _too_many_ranks(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], "more than any cluster has: write fewer nodes or gpus_per_node"


def _figures_missing(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], f"write {error['ctx']['missing']} under cluster"


def _gpu_of_the_table(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    name = str(error["ctx"]["name"]).lower()
    return error["msg"], f"write `gpu: {name}`, or give other figures another name"


def _gpu_name(error: ErrorDetails, key: str, section: str, known: Known) -> tuple[str, str]:
    return error["msg"], "write letters, digits, '-', '_' and '.', 40 at most, such as mi300x"


# pydantic's words -> the words for a YAML file
WORDS = {"a tuple": "a list: [a, b]", "a string": "text, in quotes where it looks like a number"}


def _shown(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


MESSAGES: dict[str, Message] = {
    "extra_forbidden": _unknown_key,
    "missing": _missing,
    "value_error": _own_check,
    "literal_error": _literal,
    "recipe_name": _recipe_name,
    "not_simulated": _not_simulated,
    "not_our_ranks": _not_our_ranks,
    "invalid_key": _key_that_is_none,
    "too_short": _too_short,
    "too_many_ranks": _too_many_ranks,
    "figures_missing": _figures_missing,
    "gpu_of_the_table": _gpu_of_the_table,
    "gpu_announced": _announced,
    "gpu_name": _gpu_name,
    "trainer_version": _trainer_version,
}
