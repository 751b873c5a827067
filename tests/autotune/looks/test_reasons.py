"""Verdicts in words: every kind has its sentence, and the figures in it say what they are of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.looks.reasons import MAX_BAND, SENTENCES, sentence, verdict_text
from autotune.tuning.events import Judged
from policies.reason import Reason, ReasonKind
from policies.trial import Status, Verdict
from tests.autotune.tuning.fakes import outcome_of
from tests.autotune.tuning.test_judge import trial_of


def measure(gain: float, band: float, *, pairs: int = 0) -> dict[str, Any]:
    bursts = {"bursts": max(pairs, 1), "against_bursts": 2, "pairs_agree": True}
    return {"gain": gain, "band": band, "pairs": pairs, **bursts}


def compared(**more: Any) -> dict[str, Any]:
    return {"against": 3, "wall": measure(-0.102, 0.03), "cpu": None, **more}


def test_a_comparison_says_over_which_trial_and_of_which_bursts() -> None:
    first = sentence(Reason(kind=ReasonKind.NO_GAIN, figures=compared()))
    assert first == "no gain: −10.2 % over trial 3 in wall-clock time (first burst against 2, noise ±3.0 %)"
    pairs = compared(wall=measure(0.04, 0.05, pairs=2), cpu=measure(0.01, 0.01, pairs=2))
    said = sentence(Reason(kind=ReasonKind.WITHIN_NOISE, figures=pairs))
    assert "+4.0 % over trial 3 in wall-clock time (2 interleaved pairs, noise ±5.0 %)" in said
    assert said.endswith("+1.0 % in CPU time (noise ±1.0 %)")


def test_noise_beyond_the_bound_is_too_noisy_to_compare() -> None:
    wall = measure(0.1, 202.817)
    said = sentence(Reason(kind=ReasonKind.WITHIN_NOISE, figures=compared(wall=wall)))
    assert "too noisy to compare" in said
    assert "20281" not in said
    shown = sentence(Reason(kind=ReasonKind.WITHIN_NOISE, figures=compared(wall=measure(0.1, MAX_BAND))))
    assert "noise ±100.0 %" in shown


@pytest.mark.parametrize(
    ("probability", "words"), [(0.95, "95 % likely to be a gain"), (0.9999, "more than 99 % likely to be a gain")]
)
def test_a_probability_is_one_of_a_gain(probability: float, words: str) -> None:
    predicted = {"predicted": 0.04, "predicted_low": 0.01, "predicted_high": 0.07}
    together = {"together": 0.03, "together_half_width": 0.02, "probability": probability}
    figures = compared(wall=measure(0.03, 0.05), **predicted, **together)
    said = sentence(Reason(kind=ReasonKind.WITHIN_PREDICTION, figures=figures))
    assert said.endswith(f"together +3.0 % ± 2.0 %, {words}")


def test_the_text_of_a_journal_before_reasons_is_shown_as_it_is() -> None:
    old = replace(trial_of(outcome_of(1000)), verdict=Verdict.REJECTED, verdict_because="no gain: as it was said")
    assert verdict_text(old) == "no gain: as it was said"
    event = Judged(trial=0, status=Status.OK, verdict=Verdict.REJECTED, because="no gain")
    assert (event.reason, event.because) == (None, "no gain")


def test_every_kind_has_its_sentence() -> None:
    assert set(SENTENCES) == set(ReasonKind)
