"""Checks the memory that devices report, GPUs with a fake torch.cuda (`gpu` marks run the real one)."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from trainer.engines.megatron.device import GIB, CpuDevice, GpuDevice
from trainer.engines.megatron.engine import outcome_of
from trainer.rank_report import RankReport
from trainer.recipe import Recipe

torch = pytest.importorskip("torch")
RECIPE = Recipe.model_validate({"name": "a", "model": "qwen3-30b-a3b", "cluster": {"gpu": "h100", "nodes": 1}})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that gives the first of eight GPUs with this much of its 80 GiB free and held by the
    allocator."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    device = GpuDevice(0)

    def holding(*, free_gib: float, reserved_gib: float) -> GpuDevice:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free_gib * GIB), 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: int(reserved_gib * GIB))
        return device

    return holding


def test_memory_outside_the_allocator_is_neither_free_nor_reserved(gpu: Any) -> None:
    assert gpu(free_gib=10, reserved_gib=66.5).outside_gib() == 3.5


def test_a_limit_below_the_devices_own_leaves_the_allocator_what_lies_outside_it_leaves(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fractions: list[float] = []
    total = type("Properties", (), {"total_memory": 80 * GIB})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: total)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", fractions.append)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    with gpu(free_gib=78, reserved_gib=0).held(42.0):
        assert fractions == [40 / 80]
    assert fractions[-1] == 1.0


def test_memory_outside_the_allocator_is_never_negative(gpu: Any) -> None:
    assert gpu(free_gib=10, reserved_gib=71).outside_gib() == 0.0


def test_a_gpu_that_no_longer_answers_says_nothing(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device = gpu(free_gib=10, reserved_gib=60)

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert device.outside_gib() is None


def test_a_cpu_rank_has_no_memory_outside_the_allocator() -> None:
    assert CpuDevice().outside_gib() is None


def test_an_outcome_has_the_memory_outside_of_the_ranks_that_reported_it() -> None:
    reports = [RankReport(rank=rank, outside_gib=held) for rank, held in enumerate((3.0, None, 3.5))]
    assert outcome_of(RECIPE, reports, None, warm=False).outside_gib == [3.0, 3.5]
    assert outcome_of(RECIPE, [RankReport(rank=0)], None, warm=False).outside_gib == []


def test_a_runs_own_collections_search_what_it_has_imported() -> None:
    from trainer.engines.megatron.process import process_settings

    gc.freeze()
    try:
        with process_settings(RECIPE.replace({"manual_gc": True})):
            assert gc.get_freeze_count() == 0
            assert not gc.isenabled()
        assert gc.isenabled()
    finally:
        gc.freeze()  # the suite's own imports
