"""The judge: identical recipes are inconclusive, a real gain is accepted, and every verdict says why."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.looks.reasons import sentence
from autotune.tuning.judge import Judgement, judge
from autotune.tuning.loop import base_proposal
from autotune.tuning.speedup import speedup, throughput_ratio
from policies.noise import Noise
from policies.reason import ReasonKind
from policies.trial import Prediction, Status, Trial, Verdict
from tests.autotune.tuning.fakes import base_recipe, outcome_of
from tests.policies.drawn import gpu_recipe
from trainer.burst import BurstPhase, Failure, FailureKind, Outcome
from trainer.recipe import Recipe

BASE = base_recipe()


def trial_of(*outcomes: Outcome, number: int = 0, bursts: tuple[int, ...] = (), recipe: Recipe = BASE) -> Trial:
    return Trial(
        number=number,
        proposal=base_proposal(recipe),
        changes={},
        bursts=bursts or tuple(range(1, len(outcomes) + 1)),
        outcomes=outcomes,
        status=Status.OK if outcomes[0].ok else Status.FAILED,
    )


class Machine:
    """Bursts of one recipe on a machine where whole bursts drift by `drift` and steps by `jitter` (relative)."""

    def __init__(self, seed: int, *, drift: float, jitter: float) -> None:
        self.rng = random.Random(seed)
        self.drift, self.jitter = drift, jitter

    def burst(self, speed: float = 1.0) -> Outcome:
        level = 100_000 / speed * math.exp(self.rng.gauss(0, self.drift))
        steps = [level * math.exp(abs(self.rng.gauss(0, self.jitter))) for _ in range(8)]
        cpu = [180_000 / speed * math.exp(self.rng.gauss(0, 0.01)) for _ in range(8)]
        return Outcome(step_us=steps, cpu_us=cpu, tokens_per_step=2048, ranks=2)

    def verdict(self, speed: float) -> tuple[Judgement, int]:
        """Returns the judgement of a candidate after all repeats that the judge asks for, and its number of bursts."""
        best = trial_of(self.burst(), self.burst())
        candidate = trial_of(self.burst(speed), number=1, bursts=(3,))
        while (said := judge(candidate, against=best, trials=[best, candidate])).again:
            last = candidate.bursts[-1]
            best = trial_of(*best.outcomes, self.burst(), bursts=(*best.bursts, last + 1))
            candidate = trial_of(*candidate.outcomes, self.burst(speed), number=1, bursts=(*candidate.bursts, last + 2))
        return said, len(candidate.bursts)


@pytest.mark.parametrize(("drift", "jitter"), [(0.003, 0.01), (0.01, 0.01), (0.02, 0.05), (0.05, 0.1), (0.1, 0.2)])
def test_two_identical_recipes_are_almost_never_distinguished(drift: float, jitter: float) -> None:
    verdicts = [Machine(seed, drift=drift, jitter=jitter).verdict(1.0)[0].verdict for seed in range(500)]
    assert verdicts.count(Verdict.ACCEPTED) <= 15  # 3 %


def test_a_gain_of_ten_per_cent_is_seen_through_two_per_cent_of_noise() -> None:
    found = [Machine(seed, drift=0.02, jitter=0.05).verdict(1.1) for seed in range(200)]
    assert sum(said.verdict is Verdict.ACCEPTED for said, _ in found) >= 190
    assert sum(bursts for _, bursts in found) / len(found) < 2.5, "most need at most one pair of repeats"


def test_a_large_gain_costs_one_burst_on_a_quiet_machine() -> None:
    said, bursts = Machine(1, drift=0.005, jitter=0.01).verdict(1.5)
    assert said.verdict is Verdict.ACCEPTED
    assert bursts == 1


@given(seed=st.integers(0, 10_000), slowdown=st.floats(1.0, 3.0), drift=st.floats(0.0, 0.1))
@settings(max_examples=25)
def test_a_slower_recipe_is_not_accepted_for_the_lower_median_it_does_not_have(
    seed: int, slowdown: float, drift: float
) -> None:
    machine = Machine(seed, drift=drift, jitter=0.01)
    best = trial_of(machine.burst(), machine.burst())
    candidate = trial_of(outcome_of(150_000 * slowdown), number=1, bursts=(3,))
    assert judge(candidate, against=best, trials=[best, candidate]).verdict is not Verdict.ACCEPTED


def test_wall_time_decides_and_the_verdict_says_so() -> None:
    best = trial_of(outcome_of(100_000), outcome_of(100_100))
    faster = trial_of(outcome_of(70_000), number=1, bursts=(3,))
    said = judge(faster, against=best, trials=[best, faster])
    assert said.verdict is Verdict.ACCEPTED
    assert said.reason.kind is ReasonKind.FAR_BEYOND_NOISE
    assert sentence(said.reason).startswith("decided by wall-clock time, far beyond the noise: +4")


def test_on_a_busy_machine_cpu_time_may_decide_and_the_verdict_says_so() -> None:
    """Wall-clock time of bursts is scattered by neighbours; CPU time of the ranks is not, and shows 20 %."""

    def busy(wall: float, cpu: float) -> Outcome:
        return outcome_of(wall, cpu_us=[cpu] * 8)

    best = trial_of(busy(100_000, 1000), busy(160_000, 1001), busy(130_000, 1002), bursts=(1, 2, 4))
    candidate = trial_of(busy(99_000, 800), busy(95_000, 801), number=1, bursts=(3, 5))
    said = judge(candidate, against=best, trials=[best, candidate])
    assert said.verdict is Verdict.ACCEPTED
    assert said.reason.kind is ReasonKind.CPU_TIME


def test_a_predicted_gain_that_cpu_time_does_not_show_stays_open_on_cpus() -> None:
    """The best was measured while a neighbour was busy: the gain of wall-clock time is the neighbour's."""
    best = trial_of(outcome_of(200_000, cpu_us=[1000.0] * 8), outcome_of(120_000, cpu_us=[1002.0] * 8))
    predicted = Prediction(gain=0.1, gain_low=0.02, gain_high=0.2)

    def verdict(cpu: float) -> Verdict:
        candidate = trial_of(outcome_of(110_000, cpu_us=[cpu] * 8), number=1, bursts=(3,))
        proposal = replace(candidate.proposal, predicted=predicted, parent=best.number)
        candidate = replace(candidate, proposal=proposal)
        return judge(candidate, against=best, trials=[best, candidate]).verdict

    assert verdict(950.0) is Verdict.ACCEPTED
    assert verdict(1010.0) is Verdict.INCONCLUSIVE


