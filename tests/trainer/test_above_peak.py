"""Throughput above the GPU's peak is said to be wrong, reported or measured; how a log's throughput is read."""

from __future__ import annotations

from trainer.above_peak import above_peak
from trainer.engines.megatron.engine import outcome_of
from trainer.frameworks.megatron_lm.log import logged_tflops
from trainer.rank_report import RankReport
from trainer.recipe import Recipe

LINE = (
    "iteration {i}/ 9 | elapsed time per iteration (ms): 90.0 | throughput per GPU (TFLOP/s/GPU): {tflops} | lm loss: 1"
)


def on(gpu: str, precision: str = "bf16") -> Recipe:
    training = {"precision": precision, "global_batch_size": 16}
    document = {"name": "r", "model": "qwen3-30b-a3b", "cluster": {"gpu": gpu, "nodes": 2}, "training": training}
    return Recipe.model_validate(document)


def test_a_figure_above_the_peak_of_the_precision_is_said_to_be_wrong() -> None:
    (said,) = above_peak(on("h200"), counted=412.0, reported=1937.0)
    assert said.startswith("the trainer reports 1,937 TFLOP/s per GPU, and the dense peak of h200 in bf16 is 989")
    assert above_peak(on("h200", "fp8_blockwise"), counted=1500.0, reported=1937.0) == []
    assert above_peak(on("h200", "fp32"), counted=5000.0) == []


def test_a_burst_whose_steps_are_too_short_for_its_work_warns() -> None:
    for step_us, warned in ((1_000.0, True), (10_000_000.0, False)):
        outcome = outcome_of(on("h200"), [RankReport(rank=0, step_us=[step_us])], None, warm=False)
        assert any("the measured step time means" in text for text in outcome.warnings) == warned


def test_the_throughput_of_a_log_is_its_median() -> None:
    log = "\n".join(LINE.format(i=i, tflops=tflops) for i, tflops in enumerate(("0.0", "1800.5", "1937.0", "1937.0")))
    assert logged_tflops(log) == 1937.0
    assert logged_tflops(LINE.format(i=1, tflops="412,5")) is None
    assert logged_tflops("") is None
