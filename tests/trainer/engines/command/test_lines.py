"""Checks what is read of real trainers' logs, and that a user's patterns are checked before the first burst."""

from __future__ import annotations

import pytest

from tests.places import TRAINER_LOGS as LOGS
from tests.places import WITHOUT_SHARED
from trainer.engines.command.lines import Reading, number_in, patterns_with, plain, size_in
from trainer.errors import BadInputError
from trainer.frameworks.megatron_lm.log import LOG_PATTERNS

NEEDS_LOGS = pytest.mark.skipif(not LOGS.is_dir(), reason=WITHOUT_SHARED)
# iterations, the first one's loss, iterations with a gradient norm
EXPECTED = {
    "bridge_031_ep2_trace": (4, 6.255138, 4),
    "mlm_0161_ep2_trace": (6, 6.480536, 6),
    "mlm_2026_08_ep2_trace": (6, None, 6),
    "mlm_0161_pp2": (4, None, 4),
    "mlm_0161_oom": (0, None, 0),
    "mlm_0161_bad_argument": (0, None, 0),
}


def read(name: str) -> Reading:
    reading = Reading(patterns=patterns_with(LOG_PATTERNS, {}))
    for line in (LOGS / f"{name}.log").read_text(errors="replace").splitlines():
        reading.feed(line)
    return reading


@NEEDS_LOGS
@pytest.mark.parametrize("name", EXPECTED)
def test_every_iteration_of_a_recorded_log_is_read(name: str) -> None:
    count, first_loss, norms = EXPECTED[name]
    found = read(name).iterations
    assert len(found) == count
    assert sorted(found) == list(range(1, count + 1))
    assert sum(each.grad_norm is not None for each in found.values()) == norms
    assert all(each.ms > 0 for each in found.values())
    if first_loss is not None:
        assert found[1].loss == first_loss


def test_memory_is_read_in_both_spellings() -> None:
    reading = Reading(patterns=patterns_with(LOG_PATTERNS, {}))
    reading.feed("[Rank 3] (after 2 iterations) memory (MB) | allocated: 10.0 | max allocated: 2048.00 | reserved: 9.0")
    reading.feed(
        "[Rank 4] (after 1 iterations) memory (GB) | mem-active-gigabytes: 1 | mem-max-allocated-gigabytes: 4.0 |"
    )
    assert reading.peak_gib == {3: 2.0, 4: pytest.approx(4e9 / 2**30)}


def test_lines_of_two_ranks_that_ran_into_each_other_are_read() -> None:
    reading = Reading(patterns=patterns_with(LOG_PATTERNS, {}))
    reading.feed("WARNING: x [2026-01-01 00:00:00] iteration       7/    10 | elapsed time per iteration (ms): 12.5 |")
    assert reading.iterations[7].ms == 12.5


def test_a_pattern_of_the_users_own_replaces_ours_and_may_tell_seconds() -> None:
    reading = Reading(
        patterns=patterns_with(LOG_PATTERNS, {"iteration": r"step (?P<iteration>\d+) took (?P<s>[\d.]+)s"})
    )
    reading.feed("step 3 took 0.25s")
    assert reading.iterations[3].ms == 250.0


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ({"iteration": r"step (\d+)"}, "has no group (?P<iteration>…) and (?P<ms>…)"),
        ({"loss": "("}, "is not a regular expression"),
        ({"lossy": "x"}, "no such line"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(patterns: dict[str, str], said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        patterns_with(LOG_PATTERNS, patterns)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("12.5", 12.5), ("12,5", 12.5), ("1,234.5", 1234.5), ("1.234,5", 1234.5), ("0,700", 0.7)],
        *[("6,255138E+00", 6.255138), ("-0,70", -0.7), ("7", 7.0)],
        *[("3.5,", 3.5), ("1,234.5.", 1234.5), ("1.234.567", 1234567.0)],
    ],
)
def test_a_number_is_read_as_its_locale_writes_it(text: str, number: float) -> None:
    assert number_in(text) == size_in(text) == pytest.approx(number)


def test_what_a_users_pattern_catches_that_is_no_number_is_passed_over() -> None:
    iteration = r"step (?P<iteration>\S+) took (?P<s>\S+) s"
    reading = Reading(patterns=patterns_with(LOG_PATTERNS, {"iteration": iteration, "loss": r"loss (?P<loss>\S+)"}))
    for line in ("step 1 took . s", "step one took 2.0 s", "step 2 took 3.5, s loss ?", "step 3 took 1.5 s loss 7.0"):
        reading.feed(line)
    assert [(each.number, each.ms, each.loss) for each in reading.iterations.values()] == [
        (2, 3500.0, None),
        (3, 1500.0, 7.0),
    ]


def test_a_time_of_three_digits_behind_a_comma_counts_thousands() -> None:
    assert (size_in("1,234"), size_in("1,234,567"), number_in("1,234")) == (1234.0, 1234567.0, 1.234)


def test_of_lines_that_ran_into_each_other_each_keeps_its_own_figures() -> None:
    step = "iteration {}/ 10 | elapsed time per iteration (ms): {}.5 | lm loss: {}.0E+00 | grad norm: 0.5 |"
    memory = "[Rank {}] (after 1 iterations) memory (MB) | allocated: 10.0 | max allocated: {}.0 |"
    reading = Reading(patterns=patterns_with(LOG_PATTERNS, {}))
    reading.feed(step.format(1, 11, 6) + memory.format(0, 1024) + step.format(2, 12, 5) + memory.format(1, 2048))
    assert [(each.ms, each.loss) for each in reading.iterations.values()] == [(11.5, 6.0), (12.5, 5.0)]
    assert reading.peak_gib == {0: 1.0, 1: 2.0}


def test_links_and_titles_of_a_terminal_are_left_out_of_the_text() -> None:
    assert plain("\x1b]8;;u\x1b\\link\x1b]8;;\x1b\\") == "link"
    assert plain("\x1b]0;title\x07loss: \x1b[1;32m2.5\x1b[0m") == "loss: 2.5"
