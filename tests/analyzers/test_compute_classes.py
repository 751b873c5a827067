"""Compute by class and precision: by names, by what a kernel is launched in, and conserved in any window."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.diagnosis import KernelTime
from analyzers.intervals import window
from tests.analyzers.drawing import ALL_TO_ALL, BACKWARD, DISPATCH, GEMM, Drawing
from tests.analyzers.taken_apart import breakdown_of

BF16 = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT"
FP8 = "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
FLASH = "void flash::flash_fwd_kernel<Traits>(flash::Flash_fwd_params)"
SECRET = "my_secret_kernel"


def test_only_gemms_have_a_precision(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(BF16, 0, 30, launched=0).kernel(FP8, 20, 60, launched=0, stream=8)
    drawing.kernel(ADD, 60, 80, launched=0).kernel(FLASH, 50, 60, launched=0, stream=8)
    (step,) = breakdown_of(drawing, tmp_path).steps
    assert step.compute_by_class == {"attention": 10, "gemm": 50, "elementwise": 20}
    assert step.gemm_by_precision == {"bf16": 30, "fp8": 20}


def test_a_product_whose_name_does_not_say_has_unknown_precision(tmp_path: Path) -> None:
    (step,) = breakdown_of(Drawing().step(1, 0, 100).kernel("triton_mm", 0, 30, launched=0), tmp_path).steps
    assert step.gemm_by_precision == {"unknown": 30}


@pytest.mark.parametrize(
    ("where", "name", "kernel", "compute_class"),
    [
        ("operator", "_GroupedLinear", BF16, "grouped_gemm"),
        ("operator", "_GroupedLinearBackward", BF16, "grouped_gemm"),
        ("operator", "_GroupedLinear", ADD, "elementwise"),
        ("operator", "_Linear", BF16, "gemm"),
        ("range", "experts", BF16, "grouped_gemm"),
        ("range", "shared_experts", BF16, "gemm"),
        ("range", "router", ADD, "router"),
        ("range", "Optimizer.step#AdamW.step", ADD, "optimizer"),
        ("range", "Optimizer.zero_grad#AdamW.zero_grad", ADD, "elementwise"),
        ("operator", "aten::_scaled_dot_product_attention_math", BF16, "attention"),
        ("operator", "autograd::engine::evaluate_function: MmBackward0", BF16, "gemm"),
    ],
)
def test_what_a_kernel_is_launched_in_can_make_it_another_class(
    tmp_path: Path, where: str, name: str, kernel: str, compute_class: str
) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(kernel, 50, 80, launched=5, thread=BACKWARD)
    (drawing.range if where == "range" else drawing.operator)(name, 0, 10, thread=BACKWARD)
    (step,) = breakdown_of(drawing, tmp_path).steps
    assert step.compute_by_class == {compute_class: 30}


def test_the_longest_kernels_are_listed_with_their_class(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 500).range("recompute", 100, 110).kernel(BF16, 0, 30, launched=0)
    drawing.kernel(BF16, 200, 240, launched=150).kernel(BF16, 300, 320, launched=105)
    drawing.kernel(DISPATCH, 0, 100, launched=0, stream=8).kernel(SECRET, 400, 401, launched=390)
    assert breakdown_of(drawing, tmp_path).report().kernels == [
        KernelTime(name=DISPATCH, compute_class="communication", kind="ep_dispatch", count=1, total_us=100),
        KernelTime(name=BF16, compute_class="gemm", precision="bf16", count=2, total_us=70),
        KernelTime(name=BF16, compute_class="recompute", precision="bf16", count=1, total_us=20),
        KernelTime(name=SECRET, compute_class="other", count=1, total_us=1),
    ]


def test_of_many_kernels_forty_and_some_of_every_class_are_listed(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 10_000)
    for k in range(60):
        drawing.kernel(f"nvjet_tst_{k}x8_64x16_1x4_h_bz_TNT", 100 * k, 100 * k + 50 + k, launched=0)
    for k in range(7):
        drawing.kernel(f"{SECRET}_{k}", 7000 + 10 * k, 7001 + 10 * k, launched=0)
    kernels = breakdown_of(drawing, tmp_path).report().kernels
    assert [k.compute_class for k in kernels] == ["gemm"] * 40 + ["other"] * 5
    assert [k.total_us for k in kernels] == sorted((k.total_us for k in kernels), reverse=True)


def test_what_no_row_explains_is_said_with_the_largest_first(tmp_path: Path) -> None:
    drawing = Drawing().step(1, 0, 100).kernel(BF16, 0, 60, launched=0).kernel(SECRET, 60, 90, launched=0)
    drawing.kernel(f"{SECRET}_2", 90, 100, launched=0)
    coverage = breakdown_of(drawing, tmp_path).report().coverage
    assert coverage.device_time_classified == pytest.approx(0.6)
    assert [(unknown.name, unknown.total_us) for unknown in coverage.kernels_unknown] == [
        (SECRET, 30),
        (f"{SECRET}_2", 10),
    ]


NAMES = (BF16, FP8, "triton_mm", ADD, FLASH, SECRET, GEMM, ALL_TO_ALL, DISPATCH, "_grouped_gemm_kernel")
KERNELS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 900), st.integers(1, 200), st.integers(0, 1000)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40)
@given(KERNELS, st.integers(0, 900), st.integers(1, 500))
def test_classes_add_up_to_compute_and_precisions_to_products_in_any_window(
    kernels: list[tuple[str, int, int, int]], start: int, duration: int
) -> None:
    drawing = Drawing().step(1, 0, 1500).range("recompute", 200, 400).range("experts", 350, 500)
    for k, (name, begin, took, launched) in enumerate(kernels):
        drawing.kernel(name, begin + 1000, begin + 1000 + took, launched=launched, stream=k % 4)
    with tempfile.TemporaryDirectory() as folder:
        work = breakdown_of(drawing, Path(folder)).work
    (one,) = [window(start + 1000.0, start + 1000.0 + duration)]

    def inside(parts: object) -> float:
        assert isinstance(parts, dict)
        return sum(float(part.within(one.start, one.end)[0]) for part in parts.values())

    assert inside(dict(work.compute_by_class)) == pytest.approx(float(work.compute.within(one.start, one.end)[0]))
    products = {name: part for name, part in work.compute_by_class.items() if name == "gemm"}
    assert inside(dict(work.gemm_by_precision)) == pytest.approx(inside(products))
