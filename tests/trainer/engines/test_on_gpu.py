"""Bursts on a real GPU: the behaviour that the fakes of the other files imitate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.trainer.engines.gpu_recipes import LOCAL_GRAPHS, TE_GRAPHS, WHOLE_ITERATION, on_gpus
from trainer.burst import Burst, Failure, FailureKind, Outcome
from trainer.engines.megatron.device import GpuDevice
from trainer.engines.megatron.engine import MegatronEngine

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.megatron,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

CAPACITY = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
GATHER = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("bursts")
    engine, count = MegatronEngine(folder / "engine"), iter(range(1, 100))

    def burst(knobs: dict[str, Any], *, gpus: int = 1) -> Outcome:
        if torch.cuda.device_count() < gpus:
            pytest.skip(f"needs {gpus} GPUs")
        number = next(count)
        recipe = on_gpus(knobs, gpus=gpus, hidden_size=256, moe_ffn_hidden_size=256)
        return engine.run(Burst(number=number, recipe=recipe, folder=folder / f"{number:04d}"))

    yield burst
    engine.close()


def needs_transformer_engine() -> None:
    from trainer.engines.megatron.compat import has_transformer_engine

    if not has_transformer_engine():
        pytest.skip("needs Transformer Engine")


def test_a_burst_trains_with_the_fusions_on(run: Any) -> None:
    needs_transformer_engine()
    outcome = run({})
    assert outcome.failure is None
    assert outcome.layers == "transformer_engine"
    assert outcome.loss[-1] < outcome.loss[0]


def test_memory_outside_the_allocator_is_more_than_a_context_and_less_than_the_gpu(run: Any) -> None:
    outcome = run({})
    assert outcome.failure is None
    assert len(outcome.outside_gib) == outcome.ranks == 1
    assert 0.1 < outcome.outside_gib[0] < torch.cuda.mem_get_info()[1] / 2**30 - outcome.peak_gib[0]


def test_what_torch_says_of_a_full_gpu_is_what_the_device_says() -> None:
    device = GpuDevice(0)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(2**50, dtype=torch.uint8, device=device.name)
    said = Failure(kind=FailureKind.OOM, evidence=str(raised.value)).outside_gib
    assert said == pytest.approx(device.outside_gib(), abs=0.05)  # figures of 0.01 GiB, and others come and go


@pytest.mark.parametrize("graphs", [LOCAL_GRAPHS, TE_GRAPHS, WHOLE_ITERATION | CAPACITY], ids=["local", "te", "whole"])
def test_graphs_are_captured_and_captured_again_on_warm_ranks(run: Any, graphs: dict[str, Any]) -> None:
    needs_transformer_engine()
    plain = run({name: value for name, value in graphs.items() if name in CAPACITY})
    first, second = run(graphs), run(graphs)
    assert [outcome.failure for outcome in (plain, first, second)] == [None] * 3
    assert second.warm
    assert first.loss[:3] == pytest.approx(plain.loss[:3], rel=1e-2)
    assert second.loss == pytest.approx(first.loss, rel=1e-2)


def test_parameters_gathered_under_the_forward_pass_give_the_plain_losses(run: Any) -> None:
    plain, gathered = run({"use_distributed_optimizer": True}, gpus=2), run(GATHER, gpus=2)
    assert gathered.failure is None
    assert gathered.loss == pytest.approx(plain.loss, rel=1e-2)


def test_tp_overlap_runs_on_its_buffers_twice(run: Any) -> None:
    needs_transformer_engine()
    knobs = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_tensor_parallel_size": 1,
             "expert_model_parallel_size": 2, "tp_comm_overlap": True}  # fmt: skip
    assert [run(knobs, gpus=2).failure for _ in range(2)] == [None, None]


@pytest.mark.parametrize("strategy", ["optim", "optim_grads", "optim_grads_params"])
def test_megatron_fsdp_gives_the_losses_of_ddp(run: Any, strategy: str) -> None:
    pytest.importorskip("einops")
    needs_transformer_engine()
    plain = run({"use_distributed_optimizer": True}, gpus=2)
    sharded = run(
        {"use_distributed_optimizer": True, "use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy},
        gpus=2,
    )
    assert sharded.failure is None
    assert sharded.loss == pytest.approx(plain.loss, rel=1e-2)
