"""The bytes that FP8 and FP4 recipes move to quantize: what their documentation says they read and write."""

import pytest

from tests.trainer.estimate.time.test_time import recipe_of
from trainer.estimate.candidates import one
from trainer.estimate.time.quantization import quantized_bytes
from trainer.recipe.knobs import KNOBS
from trainer.recipe.tables import read_table


def bytes_of(gpu: str, precision: str) -> float:
    return float(quantized_bytes(one(recipe_of(gpu, 8, "qwen3-30b-a3b", precision=precision))))


@pytest.mark.parametrize(
    ("gpu", "precision", "moved"),
    [
        ("h100", "fp8_delayed", 2 + 1 + 1),  # its products need the transpose too
        ("h100", "fp8_current", 2 + 2 + 1 + 1),
        ("gb200", "fp8_delayed", 2 + 1),
        ("gb200", "fp8_current", 2 + 2 + 1),
        ("gb200", "mxfp8", 2 + 2 * (1 + 1 / 32)),
        ("gb200", "nvfp4", 2 + 2 + 2 * (1 / 2 + 1 / 16)),
        ("h100", "bf16", 0),
    ],
)
def test_a_recipe_moves_what_it_reads_and_writes(gpu: str, precision: str, moved: float) -> None:
    assert bytes_of(gpu, precision) == pytest.approx(moved)


def test_every_quantized_precision_has_its_bytes() -> None:
    rows = {row["precision"] for row in read_table("quantization.csv", package="trainer.estimate.time")}
    assert rows == {name for name in KNOBS["precision"].domain.words if "fp8" in name or "fp4" in name}


def test_a_tensor_that_is_read_once_more_takes_longer_to_quantize() -> None:
    assert bytes_of("h100", "fp8_current") == 1.5 * bytes_of("h100", "fp8_delayed")
