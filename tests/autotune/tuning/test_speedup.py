"""One speed-up, whose interval holds the noise between bursts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.tuning.speedup import speedup
from policies.noise import MEDIAN_VARIANCE, t_quantile
from policies.trial import Trial
from tests.autotune.report.drawn_study import write_study
from tests.autotune.tuning.fakes import outcome_of
from tests.autotune.tuning.test_judge import trial_of
from trainer.burst import Outcome


def test_every_command_says_the_same_speed_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = str(write_study(tmp_path / "studies" / "s"))

    def printed(*command: str) -> str:
        assert main(list(command)) == 0
        return capfd.readouterr().out

    report, status = (json.loads(printed(name, study, "--json")) for name in ("report", "status"))
    row = json.loads(printed("studies", str(tmp_path / "studies"), "--json"))["studies"][0]
    assert report["speedup"] == status["best"]["speedup"] == row["speedup"]
    assert report["speedup_ci"] == status["best"]["speedup_ci"] == row["speedup_ci"]
    words = f"{report['speedup']:.2f}"
    assert f"{words}× trial {report['base']}" in status["best"]["words"]
    exported = printed("export", study, "--to", "yaml")
    low, high = report["speedup_ci"]
    assert f"{words}x the throughput" in exported
    assert f"(95 % interval {low:.2f} to {high:.2f})" in exported.replace("\n#", "")
    assert report["speedup_since"] == "0.1.0"
    assert "Since version 0.1.0" in (Path(study) / "report.md").read_text()


def test_one_burst_a_side_knows_the_noise_of_the_other_trials_and_is_provisional() -> None:
    base, best = trial_of(outcome_of(134_000)), trial_of(outcome_of(100_000), number=1)
    other = trial_of(outcome_of(120_000), outcome_of(128_000), outcome_of(113_000), number=2)
    alone, beside = (speedup(best, over=base, trials=trials) for trials in ([base, best], [base, best, other]))
    assert alone is not None
    assert beside is not None
    assert beside.provisional
    assert beside.low < 1.25 < 1.34 < 1.45 < beside.high, "bursts of one recipe lie 6 % apart"


def test_the_interval_is_student_s_on_the_pooled_noise() -> None:
    """Two bursts a side, 2 % apart in each: their deviations of 0.014 are pooled with the prior's 0.005."""
    base = trial_of(*(_steady(us) for us in (200_000, 204_000)), bursts=(1, 3))
    best = trial_of(*(_steady(us) for us in (100_000, 102_000)), number=1, bursts=(2, 4))
    found = speedup(best, over=base, trials=[base, best])
    assert found is not None
    apart = 0.0198026 / 2**0.5  # ln 1.02 over √2: the standard deviation of a pair
    pooled = ((0.005**2 + 2 * apart**2) / 3) ** 0.5
    assert found.value == pytest.approx(2.0)
    assert found.high / found.value == pytest.approx(2.718281828 ** (t_quantile(2, 0.975) * pooled), rel=1e-4)
    assert not found.provisional
    assert MEDIAN_VARIANCE[2] == 1.0


def _steady(step_us: float) -> Outcome:
    return outcome_of(step_us, spread=0.0)


def test_a_trial_over_itself_is_exactly_one() -> None:
    base: Trial = trial_of(outcome_of(100_000))
    found = speedup(base, over=base, trials=[base])
    assert found is not None
    assert (found.low, found.value, found.high) == (1.0, 1.0, 1.0)
