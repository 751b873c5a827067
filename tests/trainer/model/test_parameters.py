"""Parameter counts against the totals computed and published for the presets."""

import pytest

from tests.rows import for_every_row
from trainer.model.parameters import layer_parameters, total_parameters, vocabulary
from trainer.recipe.architecture import Architecture
from trainer.recipe.models import presets
from trainer.recipe.tables import read_table

ROWS = {row["model"].lower(): row for row in read_table("models.csv")}
COMPUTED = [name for name, row in ROWS.items() if row["computed_total_B_no_mtp"]]


@pytest.mark.parametrize("name", COMPUTED)
def test_the_total_agrees_with_the_computed_one(name: str) -> None:
    computed = float(ROWS[name]["computed_total_B_no_mtp"])
    assert total_parameters(presets()[name], mtp=False) / 1e9 == pytest.approx(computed, rel=0.01)


PUBLISHED = [name for name, row in ROWS.items() if row["published_total_B"] and not row["computed_total_B_no_mtp"]]


@for_every_row([name for name in PUBLISHED if name != "nemotron-3-nano-30b-a3b"])
def test_the_total_agrees_with_the_published_one(name: str) -> None:
    with_mtp = name == "deepseek-v3.2"  # 685B = 671B and 14B of MTP
    published = float(ROWS[name]["published_total_B"])
    assert total_parameters(presets()[name], mtp=with_mtp) / 1e9 == pytest.approx(published, rel=0.02)


# Published in words: Qwen3-Next as 80B, Nemotron 3 Nano as 31.6B (its name says 30B).
@pytest.mark.parametrize(("name", "billions"), [("qwen3-next-80b-a3b", 80), ("nemotron-3-nano-30b-a3b", 31.6)])
def test_hybrid_models_have_their_published_totals(name: str, billions: float) -> None:
    assert total_parameters(presets()[name], mtp=False) / 1e9 == pytest.approx(billions, rel=0.005)


def test_the_mean_layers_of_a_hybrid_model_add_up_to_it() -> None:
    model = presets()["nemotron-3-nano-30b-a3b"]
    layers = sum(layer_parameters(model, is_moe=is_moe).total for is_moe in model.moe_layers)
    ends = 2 * model.vocab_size * model.hidden_size + model.hidden_size
    assert layers + ends == pytest.approx(total_parameters(model), rel=1e-12)


def test_the_vocabulary_is_padded_where_the_model_says_so() -> None:
    model = presets()["deepseek-v3"].model_copy(update={"make_vocab_size_divisible_by": 128})
    assert [int(vocabulary(model, tp)) for tp in (1, 8)] == [129280, 130048]


def test_deepseek_v3_with_mtp_agrees_with_the_published_total() -> None:
    assert total_parameters(presets()["deepseek-v3"]) / 1e9 == pytest.approx(685, rel=0.01)


def test_a_small_model_is_counted_by_hand() -> None:
    model = Architecture(
        num_layers=1,
        hidden_size=4,
        num_attention_heads=2,
        vocab_size=10,
        num_moe_experts=3,
        moe_ffn_hidden_size=5,
        moe_shared_expert_intermediate_size=6,
    )
    attention, experts, shared, router, norms = 4 * 4 * 4, 3 * 3 * 4 * 5, 3 * 4 * 6, 4 * 3, 2 * 4
    layer = layer_parameters(model, is_moe=True)
    assert (layer.split, layer.experts, layer.whole) == (attention + shared, experts, router + norms)
    assert total_parameters(model) == layer.total + 2 * 10 * 4 + 4


def test_tied_embeddings_are_counted_once() -> None:
    model = presets()["mixtral-8x7b"]
    tied = model.model_copy(update={"untie_embeddings_and_output_weights": False})
    assert total_parameters(model) - total_parameters(tied) == 32000 * 4096
