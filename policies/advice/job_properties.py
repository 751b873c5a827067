"""The properties of a job that its traces show, for advice without a recipe; example recipes are made to agree with
them. A property is ruled out only by certain evidence: communication of an unnamed group may be of any kind, and
kernels inside a CUDA graph of any class."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from analyzers.diagnosis import Analysis, Partition
from policies.situation import EP_KINDS, LOAD_PART, PIPELINE_CAUSES

UNNAMED = "other"  # kind of communication of unnamed groups
SPLITS = ("tp", "cp", "pp", "ep")
EXPERTS = re.compile("moe|expert", re.IGNORECASE)  # names of kernels and ranges that show experts
TABLES = re.compile("split_embedding|permute_pooled_embs")  # FBGEMM's kernels of embedding tables, sharded over ranks
ALL_TO_ALL = "all_to_all"  # kind of communication: all-to-alls of unnamed groups
EXPERT_CLASSES = {"grouped_gemm", "router"}
TRANSFORMER_CLASSES = EXPERT_CLASSES | {"attention"}


@dataclass(frozen=True, kw_only=True)
class JobProperties:
    """The properties of one job.

    `absent` are members of `SPLITS` that the traces rule out; `dense`: kernels were recorded, and none of them is of
    MoE layers; `grouped_gemm`: one kernel computes all experts of a rank; `transformer` is false for models of
    convolutions or embedding tables; `compute_capability` of the GPU, None if unknown.
    """

    on_cpu: bool = False
    absent: frozenset[str] = frozenset()
    dense: bool = False
    grouped_gemm: bool = False
    transformer: bool = True
    compute_capability: tuple[int, int] | None = None


def properties_of(analysis: Analysis) -> JobProperties:
    """Returns the properties that the traces show.

    If no kernel was recorded, or some ran inside CUDA graphs, nothing is ruled out.
    """
    traces = analysis.traces
    capability = next((trace.compute_capability for trace in traces if trace.compute_capability is not None), None)
    if not traces or not any(trace.devices for trace in traces):
        return JobProperties(on_cpu=bool(traces))
    spans = [trace.span for trace in traces]
    classes = {name for span in spans for name, us in span.compute_by_class.items() if us > 0}
    if not classes or any(span.graph_us > 0 for span in spans):
        return JobProperties(compute_capability=capability, grouped_gemm="grouped_gemm" in classes)
    kinds = {kind for span in spans for kind, time in span.communication_by_kind.items() if time.busy_us > 0}
    present = kinds | set(_shown_by_effects(analysis, spans))
    absent = set() if UNNAMED in kinds else {split for split in SPLITS if split not in present}
    dense = "ep" not in present and not classes & EXPERT_CLASSES and not _names(analysis, EXPERTS)
    return JobProperties(
        absent=frozenset(absent | ({"ep"} if dense else set())),
        dense=dense,
        grouped_gemm="grouped_gemm" in classes,
        transformer=not dense or not _is_not_transformer(analysis, spans),
        compute_capability=capability,
    )


def _is_not_transformer(analysis: Analysis, spans: list[Partition]) -> bool:
    """Returns whether no kernel of a transformer was recorded, and convolutions take longer than GEMMs or embedding
    tables are looked up. Unfused attention cannot be recognised: it is a GEMM and a softmax, as in other models."""
    if any(span.compute_by_class.get(name, 0.0) > 0 for span in spans for name in TRANSFORMER_CLASSES):
        return False
    convolutions, gemms = (sum(span.compute_by_class.get(of, 0.0) for span in spans) for of in ("convolution", "gemm"))
    return convolutions > gemms or _names(analysis, TABLES)


def _shown_by_effects(analysis: Analysis, spans: list[Partition]) -> Iterator[str]:
    """Yields the splits (members of `SPLITS`) of which the traces show an effect other than their own kind of
    communication."""
    diagnosis = analysis.diagnosis
    causes = {*diagnosis.waits, *([diagnosis.cause.name] if diagnosis.cause is not None else [])}
    if causes & {*PIPELINE_CAUSES} or any(span.idle_by_cause.bubble_us > 0 for span in spans):
        yield "pp"
    of_experts = {*EP_KINDS} - ({ALL_TO_ALL} if _names(analysis, TABLES) else set())
    if LOAD_PART in causes or any(of_experts & {*span.communication_by_kind} for span in spans):
        yield "ep"


def _names(analysis: Analysis, words: re.Pattern[str]) -> bool:
    """Returns whether the name of a kernel or of a range has one of the words."""
    kernels = (one.name for trace in analysis.traces for one in trace.kernels)
    ranges = (one.name for trace in analysis.traces for one in trace.ranges)
    return any(words.search(name) for name in (*kernels, *ranges))
