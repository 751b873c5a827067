"""Checks the CPU substitution: CUDA calls use the CPU inside the block, and are restored after it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.megatron,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the substitution is for machines without a GPU"),
]


ABSENT = object()


@pytest.fixture(scope="module")
def cpu() -> Any:
    from trainer.engines.megatron import cpu

    return cpu


def substituted_objects(cpu: Any) -> list[tuple[Any, str, Any]]:
    """Returns (owner, attribute, current value) of everything that the block replaces."""
    seen = []
    for patch in cpu._patches():
        owner = patch.getter()
        seen.append((owner, patch.attribute, getattr(owner, patch.attribute, ABSENT)))
    return seen


def test_everything_is_as_before_after_the_block(cpu: Any) -> None:
    before = substituted_objects(cpu)
    with cpu.megatron_on_cpu():
        kept = [name for owner, name, now in before if getattr(owner, name) is now]
    assert set(kept) <= {"HAVE_TE", "causal_conv1d_fn"}  # off already without Transformer Engine and causal-conv1d
    assert all(getattr(owner, name, ABSENT) is value for owner, name, value in before)


def test_everything_is_as_before_after_an_error_in_the_block(cpu: Any) -> None:
    before = substituted_objects(cpu)
    with pytest.raises(ZeroDivisionError), cpu.megatron_on_cpu():
        raise ZeroDivisionError
    assert all(getattr(owner, name, ABSENT) is value for owner, name, value in before)


def test_tensors_asked_for_on_cuda_are_cpu_tensors(cpu: Any) -> None:
    with cpu.megatron_on_cpu():
        made = [
            torch.zeros(2, device="cuda"),
            torch.empty(2, device=torch.device("cuda", 0)),
            torch.ones(2).cuda(),
            torch.ones(2).to("cuda"),
            torch.zeros(2, device=torch.cuda.current_device()),
            torch.zeros(2, pin_memory=True),
        ]
    assert {tensor.device.type for tensor in made} == {"cpu"}


def test_tensor_types_carry_the_names_the_optimizers_compare_with(cpu: Any) -> None:
    with cpu.megatron_on_cpu():
        assert torch.ones(1).type() == "torch.cuda.FloatTensor"
        assert torch.ones(1).bfloat16().type() == "torch.cuda.BFloat16Tensor"
        assert torch.ones(1).type(torch.float64).dtype is torch.float64
    assert torch.ones(1).type() == "torch.FloatTensor"


def test_streams_and_events_are_one_queue_that_never_waits(cpu: Any) -> None:
    with cpu.megatron_on_cpu():
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        stream.wait_stream(torch.cuda.current_stream())
        event.record()
        event.wait()
        torch.cuda.synchronize()
        assert event.query()


def test_the_rng_tracker_forks_the_one_generator_and_gives_it_back(cpu: Any) -> None:
    from megatron.core.tensor_parallel import random as mrandom

    with cpu.megatron_on_cpu():
        torch.manual_seed(3)
        mrandom.initialize_rng_tracker(force_reset=True)
        tracker = mrandom.get_cuda_rng_tracker()
        tracker.add("model-parallel-rng", 7)
        outside = torch.get_rng_state()
        with tracker.fork():
            forked = torch.rand(3)
        assert torch.equal(torch.get_rng_state(), outside)
        tracker.reset()
        torch.manual_seed(7)
        assert torch.equal(torch.rand(3), forked)


def test_what_is_being_sent_outlives_its_pseudo_deallocation(cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.pipeline_parallel import p2p_communication, schedules

    held = []  # tensors that gloo is sending, whose data may change before they are sent
    monkeypatch.setattr(torch.distributed, "isend", lambda tensor, **_: held.append(tensor))
    stage = SimpleNamespace(size=lambda: 4, rank=lambda: 0)
    output = torch.arange(6.0)
    with cpu.megatron_on_cpu():
        p2p_communication._p2p_ops(
            tensor_send_prev=None,
            tensor_recv_prev=None,
            tensor_send_next=output,
            tensor_recv_next=None,
            group=stage,
            prev_pipeline_rank=3,
            next_pipeline_rank=1,
        )
        schedules.deallocate_output_tensor(output, True)
    assert output.shape == (1,)
    assert torch.equal(held[0], torch.arange(6.0))


def test_grouped_gemm_is_one_product_an_expert(cpu: Any) -> None:
    tokens, weights = torch.randn(5, 3), torch.randn(2, 3, 4)
    counts = torch.tensor([2, 3])
    expected = torch.cat([tokens[:2] @ weights[0], tokens[2:] @ weights[1]])
    assert torch.equal(cpu._GroupedGemmOnCpu.gmm(tokens, weights, counts), expected)
    transposed = weights.transpose(1, 2).contiguous()
    assert torch.allclose(cpu._GroupedGemmOnCpu.gmm(tokens, transposed, counts, trans_b=True), expected)
