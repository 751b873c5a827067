"""CUDA graphs are driven as Megatron-LM's training loop does it: tested with fakes, not run on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.engines.gpu_recipes import LOCAL_GRAPHS, TE_GRAPHS, WHOLE_ITERATION, on_gpus

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.megatron

OVERLAP = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}


class Chunk:
    """Fake model chunk with DDP's switch of its hooks."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def enable_forward_pre_hook(self) -> None:
        self.log.append("hooks on")

    def disable_forward_pre_hook(self, *, param_sync: bool) -> None:
        assert not param_sync
        self.log.append("hooks off")


class Helper:
    """Fake of TECudaGraphHelper with the methods that the loop calls."""

    log: list[str]

    def __init__(self, **given: Any) -> None:
        assert set(given) == {"model", "config", "seq_length", "micro_batch_size", "optimizers"}
        self._created = False

    def graphs_created(self) -> bool:
        return self._created

    def create_cudagraphs(self) -> None:
        self.log.append("capture")
        self._created = True

    def cuda_graph_set_manual_hooks(self) -> None:
        self.log.append("manual hooks")

    def delete_cuda_graphs(self) -> None:
        self.log.append("delete")
        self._created = False


def steps_of(monkeypatch: pytest.MonkeyPatch, steps: int, **knobs: Any) -> list[str]:
    """Returns the calls of graphs and hooks around `steps` steps."""
    from megatron.core.transformer import cuda_graphs

    from trainer.engines.megatron.graphs import graphs_of
    from trainer.engines.megatron.model import TrainableModel
    from trainer.engines.megatron.parameter_gather import ParameterGather

    log: list[str] = []
    Helper.log = log
    monkeypatch.setattr(cuda_graphs, "TECudaGraphHelper", Helper)
    recipe = on_gpus(TE_GRAPHS | knobs)
    config = SimpleNamespace(param_sync_func="sync")
    model = TrainableModel(chunks=[Chunk(log)], optimizer=None, config=config)
    gather = ParameterGather(recipe, model)
    gather.hold()
    graphs = graphs_of(recipe, model, gather)
    for taken in range(steps):
        graphs.before_step(taken)
        log.append(f"step {taken}")
        gather.release()
        graphs.after_step(taken + 1)
    graphs.delete()
    return log


def test_layers_are_captured_after_the_warm_up_with_hooks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, 4, cuda_graph_warmup_steps=2, **OVERLAP) == [
        "hooks off", "step 0", "hooks on", "step 1",
        "hooks off", "capture", "hooks on", "manual hooks", "step 2", "step 3", "delete",
    ]  # fmt: skip


def test_without_warm_up_layers_are_captured_before_the_hooks_come(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, 2, cuda_graph_warmup_steps=0, **OVERLAP) == [
        "hooks off", "capture", "step 0", "hooks on", "manual hooks", "step 1", "delete",
    ]  # fmt: skip


def test_without_hooks_there_is_only_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, 3, cuda_graph_warmup_steps=1) == ["step 0", "capture", "step 1", "step 2", "delete"]


@pytest.mark.parametrize(
    ("knobs", "unmeasured"),
    [({}, 0), (LOCAL_GRAPHS, 2), (WHOLE_ITERATION, 5), (WHOLE_ITERATION | {"cuda_graph_warmup_steps": 0}, 2)],
)
def test_steps_are_measured_once_graphs_are_captured(knobs: dict[str, Any], unmeasured: int) -> None:
    from trainer.engines.megatron.graphs import graphs_of

    assert graphs_of(on_gpus(knobs), None, None).settled_after == unmeasured  # pyrefly: ignore[bad-argument-type]


def test_megatrons_own_wrapper_takes_our_micro_batches_for_the_whole_iteration() -> None:
    from trainer.engines.megatron.cpu import megatron_on_cpu
    from trainer.engines.megatron.data import Feed
    from trainer.engines.megatron.forget import forget_the_burst
    from trainer.engines.megatron.graphs import graphs_of

    drawn = iter({"tokens": torch.full((1, 4), number)} for number in range(4))
    seen: list[int] = []

    def schedule(**given: Any) -> str:
        (feed,) = given["data_iterator"]
        seen.extend(int(next(feed)["tokens"][0, 0]) for _ in range(given["num_microbatches"]))
        return "losses"

    with megatron_on_cpu():
        model: Any = SimpleNamespace(config=SimpleNamespace(cuda_graph_use_single_mempool=True))
        around = graphs_of(on_gpus(WHOLE_ITERATION), model, None).around(schedule)  # pyrefly: ignore[bad-argument-type]
        for _ in range(2):  # two of the three calls before the capture
            returned = around(
                model=object(), data_iterator=Feed(drawn, "cpu"), num_microbatches=2, seq_length=4, forward_only=False
            )
            assert returned == "losses"
        forget_the_burst()
    assert seen == [0, 1, 2, 3]


