"""Checks the advice of `diagnose`: the fixes of a wall in order of what they could recover, in Megatron-LM's words."""

from __future__ import annotations

import re

import msgspec
import pytest

from analyzers.diagnosis import Analysis, Cause, CommunicationTime, Diagnosis, KernelTime, Wall, WallFinding
from policies.advice.advice import ADVISED, advice
from policies.advice.example_recipes import example_recipes
from policies.advice.job_properties import SPLITS, JobProperties, properties_of
from policies.fixes import FIXES
from policies.situation import Situation
from tests.autotune.report.drawn_study import STEPS, analysis_of
from tests.rows import filled
from trainer.estimate.time.estimate import estimate_time
from trainer.frameworks.megatron_lm.flags import BY_NAME
from trainer.recipe.rules import check

PARTS = {
    Wall.HOST: ("launching", "garbage_collection"),
    Wall.MEMORY: ("recompute", "offload_copies", "allocator"),
    Wall.COMMUNICATION: ("ep_dispatch", "tp", "cp", "pp", "dp"),
    Wall.COMPUTE: (),
}


OF_NO_WALL = ("experts_load", "uneven_stages")


def seen(classes: tuple[str, ...], kinds: tuple[str, ...] = (), capability: tuple[int, int] | None = None) -> Analysis:
    """Returns a job whose traces show kernels of these classes, and communication of these kinds."""
    drawn = analysis_of(STEPS[1], burst=2)
    talked = {kind: CommunicationTime(busy_us=9e3, exposed_us=9e3) for kind in kinds}
    worked = dict.fromkeys(classes, 5e4)
    spans = [
        msgspec.structs.replace(trace.span, compute_by_class=worked, communication_by_kind=talked)
        for trace in drawn.traces
    ]
    traces = [
        msgspec.structs.replace(trace, span=span, compute_capability=capability)
        for trace, span in zip(drawn.traces, spans, strict=True)
    ]
    return msgspec.structs.replace(drawn, traces=traces)


def bound_by(wall: Wall, found: Analysis, **parts: float) -> Analysis:
    """Returns the job with a verdict of this wall, which costs half of each step of 1000 ms."""
    finding = WallFinding(wall=wall, recoverable_us=5e5, share=0.5, evidence=["it is"], parts=parts)
    return msgspec.structs.replace(found, diagnosis=Diagnosis(wall=wall, margin=0.5, because="drawn", walls=[finding]))


def walled(wall: Wall, *, on_cpu: bool = False, cause: str = "") -> Analysis:
    """Returns a job that loses 100 ms of each of 1000 to every part of one wall, and to the cause, if one is named."""
    parts = dict.fromkeys(PARTS[wall], 100000.0)
    finding = WallFinding(
        wall=wall, recoverable_us=1e5 * max(len(parts), 1), share=0.1, evidence=["it is"], parts=parts
    )
    found = seen(("router", "attention"), ("other",))
    traces = [msgspec.structs.replace(trace, devices=[] if on_cpu else [0]) for trace in found.traces]
    lost = Cause(name=cause, headline=cause, lost_us=1e5, share=0.1) if cause else None
    diagnosis = Diagnosis(wall=wall, margin=0.1, because="drawn", walls=[finding], cause=lost)
    return Analysis(diagnosis=diagnosis, traces=traces)


@pytest.mark.parametrize("wall", list(PARTS))
def test_every_fix_of_a_wall_is_offered_for_a_trace_of_unknown_recipe(wall: Wall) -> None:
    claiming = {name for name, fix in FIXES.items() if wall in fix.walls}
    jobs = [walled(wall, on_cpu=on_cpu) for on_cpu in (False, True)] + [walled(wall, cause=name) for name in OF_NO_WALL]
    assert {one.fix for job in jobs for one in advice(job, wall)} == claiming
    for one in advice(walled(wall), wall):
        assert one.flags or one.without or one.settings
        assert all(word in BY_NAME for word in re.findall(r"--[\w-]+", " ".join((*one.flags, *one.without))))


