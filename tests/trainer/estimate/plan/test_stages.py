"""Generated pipeline layouts: whole, legal and balanced."""

from __future__ import annotations

import pytest

from tests.rows import filled
from trainer.estimate.plan.stages import balanced_layouts, layout_text
from trainer.model.flops import layer_flops
from trainer.recipe.layout import pipeline_stages
from trainer.recipe.models import presets


@pytest.mark.parametrize("model", ["deepseek-v3", "qwen3-235b-a22b", "kimi-k2", "glm-4.5"])
@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 4), (8, 2), (8, 4), (16, 1)])
def test_a_layout_has_every_piece_once_and_every_stage_something(model: str, pp: int, vpp: int) -> None:
    architecture = presets()[model]
    for text in filled(balanced_layouts(architecture, 4096, pp=pp, vpp=vpp)):
        stages = pipeline_stages(text)
        whole = "".join(stages)
        assert len(stages) == pp * vpp
        assert all(stage.strip("E") for stage in stages)
        assert whole == "E" + "t" * architecture.num_layers + "m" * (architecture.mtp_num_layers or 0) + "L"


def test_no_rank_has_much_more_to_do_than_its_share() -> None:
    model = presets()["deepseek-v3"]
    flops = layer_flops(model, 4096)
    layer = max(flops.layers)
    total = model.num_layers * layer + flops.mtp + 2 * flops.head
    for pp, vpp in ((4, 4), (8, 2), (8, 4)):
        stages = pipeline_stages(balanced_layouts(model, 4096, pp=pp, vpp=vpp)[-1])
        work = [s.count("t") * layer + s.count("m") * flops.mtp + s.count("L") * 2 * flops.head for s in stages]
        assert max(sum(work[rank::pp]) for rank in range(pp)) <= total / pp + layer


def test_too_many_stages_have_no_layout() -> None:
    assert balanced_layouts(presets()["deepseek-v3"], 4096, pp=64, vpp=2) == ()


def test_the_text_is_short_and_reads_back_the_same() -> None:
    stages = ["Ettt", *["tt"] * 29, "m", "L"]
    assert layout_text(stages) == "Et*3|(tt|)*29m|L"
    assert pipeline_stages(layout_text(stages)) == stages