def test_a_prediction_that_the_measurement_contradicts_does_not_support_it() -> None:
    """+60 % was predicted within ten percent, +2 % was measured: the two together would say +30 % and mean nothing."""
    best = trial_of(outcome_of(100_000), outcome_of(104_000), bursts=(1, 2))
    candidate = trial_of(outcome_of(100_000), number=1, bursts=(3,))

    def said(predicted: Prediction) -> Judgement:
        proposal = replace(candidate.proposal, predicted=predicted, parent=best.number)
        return judge(replace(candidate, proposal=proposal), against=best, trials=[best, candidate])

    near = said(Prediction(gain=0.04, gain_low=0.03, gain_high=0.05))
    far = said(Prediction(gain=0.6, gain_low=0.5, gain_high=0.7))
    assert near.verdict is Verdict.ACCEPTED
    assert near.reason.kind is ReasonKind.WITHIN_PREDICTION
    assert far.verdict is Verdict.INCONCLUSIVE
    assert "together" not in far.reason.figures


def test_what_was_only_published_must_be_likelier_than_what_was_estimated() -> None:
    best = trial_of(outcome_of(100_000), outcome_of(100_400), bursts=(1, 2))
    candidate = trial_of(outcome_of(99_500), number=1, bursts=(3,))

    def verdict(*, published: bool) -> Verdict:
        predicted = Prediction(gain=0.004, gain_low=-0.03, gain_high=0.04, published=published)
        proposal = replace(candidate.proposal, recipe=gpu_recipe(), predicted=predicted, parent=best.number)
        return judge(replace(candidate, proposal=proposal), against=best, trials=[best, candidate]).verdict

    assert verdict(published=False) is Verdict.ACCEPTED
    assert verdict(published=True) is Verdict.INCONCLUSIVE


