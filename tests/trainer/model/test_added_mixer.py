"""A mixer is its file and one word: a copy of the packages with both counts and estimates it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.places import ROOT
from trainer.estimate.memory.activations import tensor_table
from trainer.model.mixers import mixers
from trainer.recipe.architecture import _OF_LETTER, _OF_RATIO, Variant

PACKAGES = ("analyzers", "policies", "trainer")
WORD = 'Variant = Literal["gated_delta_net", "lightning_attention", "mamba1", "dsa", "dsv4_hybrid"]'
FILE = '''"""A mean over all tokens before."""

from trainer.model.layer import LayerParameters
from trainer.model.mixer import Mixer, TensorModules

MIXER = Mixer(
    name="running_mean",
    parameters=lambda model: LayerParameters(split=5 * model.hidden_size, whole=model.hidden_size),
    flops=lambda model, seen: 5.0 * model.hidden_size,
    saved=lambda model, sizes: {"mean": 3.0 * model.hidden_size / sizes.tp * sizes.wide_bytes},
    modules={"mean": TensorModules(graph="attn")},
)
'''
USED = """
from trainer.estimate.candidates import one
from trainer.estimate.memory.activations import saved_by_tensor
from trainer.estimate.memory.estimate import estimate_memory
from trainer.estimate.time.estimate import estimate_time
from trainer.model.flops import layer_flops
from trainer.model.parameters import total_parameters
from trainer.recipe.load import recipe_from
from trainer.recipe.source import Source

SIZES = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000}
MIXED = {"experimental_attention_variant": "running_mean", "linear_attention_freq": 2}


def read(model):
    data = {"name": "x", "model": SIZES | model, "cluster": {"gpu": "h100", "gpus_per_node": 1}}
    return recipe_from(Source(name="x", data=data))


plain, mixed = read({}), read(MIXED)
attention = 4 * 256 * 256 + 256
assert total_parameters(plain.architecture) - total_parameters(mixed.architecture) == 2 * (attention - 6 * 256)
first, second, *_ = layer_flops(mixed.architecture, 4096).layers
assert second - first == 6.0 * (4 * 256 * 256 + 2 * 256 * 2048 - 5 * 256)
saved = saved_by_tensor(one(mixed), is_moe=False)
assert float(saved["mean"]) == 0.5 * 3 * 256 * 2
assert estimate_memory(mixed).peak_gib < estimate_memory(plain).peak_gib
assert estimate_time(mixed).step_s < estimate_time(plain).step_s
print("added")
"""


def test_a_mixer_is_a_file_and_one_word(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    schema = tmp_path / "trainer" / "recipe" / "architecture.py"
    text = schema.read_text(encoding="utf-8")
    assert WORD in text
    schema.write_text(text.replace(WORD, WORD[:-1] + ', "running_mean"]'), encoding="utf-8")
    (tmp_path / "trainer" / "model" / "mixers" / "running_mean.py").write_text(FILE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", USED], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": "."}
    )
    assert done.stdout == "added\n", done.stderr


def test_every_mixer_that_a_layer_may_have_is_a_file() -> None:
    by_ratio = "dsv4_hybrid"  # the word of three mixers
    letters = (kind.mixer for kind in _OF_LETTER.values())
    named = {"attention", *_OF_RATIO.values(), *get_args(Variant), *letters} - {by_ratio}
    assert named == set(mixers())


@pytest.mark.parametrize("name", mixers())
def test_a_tensor_belongs_to_one_mixer(name: str) -> None:
    others = {tensor for other, mixer in mixers().items() if other != name for tensor in mixer.modules}
    assert others.isdisjoint(mixers()[name].modules)
    assert set(mixers()[name].modules) <= set(tensor_table())
