"""Plans rows on communication between ranks, inside an NVLink domain and across domains, and on copies between host and
device."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.microbenchmarks.group import Group
from trainer.microbenchmarks.row import Row
from trainer.microbenchmarks.shapes import alone, dispatch_sizes, dispatchers, domain
from trainer.recipe import Recipe

LARGE_GB, SMALL_GB, COPIED_GB = 0.5, 0.004, 0.25
LARGE_CPU_GB, SMALL_CPU_GB = 0.008, 0.00025
BATCHES = (1, 4)  # micro batches of a dispatch: one may be bound by latency, four by bytes


def rows(recipe: Recipe) -> list[Row]:
    """Returns rows of reduce-scatters at two sizes, sends, dispatches of every library, exchanges of token counts and,
    except on CPUs, copies."""
    return [*_rings(recipe), *_dispatches(recipe), *_copies(recipe)]


def _rings(recipe: Recipe) -> Iterator[Row]:
    near, world = min(domain(recipe), recipe.world_size), recipe.world_size
    groups = []
    if near > 1:
        groups.append(("near", "inside a domain", near, 1))
    if world >= 2 * near:
        if near > 1:
            groups.append(("both", "across two domains", 2 * near, 1))
        groups.append(("far", "between two domains", 2, near))
    on_cpu = recipe.hardware.is_cpu
    large, small = (LARGE_CPU_GB, SMALL_CPU_GB) if on_cpu else (LARGE_GB, SMALL_GB)
    for kind, gb in (("ring", large), ("small_ring", small)):
        for which, where, ranks, stride in groups:
            yield Row(
                group="links",
                kind=f"{kind}_{which}",
                name=f"reduce-scatter of {1e3 * gb:g} MB {where}",
                unit="us",
                sizes={"gb": gb, "ranks": float(ranks), "stride": float(stride)},
            )
    for which, where, ranks, stride in (group for group in groups if group[0] != "both"):
        gb = SMALL_CPU_GB if on_cpu else 10 * SMALL_GB
        yield Row(
            group="links",
            kind=f"send_{which}",
            name=f"send of {1e3 * gb:g} MB {where}",
            unit="us",
            sizes={"gb": gb, "ranks": 2.0, "stride": float(stride if ranks == 2 else 1)},
        )


def _dispatches(recipe: Recipe) -> Iterator[Row]:
    for where, ep in dispatch_sizes(recipe).items():
        for library, knobs in dispatchers(recipe).items():
            for batch in BATCHES:
                changes = alone(recipe, expert_model_parallel_size=ep, micro_batch_size=batch, **knobs)
                name = f"{library} dispatch {where}, EP {ep}, micro batch {batch}"
                yield Row(group="links", kind="dispatch", name=name, unit="us", changes=changes)
        changes = alone(recipe, expert_model_parallel_size=ep)
        name = f"exchange of counts {where}, EP {ep}"
        yield Row(group="links", kind="notify", name=name, unit="us", changes=changes)


def _copies(recipe: Recipe) -> Iterator[Row]:
    if not recipe.hardware.is_cpu:
        for way in ("to the device", "to the host"):
            name = f"copy of {1e3 * COPIED_GB:g} MB {way}"
            sizes = {"gb": COPIED_GB, "back": float(way == "to the host")}
            yield Row(group="links", kind="copy", name=name, unit="us", sizes=sizes)


GROUP = Group(name="links", order=0, rows=rows)
