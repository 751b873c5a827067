"""The tuner with each sampler of Optuna: it asks one study in every phase, and ends a phase by patience."""

from __future__ import annotations

import optuna
import pytest

from analyzers.diagnosis import Wall
from policies.reason import ReasonKind
from policies.search.sampler import SURROGATE
from policies.trial import PHASES, Phase, Trial
from policies.tuner.tuner import Tuner
from tests.draws import few
from tests.policies.drawn import analysis, cpu_recipe, knowledge, outcome, ran, trial, tuned_by
from trainer.recipe.rules import check
from trainer.recipe.rules.examples import FULL

FROZEN = ("global_batch_size", "seq_length", "tensor_model_parallel_size")
OTHERS = ("tpe", "gp", "random")
AFTER_FIT = tuple(phase for phase in PHASES if phase is not Phase.FIT)


def sampled(sampler: str) -> list[Trial]:
    """Returns a base on CPU ranks and a better recipe, in a study with this sampler."""
    given = tuned_by(cpu_recipe(FULL), sampler=sampler, freeze=FROZEN)
    seen = analysis({Wall.MEMORY: {"recompute": 40_000.0}, Wall.HOST: {"launching": 20_000.0}})
    first = trial(given, given=outcome(given, peak_gib=0.5), seen=seen)
    better = given.replace({"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None})
    rate = outcome(better, tokens_per_s=1200.0, peak_gib=0.7)
    return [first, trial(better, number=1, parent=first, phase=Phase.PROFILE, given=rate, seen=seen)]


@pytest.mark.parametrize("sampler", few([SURROGATE, *OTHERS], 2))
def test_every_sampler_is_asked_in_every_phase_in_one_space_and_repeats_itself(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study in Optuna's sense has every trial and is asked in the same axes from the first decision to the last."""
    axes: list[dict[str, object]] = []
    sizes: list[int] = []
    ask_optuna = optuna.Study.ask

    def asked(study: optuna.Study, distributions: dict[str, optuna.distributions.BaseDistribution]) -> object:
        axes.append(dict(distributions))
        sizes.append(len(study.get_trials()))
        return ask_optuna(study, distributions)

    monkeypatch.setattr(optuna.Study, "ask", asked)
    trials = sampled(sampler)
    given = trials[0].recipe
    known = knowledge(trials[1], trials[0], given=given)
    tuner = Tuner(given, 7)
    for count in (1, 2):
        seen, best = trials[:count], trials[count - 1]
        for phase in AFTER_FIT:
            before = len(axes)
            proposal = tuner.propose(best, phase, seen)
            if sampler != SURROGATE or proposal is not None:
                assert len(axes) == before + 1
                assert sizes[-1] == count
            if proposal is None:
                continue
            if seen == trials:
                assert proposal == Tuner(given, 7).propose(best, phase, list(seen))
                axes.pop()
                sizes.pop()
            assert proposal.phase is phase
            assert proposal.recipe.digest() not in {each.recipe.digest() for each in seen}
            assert not [finding for finding in check(proposal.recipe) if finding.kind == "error"]
            assert all(proposal.recipe.knob(name) == given.knob(name) for name in FROZEN)
            assert proposal.predicted.fits_probability is not None
            assert proposal.predicted.fits_probability >= known.min_fit - 1e-9
            if sampler != SURROGATE:
                assert proposal.reason is not None
                assert proposal.reason.kind is ReasonKind.SAMPLED
                assert proposal.reason.figures["sampler"] == sampler
    assert axes
    assert all(each == axes[0] for each in axes)


def test_another_sampler_ends_a_phase_by_patience_and_says_so() -> None:
    given = tuned_by(cpu_recipe(FULL), sampler="random", patience=2)
    best = trial(given, given=outcome(given, peak_gib=0.5))
    tuner, trials = Tuner(given, 1), [best]
    while (proposal := tuner.propose(best, Phase.SCALE, trials)) and len(trials) < 6:
        trials.append(ran(proposal, len(trials), best, outcome(proposal.recipe, tokens_per_s=1.0)))
    assert len(trials) == 3
    assert tuner.why_stopped(best, trials).kind is ReasonKind.SAMPLER_EXHAUSTED
