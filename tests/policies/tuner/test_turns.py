"""Checks whose turn it is: gains that bursts can show, then published settings and hidden gains by what they bring."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from policies.candidates.candidate import Candidate, PredictionSource, Published
from policies.candidates.effects import effect_of
from policies.trial import PHASES, Proposal
from policies.tuner.decision import Decision
from policies.tuner.tuner import Tuner
from policies.tuner.turns import in_turn, is_hidden
from tests.policies.drawn import gpu_recipe, outcome, trial
from trainer.recipe import Recipe
from trainer.recipe.knobs import KNOBS

NOISE = 0.03  # half the range of repeated bursts' throughput, relative to its median
SETTING = "moe_hybridep_num_sms"


def candidate(recipe: Recipe, gain: float, deviation: float, score: float, source: PredictionSource) -> Candidate:
    return Candidate(
        recipe=recipe,
        source=source,
        log_step=-gain,
        deviation=deviation,
        noise=0.0,
        log_gain=gain,
        fits_probability=1.0,
        expected_improvement=max(score, 0.002),
        score=score,
    )


def layout(gain: float, deviation: float, score: float, *, size: int = 2) -> Candidate:
    return candidate(gpu_recipe({"micro_batch_size": size}), gain, deviation, score, PredictionSource.SURROGATE)


def setting(score: float) -> Candidate:
    recipe = gpu_recipe({"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep", SETTING: 24})
    effect = effect_of(recipe, SETTING, 24)
    published = Published(knob=KNOBS[SETTING], effect=effect, bound=math.inf)
    found = candidate(recipe, effect.gain, effect.spread, score, PredictionSource.PUBLISHED)
    return replace(found, published=published)


def claim(score: float) -> Candidate:
    return candidate(gpu_recipe({"manual_gc": True}), 0.05, 0.0, score, PredictionSource.TRACE)


HIDDEN, SHOWN = layout(-0.001, 0.005, 0.0015), layout(0.0, 0.03, 0.003, size=4)


def test_a_gain_is_hidden_where_its_best_end_is_within_the_noise_and_little_is_expected() -> None:
    assert is_hidden(HIDDEN, noise=NOISE)
    assert not is_hidden(HIDDEN, noise=0.002)
    assert not is_hidden(SHOWN, noise=NOISE)
    assert not is_hidden(layout(0.02, 0.002, 0.02), noise=NOISE)
    assert not is_hidden(setting(0.1), noise=NOISE)


@pytest.mark.parametrize(
    ("worth", "first"),
    [
        ([HIDDEN, setting(0.002)], [setting(0.002)]),
        ([HIDDEN, setting(0.001)], [HIDDEN]),
        ([HIDDEN, SHOWN], [SHOWN]),
        ([layout(0.0, 0.01, 0.02), SHOWN], [SHOWN]),
        ([SHOWN, setting(0.002)], [SHOWN]),
        ([SHOWN, setting(0.004)], [SHOWN, setting(0.004)]),
        ([HIDDEN, claim(0.004), setting(0.002)], [claim(0.004), setting(0.002)]),
        ([claim(0.001), setting(0.002)], [setting(0.002)]),
        ([], []),
    ],
)
def test_what_bursts_can_show_comes_first_then_what_is_expected_to_bring_more(
    worth: list[Candidate], first: list[Candidate]
) -> None:
    assert {each.recipe.digest() for each in in_turn(worth, noise=NOISE)} == {each.recipe.digest() for each in first}


@pytest.mark.parametrize(
    ("ranked", "moved"),
    [
        ([HIDDEN, setting(0.002)], SETTING),
        ([HIDDEN, setting(0.001)], "micro_batch_size"),
        ([SHOWN, setting(0.004)], "micro_batch_size"),
    ],
)
def test_a_hidden_layout_waits_for_a_setting_with_a_better_prospect(
    ranked: list[Candidate], moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decision, "ranked", property(lambda self: ranked))
    given = trial(gpu_recipe(), given=outcome(gpu_recipe(), peak_gib=30.0))
    asked = (Tuner(gpu_recipe(), 1).propose(given, phase, [given]) for phase in PHASES)
    first: Proposal = next(proposal for proposal in asked if proposal is not None)
    assert moved in given.recipe.diff(first.recipe)