def test_the_steadier_measure_decides_where_noise_turns_a_pair_of_wall_times() -> None:
    """Judges three pairs by CPU time: wall time gains 29.9 % ± 119 % and loses in one pair, CPU time 36.8 % ± 20 %."""
    walls = ((100_000, 60_000), (150_000, 160_000), (300_000, 205_000))
    pairs = [
        (outcome_of(there, cpu_us=[1000.0 + 60 * at] * 8), outcome_of(here, cpu_us=[730.0 + 40 * at] * 8))
        for at, (there, here) in enumerate(walls)
    ]
    best = trial_of(*(there for there, _ in pairs), bursts=(1, 3, 5))
    candidate = trial_of(*(here for _, here in pairs), number=1, bursts=(2, 4, 6))
    said = judge(candidate, against=best, trials=[best, candidate])
    assert said.verdict is Verdict.ACCEPTED, said.reason
    assert said.reason.kind is ReasonKind.CPU_TIME


def test_cpu_time_decides_nothing_where_wall_time_is_longer_on_average() -> None:
    best = trial_of(*(outcome_of(us, cpu_us=[1000.0] * 8) for us in (100_000, 150_000)), bursts=(1, 3))
    slower = trial_of(*(outcome_of(us, cpu_us=[700.0] * 8) for us in (90_000, 190_000)), number=1, bursts=(2, 4))
    assert judge(slower, against=best, trials=[best, slower]).verdict is not Verdict.ACCEPTED


def test_less_cpu_time_alone_is_no_gain() -> None:
    """Fewer threads take less CPU time and longer: wall-clock time has the last word."""
    best = trial_of(outcome_of(100_000, cpu_us=[2000.0] * 8), outcome_of(100_100, cpu_us=[2001.0] * 8))
    lazy = trial_of(outcome_of(120_000, cpu_us=[1000.0] * 8), number=1, bursts=(3,))
    assert judge(lazy, against=best, trials=[best, lazy]).verdict is Verdict.REJECTED


def test_a_gain_that_turns_in_a_pair_of_repeats_is_not_accepted() -> None:
    best = trial_of(outcome_of(100_000), outcome_of(100_000), outcome_of(80_000), bursts=(1, 2, 4))
    turning = trial_of(outcome_of(60_000), outcome_of(81_000), number=1, bursts=(3, 5))
    assert judge(turning, against=best, trials=[best, turning]).verdict is not Verdict.ACCEPTED


def test_a_failure_is_rejected_with_what_where_and_when() -> None:
    best = trial_of(outcome_of(100_000), outcome_of(100_100))
    failure = Failure(kind=FailureKind.OOM, phase=BurstPhase.BACKWARD, rank=1, evidence="std::bad_alloc")
    dead = trial_of(Outcome(failure=failure), number=1, bursts=(3,))
    said = judge(dead, against=best, trials=[best, dead])
    assert said.verdict is Verdict.REJECTED
    assert sentence(said.reason) == "oom in backward on rank 1: std::bad_alloc"


