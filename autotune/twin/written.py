"""Writes a twin as a machine file. A comment at every figure says what it was learned from, and its interval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from autotune.twin.learning import Key, Twin
from policies.surrogate.factors import factors
from policies.trial import Z_90
from trainer.recipe.machine_file import Learned, LearnedFactors

HEAD = """\
# {about}.
# Two sections. The keys above `estimate` say how a simulation of this cluster differs from the published one
# (docs/machines.md); `estimate` holds factors on the constants of `estimate` and `plan` (docs/twin.md).
# Brackets are 90 % intervals. What is absent was not measured, and is as in the tables.
name: {name}
about: {quoted}
"""
ESTIMATE = """\
# Factors of the closed forms: the mean on the factor's scale (0: the table's figure), and its standard deviation
estimate:
  source: {source}
  trials: {trials}
  gpu: {gpu}
  versions: {versions}
"""
MEASURED_WORDS = {
    "memory.activations": "activations of the study's peaks over the simulation's",
    "host.gc_ms": "pauses for garbage in the study's traces",
    "memory.outside_gib": "GiB that GPUs held outside the allocator beyond the simulation's",
    "memory.fragmentation": "limit that ranks met below the GPU's memory",
}
GROUP_WORDS = {
    "state": "weights, gradients and optimizer",
    "activations": "activations",
    "loss": "the loss's tensors and workspaces",
    "buffers": "buffers",
    "uneven": "what routed tokens take, more without forced balance",
    "fragmentation": "what the allocator cannot use",
    "outside": "outside the allocator",
    "limit": "the memory that ranks could fill",
}


def twin_text(twin: Twin) -> str:
    """Returns the text of the file, which `load_machine_file` reads back."""
    file, estimate = twin.file, twin.file.estimate
    assert estimate is not None
    head = HEAD.format(about=file.about, name=_plain(file.name), quoted=_plain(file.about))
    return head + "".join(_sections(twin.keys)) + "".join(_estimate(estimate, twin))


def _sections(keys: Mapping[str, Key]) -> Iterator[str]:
    """Yields the simulation's keys, section by section."""
    section = ""
    for name, key in sorted(keys.items(), key=lambda item: item[0].split(".")[0]):
        of, _, field = name.partition(".")
        if of != section:
            section = of
            yield f"{section}:\n"
        words = ", ".join(dict.fromkeys(_words(factor) for factor in key.factors)) or MEASURED_WORDS.get(name, "")
        between = f" [{key.low:.3g}, {key.high:.3g}]" if key.factors else ""
        yield f"  {field}: {key.value:g}{_comment(f'{words}{between}')}"


def _estimate(estimate: LearnedFactors, twin: Twin) -> Iterator[str]:
    versions = yaml.safe_dump(estimate.versions, default_flow_style=True, width=10_000, sort_keys=False).strip()
    yield ESTIMATE.format(
        source=_plain(estimate.source), trials=estimate.trials, gpu=_plain(estimate.gpu), versions=versions
    )
    in_units = {one.factor: one for one in twin.corrections}
    yield "  factors:\n" if estimate.factors else "  factors: {}\n"
    for name, figure in estimate.factors.items():
        words = _words(name)
        if one := in_units.get(name):
            words += f": {one.before:.3g} → {one.after:.3g} [{one.low:.3g}, {one.high:.3g}] {one.unit}"
        yield f"    {name}: {_figure(figure)}{_comment(words)}"
    yield "  memory:\n" if estimate.memory else "  memory: {}\n"
    for name, figure in estimate.memory.items():
        low, high = (figure.mean + sign * Z_90 * figure.deviation for sign in (-1, 1))
        yield f"    {name}: {_figure(figure)}{_comment(f'{GROUP_WORDS[name]}: {low:+.3f} to {high:+.3f}')}"


def _words(factor: str) -> str:
    return next((each.words for each in factors() if each.name == factor), factor)


def _figure(figure: Learned) -> str:
    return f"{{mean: {figure.mean:g}, deviation: {figure.deviation:g}}}"


def _comment(words: str) -> str:
    return f"    # {words}\n" if words else "\n"


def _plain(text: str) -> str:
    """Returns the text as YAML writes it on one line."""
    return yaml.safe_dump(text, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")
