"""The user's argument list as a burst runs it, and the ranks it traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policies.drawn import cpu_recipe
from trainer.engines.command.traced import MAX_TRACES, traced_ranks
from trainer.frameworks import framework_of
from trainer.frameworks.bounds import bounds_of
from trainer.frameworks.burst import BurstRequest
from trainer.recipe import Recipe, load_recipe

MINE = ["python", "-u", "pretrain_gpt.py", "--data-path", "/data/a b", "--save", "/ckpt", "--lr", "-1e-4", "--my-flag"]


def argv(recipe: Recipe, folder: Path = Path("/burst/trainer"), **trainer: Any) -> list[str]:
    data = recipe.model_dump(mode="json")
    data["burst"] |= {"engine": "command", "machine": None}
    data["trainer"] = {"command": MINE, "env": {}, **trainer}
    mine = Recipe.model_validate(data)
    assert mine.trainer is not None
    request = BurstRequest(
        recipe=mine,
        trainer=mine.trainer,
        bounds=bounds_of(mine),
        ranks=traced_ranks(mine),
        folder=folder,
    )
    return list(framework_of(mine).burst_argv(request))


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_what_is_the_users_own_stays_as_it_is_and_nothing_is_saved() -> None:
    words = argv(cpu_recipe())
    assert words[:5] == MINE[:5]
    assert "--my-flag" in words
    assert after(words, "--lr") == "-1e-4"
    assert "--save" not in words
    assert "/ckpt" not in words


def test_a_switch_of_the_users_command_is_off_when_the_recipe_says_so() -> None:
    mine = [*MINE, "--use-distributed-optimizer", "--micro-batch-size", "64"]
    words = argv(cpu_recipe().replace({"use_distributed_optimizer": False}), command=mine)
    assert "--use-distributed-optimizer" not in words
    assert words.count("--micro-batch-size") == 1
    on = argv(cpu_recipe().replace({"use_distributed_optimizer": True}))
    assert on.count("--use-distributed-optimizer") == 1


def test_a_switch_that_the_recipe_does_not_mention_stays() -> None:
    assert "--moe-router-padding-for-quantization" in argv(
        cpu_recipe(), command=[*MINE, "--moe-router-padding-for-quantization"]
    )


def test_a_burst_is_bounded_by_its_exit_not_by_its_schedule() -> None:
    recipe = cpu_recipe()
    words = argv(recipe, command=[*MINE, "--train-iters", "5000", "--exit-interval", "77"])
    assert after(words, "--train-iters") == "5000"
    assert words.count("--exit-interval") == 1
    assert int(after(words, "--exit-interval")) == bounds_of(recipe).last


def test_data_are_the_users_unless_mock_data_are_asked_for() -> None:
    assert "--data-path" in argv(cpu_recipe())
    mocked = argv(cpu_recipe(), mock_data=True)
    assert "--data-path" not in mocked
    assert "--mock-data" in mocked


@pytest.mark.parametrize(("trace", "flag"), [("torch", "--use-pytorch-profiler"), ("nsys", "--profile")])
def test_the_profiler_gets_steps_and_ranks(trace: str, flag: str) -> None:
    words = argv(cpu_recipe(), trace=trace)
    assert flag in words
    assert after(words, "--profile-ranks") == "0"
    assert ("--tensorboard-dir" in words) == (trace == "torch")
    assert "--profile" not in argv(cpu_recipe(), trace="none")


def test_the_first_and_the_last_stage_and_watched_ranks_are_traced() -> None:
    deep = load_recipe("deepseek-v3-1024xh100")
    ranks = traced_ranks(deep)
    stage = deep.world_size // deep.parallelism.pipeline_model_parallel_size
    assert 0 in ranks
    assert deep.world_size - 1 in ranks
    assert deep.world_size - stage in ranks
    assert len(ranks) <= MAX_TRACES
    assert 17 in traced_ranks(deep, watched=(17,))


BRIDGE = {"kind": "megatron-bridge", "command": ["python", "run.py"]}


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({}, "comm_overlap.overlap_grad_reduce=true"),
        ({"0001": ("run.py", "comm_overlap: null")}, "ddp.overlap_grad_reduce=true"),
        ({"0001": ("run.py", "comm_overlap:\n  tp_comm_overlap: true")}, "comm_overlap.overlap_grad_reduce=true"),
        ({"0001": ("run.py comm_overlap=null", "comm_overlap: null")}, "comm_overlap.overlap_grad_reduce=true"),
        (
            {"0001": ("run.py comm_overlap=null", "comm_overlap: null"), "0002": ("run.py", "comm_overlap: null")},
            "ddp.overlap_grad_reduce=true",
        ),
    ],
)
def test_overlap_is_written_where_the_bridge_recipe_of_earlier_bursts_has_it(
    left: dict[str, tuple[str, str]], said: str, tmp_path: Path
) -> None:
    for burst, (command, configuration) in left.items():
        (tmp_path / burst / "trainer").mkdir(parents=True)
        (tmp_path / burst / "command.txt").write_text(f"python {command}\n")
        (tmp_path / burst / "trainer/configuration.yaml").write_text(f"{configuration}\nmodel:\n  x: 1\n")
    words = argv(cpu_recipe().replace({"overlap_grad_reduce": True}), tmp_path / "0003/trainer", **BRIDGE)
    assert [word for word in words if "overlap_grad_reduce" in word] == [said]