def test_the_fix_that_gives_most_back_comes_first_and_sizes_stay_open() -> None:
    found = advice(walled(Wall.COMMUNICATION), Wall.COMMUNICATION)
    given = [one.gives_back_us for one in found]
    assert given == sorted(given, key=lambda us: -(us or 0.0))
    assert all(us is not None and us <= 5e5 for us in given)
    words = " ".join(word for one in found for word in one.flags)
    assert "--expert-model-parallel-size N" in words
    assert "--overlap-grad-reduce" in words


def test_a_setting_without_a_flag_is_given_as_a_key_of_the_recipe() -> None:
    found = {one.fix: one for one in advice(walled(Wall.HOST), Wall.HOST)}
    assert found["cpu_affinity"].settings == {"cpu_affinity": "spread"}
    assert found["cpu_affinity"].flags == ()
    assert not [word for one in found.values() for word in one.flags if re.match(r"[a-z_]+=", word)]
    assert not [name for name, one in found.items() if one.settings and one.flags]


def test_a_fix_that_is_on_already_is_not_offered() -> None:
    recipe = example_recipes(JobProperties())[0].replace({"overlap_grad_reduce": True, "moe_grouped_gemm": True})
    analysis = walled(Wall.COMMUNICATION)
    found = {one.fix: one for one in advice(analysis, Wall.COMMUNICATION, Situation(recipe=recipe, analysis=analysis))}
    assert "overlap_grad_reduce" not in found
    assert found["interleaved_pipeline"].changes["virtual_pipeline_model_parallel_size"] == 2
    assert "--num-virtual-stages-per-pipeline-rank 2" in " ".join(found["interleaved_pipeline"].flags)


def test_what_does_not_fit_is_offered_memory_by_the_step_time_it_costs() -> None:
    finding = WallFinding(wall=Wall.MEMORY, recoverable_us=0.0, share=1.0, evidence=["out of memory"])
    analysis = Analysis(diagnosis=Diagnosis(wall=Wall.MEMORY, margin=1.0, because="oom", walls=[finding]), traces=[])
    found = advice(analysis, Wall.MEMORY)
    costs = [FIXES[one.fix].slowdown for one in found]
    assert costs == sorted(costs)
    assert {"full_recompute", "distributed_optimizer", "optimizer_offload"} <= {one.fix for one in found}
    assert all(one.gives_back_us is None for one in found)


def test_example_recipes_are_legal() -> None:
    shown = [JobProperties(absent=frozenset(SPLITS[:count]), dense=count == 4) for count in range(5)]
    for each in (
        *shown,
        JobProperties(on_cpu=True),
        JobProperties(grouped_gemm=True),
        JobProperties(compute_capability=(10, 0)),
    ):
        for recipe in filled(example_recipes(each)):
            assert not [finding for finding in check(recipe) if finding.kind == "error"]


DENSE = ("gemm", "attention", "elementwise")


def offered(found: Analysis, wall: Wall = Wall.COMPUTE) -> dict[str, tuple[str, ...]]:
    return {one.fix: one.flags for one in advice(bound_by(wall, found), wall)}


def test_a_dense_model_of_one_gpu_is_offered_nothing_of_experts_nor_of_splits() -> None:
    fixes = {*offered(seen(DENSE)), *offered(seen(DENSE), Wall.HOST), *offered(seen(DENSE), Wall.COMMUNICATION)}
    assert {"micro_batch_up", "cpu_affinity"} <= fixes
    assert not [name for name in fixes if "expert" in name or "tensor" in name or "context" in name]
    assert fixes.isdisjoint({"grouped_gemm", "permute_fusion", "router_fusion", "dispatcher"})


def test_grouped_gemm_is_not_offered_to_a_trace_that_runs_it() -> None:
    assert "grouped_gemm" in offered(seen(("router", "gemm"), ("ep_dispatch",)))
    assert "grouped_gemm" not in offered(seen(("router", "grouped_gemm"), ("ep_dispatch",)))


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((7, 0), None), ((8, 6), None), ((9, 0), "blockwise"), ((10, 0), "mxfp8"), (None, "blockwise")],
)
def test_fp8_is_offered_where_the_gpu_has_it(capability: tuple[int, int] | None, precision: str | None) -> None:
    flags = offered(seen(DENSE, (), capability)).get("fp8")
    assert (flags is not None) == (precision is not None)
    assert (precision or "") in " ".join(flags or ())