@pytest.mark.parametrize(
    ("precision", "shift", "agrees"),
    [("fp32", 1e-4, True), ("fp32", 1e-2, False), ("bf16", 1e-2, True), ("bf16", 5e-2, False)],
)
def test_losses_of_equivalent_changes_must_agree_as_their_precision_allows(
    precision: str, shift: float, agrees: bool
) -> None:
    recipe = BASE.replace({"precision": precision})
    best = trial_of(outcome_of(100_000, loss=[7.0, 6.0]), outcome_of(100_100), recipe=recipe)
    moved = recipe.replace({"micro_batch_size": 2})
    losses = [7.0, 6.0 * (1 + shift)]
    candidate = trial_of(outcome_of(50_000, loss=losses), number=1, bursts=(3,), recipe=moved)
    said = judge(candidate, against=best, trials=[best, candidate])
    assert (said.verdict is Verdict.ACCEPTED) is agrees


H100_LOSSES = {  # an H100, Transformer Engine 2.10, 16 experts, bf16: micro batch -> losses
    1: [10.7803, 10.4064, 9.5255, 8.8054, 8.3264, 8.1109, 7.7459, 8.1057, 7.4565],
    4: [10.7803, 10.4810, 9.6005, 8.8399, 8.3509, 8.0736, 7.8442, 7.6507, 8.0415],
    8: [10.7803, 10.4981, 9.6195, 8.8496, 8.3700, 8.1157, 7.7375, 7.6259, 7.5219],
    16: [10.7803, 10.5137, 9.6367, 8.8572, 8.4345, 8.2231, 7.8703, 8.3626, 7.6112],
}


@pytest.mark.parametrize(
    ("losses", "agrees"),
    [
        *((H100_LOSSES[size], True) for size in (4, 8, 16)),
        ([*H100_LOSSES[1][:6], 8.2, 8.3, 8.4], False),  # diverges
        ([*H100_LOSSES[1][:8], 9.5], False),  # rises by a quarter
        ([10.7803, 10.6, *H100_LOSSES[1][1:7], 8.0], False),  # learns too slowly, and rises once
    ],
)
def test_one_spike_of_a_falling_loss_is_not_compared(losses: list[float], agrees: bool) -> None:
    recipe = BASE.replace({"precision": "bf16"})
    best = trial_of(outcome_of(100_000, loss=H100_LOSSES[1]), outcome_of(100_100), recipe=recipe)
    moved = recipe.replace({"micro_batch_size": 2})
    candidate = trial_of(outcome_of(50_000, loss=losses), number=1, bursts=(3,), recipe=moved)
    said = judge(candidate, against=best, trials=[best, candidate])
    assert (said.verdict is Verdict.ACCEPTED) is agrees


def test_another_layout_draws_other_weights_and_only_the_level_is_compared() -> None:
    best = trial_of(outcome_of(100_000, loss=[7.0, 6.9]), outcome_of(100_100))
    other = BASE.replace({"expert_model_parallel_size": 1})
    candidate = trial_of(outcome_of(50_000, loss=[7.2, 7.1]), number=1, bursts=(3,), recipe=other)
    assert judge(candidate, against=best, trials=[best, candidate]).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize(("inject", "agrees"), [(True, False), (False, True)])
def test_another_micro_batch_has_other_weights_where_nothing_puts_the_trainers_generators_back(
    inject: bool, agrees: bool
) -> None:
    """Uses losses of real Megatron-LM 0.16.1 with micro batches 1 and 2, whose JIT warm-up draws random numbers before
    the weights are initialized."""
    data = BASE.replace({"precision": "fp32"}).model_dump(mode="json")
    data["burst"] |= {"engine": "command"}
    recipe = Recipe.model_validate(data | {"trainer": {"command": ["python", "t.py"], "inject": inject}})
    one, two = [6.524540, 6.346156, 5.917779, 5.647150], [6.499970, 6.319513, 5.850909, 5.595668]
    best = trial_of(outcome_of(100_000, loss=one), outcome_of(100_100), recipe=recipe)
    moved = recipe.replace({"micro_batch_size": 2})
    candidate = trial_of(outcome_of(50_000, loss=two), number=1, bursts=(3,), recipe=moved)
    said = judge(candidate, against=best, trials=[best, candidate])
    assert (said.verdict is Verdict.ACCEPTED) is agrees


