"""Checks that a burst on GPUs acts as the exported command would, and that its outcome lists the differences.

Fakes take the place of what needs a GPU; tests with the mark `gpu` run on one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.trainer.engines.gpu_recipes import WHOLE_ITERATION, on_gpus
from tests.trainer.engines.megatron_verdict import transformer_engine_played
from trainer.burst import Outcome
from trainer.engines.megatron.engine import environment_of
from trainer.recipe import load_recipe

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.megatron

TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}


def test_tp_before_blackwell_has_the_one_connection_that_megatron_lm_demands() -> None:
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    assert environment_of(on_gpus(TP2))[name] == "1"
    assert environment_of(on_gpus({"context_parallel_size": 2}))[name] == "1"
    assert environment_of(on_gpus(TP2 | {name: 32}))[name] == "32"
    assert name not in environment_of(on_gpus(TP2, gpu="gb200"))
    assert name not in environment_of(on_gpus())


def test_what_megatron_compiles_is_compiled_on_gpus_only() -> None:
    assert environment_of(load_recipe("cpu-moe"))["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in environment_of(on_gpus())


def test_loss_and_gradients_are_checked_as_megatron_lm_does() -> None:
    from trainer.engines.megatron.config import build_configs, checks_for_nan

    def in_gradients(recipe: Any) -> bool:
        return bool(build_configs(recipe, transformer_engine=False).ddp.check_for_nan_in_grad)

    for recipe, checked in ((on_gpus(), True), (on_gpus(WHOLE_ITERATION), False), (load_recipe("cpu-moe"), False)):
        assert checks_for_nan(recipe) is in_gradients(recipe) is checked


def test_the_loss_of_every_micro_batch_is_looked_at() -> None:
    from trainer.engines.megatron.steps import NanLossError, Steps

    steps: Any = SimpleNamespace(_taken=4)
    Steps._look_at(steps, torch.tensor(1.0))
    for value in ("nan", "inf"):
        with pytest.raises(NanLossError, match="at step 5"):
            Steps._look_at(steps, torch.tensor(float(value)))


@pytest.mark.parametrize(
    ("precision", "calls"), [("bf16", None), ("fp8_blockwise", "blockwise"), ("mxfp8", "mxfp8"), ("nvfp4", None)]
)
def test_the_optimizer_knows_the_recipe_of_fp8(precision: str, calls: str | None) -> None:
    from trainer.engines.megatron.config import build_configs

    with transformer_engine_played():
        built = build_configs(on_gpus({"precision": precision}), transformer_engine=True)
    assert built.optimizer.fp8_recipe == calls


def test_megatron_fsdp_wraps_the_chunks_where_the_recipe_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engines.megatron import model
    from trainer.engines.megatron.config import build_configs
    from trainer.engines.megatron.cpu import megatron_on_cpu

    def wrapper(name: str) -> Any:
        return lambda: lambda config, ddp, chunk, disable_bucketing: (name, ddp.data_parallel_sharding_strategy, chunk)

    monkeypatch.setattr(model, "_megatron_fsdp", wrapper("fsdp"))
    monkeypatch.setattr(model, "_megatron_ddp", wrapper("ddp"))
    sharded = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    with megatron_on_cpu():
        for knobs, wrapped in ((sharded, ("fsdp", "optim_grads_params")), ({}, ("ddp", "no_shard"))):
            configs = build_configs(on_gpus(knobs), transformer_engine=False)
            assert model.in_ddp(configs, ["chunk"]) == [(*wrapped, "chunk")]


def test_fsdp_gathers_by_itself() -> None:
    from trainer.engines.megatron.model import TrainableModel
    from trainer.engines.megatron.parameter_gather import ParameterGather

    recipe = on_gpus({"use_distributed_optimizer": True, "overlap_param_gather": True, "use_megatron_fsdp": True})
    gather = ParameterGather(
        recipe, TrainableModel(chunks=[], optimizer=None, config=SimpleNamespace(param_sync_func=1))
    )
    assert not gather.by_hooks


class Tensor:
    """Fake tensor, in host memory until it is moved."""

    def __init__(self, calls: tuple[str, ...] = ()) -> None:
        self.calls = calls

    def pin_memory(self) -> Tensor:
        return Tensor((*self.calls, "pinned"))

    def to(self, device: str, *, non_blocking: bool = False) -> Tensor:
        return Tensor((*self.calls, device, "without waiting" if non_blocking else "waiting"))


def test_micro_batches_are_drawn_before_the_step_and_copied_from_pinned_memory_without_waiting() -> None:
    from trainer.engines.megatron.data import Feed

    drawn: list[int] = []

    def micro_batches() -> Iterator[dict[str, Any]]:
        for number in range(9):
            drawn.append(number)
            yield {"tokens": Tensor()}

    feed = Feed(micro_batches(), "cuda:0")
    feed.draw(2)
    assert drawn == [0, 1]
    assert [next(feed)["tokens"].calls for _ in range(2)] == [("pinned", "cuda:0", "without waiting")] * 2
    assert drawn == [0, 1]


def test_on_a_cpu_micro_batches_are_drawn_as_the_step_asks_for_them() -> None:
    from trainer.engines.megatron.data import Feed

    feed = Feed(iter([{"tokens": torch.tensor([7])}]), "cpu")
    feed.draw(1)
    assert int(next(feed)["tokens"]) == 7


class Base:
    """Fake of transformer_engine.pytorch.module.base, 2.7 and later."""

    class UserBufferQuantizationMode:
        NONE, FP8 = "none", "fp8"

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []
        self.destroyed: list[str] = []

    def initialize_ub(self, **given: Any) -> None:
        self.made.append(given)

    def destroy_ub(self) -> None:
        self.destroyed.append("all")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Base:
    engine, pytorch, module = (ModuleType(name) for name in ("transformer_engine", "pytorch", "module"))
    fake = Base()
    vars(module)["base"], vars(pytorch)["module"] = fake, module
    monkeypatch.setitem(sys.modules, "transformer_engine", engine)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", pytorch)
    return fake


def test_tp_overlap_has_its_buffers_for_the_time_of_a_burst(base: Base) -> None:
    from trainer.engines.megatron.user_buffers import user_buffers

    with user_buffers(on_gpus(TP2 | {"tp_comm_overlap": True, "micro_batch_size": 2})):
        assert base.destroyed == []
    with user_buffers(on_gpus(TP2)):
        pass
    assert base.made == [
        {"shape": [64, 64], "tp_size": 2, "ub_cfgs": {}, "bootstrap_backend": "nccl", "quantization_modes": ["none"]}
    ]
    assert len(base.destroyed) == 1


def test_layers_kept_in_bf16_have_buffers_of_their_own(base: Base) -> None:
    from trainer.engines.megatron.user_buffers import user_buffers

    fp8 = {"precision": "fp8_current", "first_last_layers_bf16": True, "tp_comm_overlap": True}
    with user_buffers(on_gpus(TP2 | fp8)):
        assert base.made[0]["quantization_modes"] == ["fp8", "none"]


def test_before_2_7_buffers_know_fp8_by_a_flag(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.engines.megatron.user_buffers import user_buffers

    monkeypatch.delattr(Base, "UserBufferQuantizationMode")
    with user_buffers(on_gpus(TP2 | {"tp_comm_overlap": True})):
        assert base.made[0]["use_fp8"] is False


def whats(recipe: Any, *, transformer_engine: bool, apex: bool = True) -> set[str]:
    from trainer.engines.megatron import production

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(production, "has_apex", lambda: apex)
        return {row.what for row in production.differences(recipe, transformer_engine=transformer_engine)}


def test_the_outcome_says_what_is_not_as_in_production() -> None:
    always = {"load of the experts", "data", "between two steps", "besides training"}
    assert whats(on_gpus(), transformer_engine=True) == always
    assert whats(on_gpus(), transformer_engine=False) == always | {"layers"}
    assert "gradient accumulation of the output layer" in whats(on_gpus(), transformer_engine=True, apex=False)
    local = on_gpus({"transformer_impl": "local"})
    assert "fused activation, dropout and rotation" in whats(local, transformer_engine=False)
    assert "load of the experts" not in whats(
        on_gpus({"moe_router_force_load_balancing": True}), transformer_engine=True
    )


def test_a_recipe_for_cpus_has_no_production_to_differ_from() -> None:
    assert whats(load_recipe("cpu-moe"), transformer_engine=False) == set()


def test_differences_are_written_to_outcome_json() -> None:
    from trainer.engines.megatron.production import differences

    calls = Outcome(unlike_production=differences(on_gpus(), transformer_engine=False))
    assert msgspec.json.decode(msgspec.json.encode(calls), type=Outcome) == calls
    first = msgspec.to_builtins(calls)["unlike_production"][0]
    assert set(first) == {"what", "here", "production", "effect"}