def test_the_optimizer_step_is_graphed_where_asked_and_that_step_is_not_measured() -> None:
    wrapper = pytest.importorskip("megatron.core.optimizer.optimizer_cuda_graph", reason="needs Megatron-Core 0.17")
    from trainer.engines.megatron.graphs import graphed_after, optimizer_step

    config = SimpleNamespace(cuda_graph_use_single_mempool=True)
    model: Any = SimpleNamespace(config=config, optimizer=SimpleNamespace(step=lambda: "stepped"))
    asked, plain = on_gpus({"optimizer_cuda_graph": True, "cuda_graph_warmup_steps": 4}), on_gpus()
    graph = optimizer_step(asked, model)
    assert isinstance(graph, wrapper.OptimizerCudaGraphWrapper)
    assert graph.cuda_graph_warmup_steps == 4
    assert graphed_after(asked) == 6
    assert optimizer_step(plain, model)() == "stepped"
    assert graphed_after(plain) == 0


def test_a_step_whose_experts_overflow_is_run_again_around_the_graph_of_the_iteration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stash = pytest.importorskip(
        "megatron.core.transformer.moe.paged_stash", reason="needs Megatron-Core 0.18", exc_type=ImportError
    )
    from trainer.engines.megatron.paged_stash import rerun_when_full

    monkeypatch.setattr(stash, "PagedStashRunner", lambda *given: given)
    model: Any = SimpleNamespace(config="config", chunks=["chunk"], optimizer="optimizer")
    asked = on_gpus({"moe_expert_rank_capacity_factor": 1.1, "reuse_grad_buf_for_mxfp8_param_ag": True})
    given: Any = rerun_when_full(asked, model, "schedule")  # pyrefly: ignore[bad-argument-type]
    assert given == ("config", False, ["chunk"], "optimizer", "schedule")
    plain: Any = rerun_when_full(on_gpus(), model, "schedule")  # pyrefly: ignore[bad-argument-type]
    assert plain == "schedule"


def test_either_spelling_of_the_whole_iteration_is_what_the_installed_megatron_calls_it() -> None:
    from trainer.engines.megatron.config import build_configs
    from trainer.engines.megatron.train import acting_knobs

    newer = {"cuda_graph_impl": "full_iteration", "use_te_rng_tracker": True}
    for knobs in (WHOLE_ITERATION, newer):
        recipe = on_gpus(knobs)
        configs = build_configs(recipe, transformer_engine=False)
        acting = acting_knobs(recipe, configs)
        assert configs.transformer.cuda_graph_impl in ("local", "full_iteration")
        assert acting["cuda_graph_impl"] == knobs["cuda_graph_impl"]


def test_graphs_of_transformer_engine_have_its_generators_whatever_is_asked() -> None:
    from trainer.engines.megatron.graphs import tracks_randomness_in_transformer_engine

    graphed, plain = on_gpus(TE_GRAPHS | {"use_te_rng_tracker": False}), on_gpus()
    assert tracks_randomness_in_transformer_engine(graphed, transformer_engine=True)
    assert not tracks_randomness_in_transformer_engine(graphed, transformer_engine=False)
    assert not tracks_randomness_in_transformer_engine(plain, transformer_engine=True)


class Optimizer:
    """Fake of a distributed optimizer in a chain."""

    def __init__(self) -> None:
        self.filled: list[str] = []

    def _copy_main_params_to_param_buffer(self) -> None:
        self.filled.append("copied")


def test_mxfp8_parameters_go_to_the_buffer_they_share_with_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core.optimizer import distrib_optimizer

    from trainer.engines.megatron.model import TrainableModel
    from trainer.engines.megatron.parameter_gather import ParameterGather

    monkeypatch.setattr(distrib_optimizer, "DistributedOptimizer", Optimizer)
    shared = {"precision": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True}
    dense, other = Optimizer(), object()
    config: Any = SimpleNamespace(param_sync_func="sync")
    chain = SimpleNamespace(chained_optimizers=[dense, other])
    model = TrainableModel(chunks=[Chunk([])], optimizer=chain, config=config)
    gather = ParameterGather(on_gpus(OVERLAP | shared), model)
    gather.hold()
    seen = [config.param_sync_func]
    gather.fill_buffer()
    assert dense.filled == []  # nothing would take them out again in the first step
    gather.release()
    gather.fill_buffer()
    assert [*seen, config.param_sync_func] == [None, "sync"]
    assert len(dense.filled) == 1