def test_communication_of_unnamed_groups_rules_no_split_out() -> None:
    assert properties_of(seen(DENSE, ("other",))).absent == {"ep"}
    assert properties_of(seen(DENSE, ("tp", "dp"))).absent == {"cp", "pp", "ep"}
    assert properties_of(seen(("router", "gemm"), ("tp", "dp"))).absent == {"cp", "pp", "ep"}
    assert "less_tensor_parallel" in offered(seen(DENSE, ("tp",)))


def test_waiting_for_data_is_answered_by_loader_workers_first() -> None:
    found = bound_by(Wall.HOST, seen(DENSE), data_loading=4.9e5, launching=1e4)
    first, *others = advice(found, Wall.HOST)
    assert (first.fix, first.gives_back_us, first.flags) == ("loader_workers", 4.9e5, ("--num-workers N",))
    assert all(one.gives_back_us is not None and one.gives_back_us <= 1e4 for one in others)
    assert first.fix in ADVISED
    assert "loader_workers" not in offered(seen(DENSE), Wall.HOST)


def test_with_a_recipe_nothing_slower_by_the_estimate_is_offered() -> None:
    recipe = example_recipes(JobProperties())[1]
    found = bound_by(Wall.COMPUTE, seen(("router", "gemm"), ("other",)))
    situation = Situation(recipe=recipe, analysis=found)
    before = estimate_time(recipe).tokens_per_s_per_gpu
    advised = advice(found, Wall.COMPUTE, situation)
    assert advised
    assert all(estimate_time(recipe.replace(dict(one.changes))).tokens_per_s_per_gpu >= before for one in advised)


def test_all_to_all_of_embedding_tables_is_no_sign_of_experts() -> None:
    found = seen(("gemm", "embedding"), ("all_to_all", "dp"))
    assert not properties_of(found).dense
    tables = KernelTime(name="split_embedding_codegen_forward", compute_class="embedding", total_us=9e3, count=3)
    traces = [msgspec.structs.replace(trace, kernels=[*trace.kernels, tables]) for trace in found.traces]
    found = msgspec.structs.replace(found, traces=traces)
    assert properties_of(found).dense
    assert "ep" in properties_of(found).absent
    assert not [name for name in offered(found, Wall.COMMUNICATION) if "expert" in name]


def test_loading_kernels_for_their_first_launch_is_left_to_no_fix() -> None:
    found = bound_by(Wall.HOST, seen(DENSE), module_loading=4.9e5, launching=1e4)
    given = [one.gives_back_us for one in advice(found, Wall.HOST)]
    assert all(us is not None and us <= 1e4 for us in filled(given))


CONVOLUTIONAL = ("gemm", "convolution", "elementwise")


def test_a_model_without_transformer_layers_is_offered_graphs_of_a_step_and_no_scope_nor_fp8() -> None:
    found = seen(CONVOLUTIONAL)
    spans = [
        msgspec.structs.replace(trace.span, compute_by_class=trace.span.compute_by_class | {"convolution": 3e5})
        for trace in found.traces
    ]
    traces = [msgspec.structs.replace(trace, span=span) for trace, span in zip(found.traces, spans, strict=True)]
    found = msgspec.structs.replace(found, traces=traces)
    assert not properties_of(found).transformer
    host = {one.fix: one for one in advice(bound_by(Wall.HOST, found, launching=4e5), Wall.HOST)}
    assert host["step_graphs"].flags == ('torch.compile(mode="reduce-overhead")',)
    assert not [flag for one in host.values() for flag in one.flags if "attn" in flag]
    assert "fp8" not in offered(found)


@pytest.mark.parametrize("classes", [DENSE, (*DENSE, "convolution"), ("gemm", "elementwise"), ("router", "gemm")])
def test_attention_or_doubt_leaves_the_scopes_of_layers(classes: tuple[str, ...]) -> None:
    found = bound_by(Wall.HOST, seen(classes), launching=4e5)
    fixes = {one.fix for one in advice(found, Wall.HOST)}
    assert "cuda_graphs" in fixes
    assert "step_graphs" not in fixes
