"""Says in words which releases are installed, and whether they were tested together."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.releases import Standing, Status, belonging_to, standing_of, tested_cores

SHOWN = ("megatron-core", "megatron-bridge", "transformer-engine", "torch", "deep-ep")


def releases_text(versions: Mapping[str, str]) -> str:
    """Returns `megatron-core 0.19.2, torch 2.14.1: tested together on CPU ranks`; without Megatron-Core, that it is not
    installed."""
    if "megatron-core" not in versions:
        return "megatron-core is not installed here"
    named = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    return f"{named}: {_standing_text(standing_of(versions))}{_engine_text(versions)}"


def _standing_text(standing: Standing) -> str:
    where = standing.row.where if standing.row else ""
    if standing.status is Status.TESTED:
        return f"tested together on {where}"
    if standing.status is Status.BELONGS:
        return f"together in NVIDIA's {where}, not tested here"
    if standing.status is Status.FAILS:
        return f"known to fail: {where}"
    return f"not tested together (tested: Megatron-Core {', '.join(tested_cores())})"


def _engine_text(versions: Mapping[str, str]) -> str:
    """Returns which Transformer Engine belongs to the Megatron-Core, if another one is installed."""
    row = belonging_to(versions["megatron-core"])
    own = row.packages.get("transformer-engine") if row else None
    installed = versions.get("transformer-engine")
    if own is None or installed is None or own.contains(installed):
        return ""
    return f"; NVIDIA released it with Transformer Engine {str(own).removeprefix('==').removesuffix('.*')}"