def test_a_change_of_numerics_need_not_keep_the_losses() -> None:
    best = trial_of(outcome_of(100_000, loss=[7.0, 6.9]), outcome_of(100_100))
    other = BASE.replace({"precision": "bf16"})
    candidate = trial_of(outcome_of(50_000, loss=[9.0, 8.9]), number=1, bursts=(3,), recipe=other)
    assert judge(candidate, against=best, trials=[best, candidate]).verdict is Verdict.ACCEPTED


def test_throughput_not_step_time_is_compared() -> None:
    """Twice the tokens in 1.5 times the time is a gain."""
    best = trial_of(outcome_of(100_000), outcome_of(100_100))
    larger = trial_of(outcome_of(150_000, tokens_per_step=4096), number=1, bursts=(3,))
    assert throughput_ratio(larger, best) == pytest.approx(4 / 3, rel=0.01)


def test_the_speed_up_has_an_interval_that_holds_it_and_is_the_same_every_time() -> None:
    machine = Machine(3, drift=0.02, jitter=0.05)
    base = trial_of(machine.burst(), machine.burst())
    best = trial_of(machine.burst(2.0), machine.burst(2.0), number=1)
    found = speedup(best, over=base, trials=[base, best])
    assert found is not None
    assert found.low < found.value < found.high
    assert 1.6 < found.low < 2.0 < found.high < 2.4
    assert not found.provisional
    assert found == speedup(best, over=base, trials=[base, best])


def test_without_measurements_there_is_no_speed_up() -> None:
    dead = trial_of(Outcome(failure=Failure(kind=FailureKind.OOM, evidence="no")))
    base = trial_of(outcome_of(1000))
    assert speedup(dead, over=base, trials=[base, dead]) is None


def test_repeats_that_agree_narrow_the_noise() -> None:
    scattered = [trial_of(outcome_of(100_000), outcome_of(110_000), outcome_of(95_000))]
    steady = [trial_of(*(outcome_of(100_000 + shift) for shift in range(5)))]
    gains = [Noise(trials=trials).detectable_gain() for trials in (steady, scattered)]
    assert gains[0] < 0.02 < gains[1]


# Student's t as tables print it, by share and degrees of freedom; a number between two rows takes the lower one.
TABLE = {
    0.99: {2: 6.96, 3: 4.54, 4: 3.75, 5: 3.36, 6: 3.14, 8: 2.90, 10: 2.76, 15: 2.60, 30: 2.46},
    0.995: {2: 9.92, 3: 5.84, 4: 4.60, 5: 4.03, 6: 3.71, 8: 3.36, 10: 3.17, 15: 2.95, 30: 2.75},
}


def tabulated_quantile(degrees_of_freedom: int, probability: float) -> float:
    rows = TABLE[probability]
    return rows[max(row for row in rows if row <= max(degrees_of_freedom, 2))]


def test_verdicts_are_those_of_the_printed_table_of_student(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = [(drift, jitter, speed) for drift, jitter in ((0.003, 0.01), (0.02, 0.05)) for speed in (1, 1.03, 1.1)]
    drawn = [(seed, *machine) for machine in machines for seed in range(60)]

    def verdicts() -> list[tuple[Verdict, int]]:
        found = (Machine(seed, drift=drift, jitter=jitter).verdict(speed) for seed, drift, jitter, speed in drawn)
        return [(said.verdict, bursts) for said, bursts in found]

    exact = verdicts()
    monkeypatch.setattr("policies.noise.t_quantile", tabulated_quantile)
    assert verdicts() == exact
    assert {verdict for verdict, _ in exact} == set(Verdict)
