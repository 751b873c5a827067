"""Tests of studies with proxies: what is judged by what, what is measured at full size, and what a resume does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from autotune.cli import main
from autotune.report.document import document_of
from autotune.report.markdown import markdown
from autotune.report.material import material_of
from autotune.report.story import story_of
from autotune.tuning.events import BurstStarted, Event
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events, read_study
from autotune.tuning.lines import NOT_AT_FULL_SIZE, best_in_words, cost_in_words
from autotune.tuning.loop import Adviser, Loop
from autotune.tuning.study_status import study_status
from policies.reason import ReasonKind
from policies.trial import Phase, Prediction, Proposal, Status, Trial, Verdict
from tests.autotune.tuning.fakes import (
    FASTER,
    OOM,
    SLOWER,
    FakeEngine,
    Killed,
    dies_after,
    loop_in,
    measured,
    micro_batches,
)
from trainer.burst import Outcome
from trainer.fidelity import Fidelity, full_size
from trainer.recipe import Recipe, load_recipe

ONE_NODE = load_recipe("cpu-moe").replace({"global_batch_size": 16})
BASE = ONE_NODE.model_copy(update={"cluster": ONE_NODE.cluster.model_copy(update={"nodes": 2, "gpus_per_node": 2})})
SMALL = Fidelity(nodes=1, layers=BASE.architecture.num_layers)
IDEAS = [FASTER, SLOWER]
Rule = Callable[[Recipe], Outcome | float]


@dataclass
class FakeSizing:
    """Sizing that runs every burst as SMALL, and predicts `truth` for a recipe at full size."""

    truth: Callable[[Recipe], float] = micro_batches
    fits: float = 1.0

    def sized(self, proposal: Proposal, trials: Sequence[Trial]) -> Proposal:
        return replace(proposal, fidelity=SMALL)

    def at_full_size(self, trial: Trial, best: Trial | None, trials: Sequence[Trial]) -> Prediction:
        if best is None:
            return Prediction(fits_probability=self.fits)
        gain = self.truth(best.recipe) / self.truth(trial.recipe) - 1
        return Prediction(gain=gain, gain_low=gain - 0.02, gain_high=gain + 0.02, fits_probability=self.fits)

    def choice(self, trials: Sequence[Trial]) -> Trial | None:
        failed = [trial.recipe.digest() for trial in trials if trial.fidelity is None and trial.status is not Status.OK]
        ran = [t for t in trials if t.status is Status.OK and t.recipe.digest() not in failed and self.fits > 0.5]
        return min(ran, key=lambda trial: (self.truth(trial.recipe), trial.fidelity is not None), default=None)


@dataclass
class SizedPolicy:
    """Policy that makes proxies of another policy's proposals."""

    policy: Adviser
    sizing: FakeSizing

    def __getattr__(self, name: str) -> object:
        return getattr(self.policy, name)

    def propose(self, incumbent: Trial, phase: Phase, trials: Sequence[Trial]) -> Proposal | None:
        found = self.policy.propose(incumbent, phase, trials)
        return None if found is None else self.sizing.sized(found, trials)


def study_in(
    folder: Path,
    *,
    nodes: int | None = None,
    rule: Rule = micro_batches,
    sizing: FakeSizing | None = None,
    engine: FakeEngine | None = None,
    budget: int = 20,
    listener: Callable[[Event, History], None] = lambda event, history: None,
) -> Loop:
    sizing = sizing or FakeSizing()
    loop = loop_in(folder, rule=rule, ideas=IDEAS, base=BASE, engine=engine, budget=budget, listener=listener)
    policy = SizedPolicy(loop.policy, sizing)
    return replace(loop, bench=replace(loop.bench, nodes=nodes), sizing=sizing, policy=policy)  # pyrefly: ignore[bad-argument-type]


def sizes(folder: Path) -> list[Fidelity | None]:
    events, _ = read_events(folder / JOURNAL)
    return [event.fidelity for event in events if isinstance(event, BurstStarted)]


def test_proxies_search_and_the_winner_and_the_reference_run_at_full_size(tmp_path: Path) -> None:
    engine = FakeEngine(micro_batches)
    study_in(tmp_path, engine=engine).run()
    history = read_study(tmp_path)
    searched = [size for size in sizes(tmp_path) if size is not None]
    assert len(searched) == 3  # the base, the faster and the slower idea
    assert sizes(tmp_path)[:3] == searched
    assert [burst.recipe.cluster.nodes for burst in engine.ran[:3]] == [1, 1, 1]
    assert {burst.recipe.cluster.nodes for burst in engine.ran[3:]} == {2}
    best, reference = history.best, history.reference
    assert best is not None
    assert reference is not None
    assert (best.fidelity, reference.fidelity) == (None, None)
    assert (best.recipe.knob("micro_batch_size"), reference.recipe.knob("micro_batch_size")) == (4, 1)
    assert best.proposal.reason is not None
    assert best.proposal.reason.kind is ReasonKind.FULL_SIZE
    assert history.fidelities.keys() == {SMALL, full_size(BASE)}
    document = document_of(history)
    assert document.speedup == pytest.approx(4.0, rel=0.05)
    assert document.measured_at_full_size
    assert [(each.full_size, each.bursts) for each in document.sizes] == [(False, 3), (True, len(engine.ran) - 3)]
    assert [entry.fidelity for entry in document.trials[:3]] == [SMALL] * 3
    assert "of them for proxies" in cost_in_words(history)


def test_a_proxy_is_judged_by_what_is_predicted_at_full_size(tmp_path: Path) -> None:
    worse = FakeSizing(truth=lambda recipe: 100_000.0 * recipe.knob("micro_batch_size"))
    study_in(tmp_path, sizing=worse).run()
    history = read_study(tmp_path)
    faster = next(t for t in history.trials if t.recipe.knob("micro_batch_size") == 4)
    assert faster.verdict is Verdict.REJECTED  # although its bursts were four times as fast as the base's
    assert faster.verdict_reason is not None
    assert faster.verdict_reason.kind is ReasonKind.PREDICTED_AT_FULL_SIZE
    assert faster.verdict_reason.figures["wall"]["gain"] == pytest.approx(3.0, rel=0.05)


def test_a_recipe_that_should_not_fit_at_full_size_is_no_best(tmp_path: Path) -> None:
    study_in(tmp_path, sizing=FakeSizing(fits=0.2), budget=3).run()
    history = read_study(tmp_path)
    assert history.best is None
    assert {t.verdict_reason.kind for t in history.trials if t.verdict_reason} == {ReasonKind.NOT_PREDICTED_TO_FIT}


def test_too_few_nodes_leave_the_best_unmeasured_and_every_output_says_so(tmp_path: Path) -> None:
    study_in(tmp_path, nodes=1).run()
    history = read_study(tmp_path)
    assert set(sizes(tmp_path)) == {SMALL}
    document = document_of(history)
    assert not document.measured_at_full_size
    assert NOT_AT_FULL_SIZE in best_in_words(history)
    status = study_status(history, folder="study", now=0.0, held=False)
    assert not status.measured_at_full_size
    assert status.best is not None
    assert NOT_AT_FULL_SIZE in status.best.words
    assert NOT_AT_FULL_SIZE in story_of(history, document).headline
    assert NOT_AT_FULL_SIZE in markdown(material_of(history, document)).splitlines()[0]


def test_a_larger_allocation_goes_on_with_the_runs_at_full_size(tmp_path: Path) -> None:
    study_in(tmp_path, nodes=1).run()
    before = sizes(tmp_path)
    larger = study_in(tmp_path, nodes=2)
    larger.bench.journal._clock = map(float, range(1000, 2000)).__next__  # the fake's own starts at 0 again
    larger.run()
    after = sizes(tmp_path)
    assert after[: len(before)] == before
    assert after[len(before) :]
    assert set(after[len(before) :]) == {None}
    best = read_study(tmp_path).best
    assert best is not None
    assert best.fidelity is None


def test_a_choice_that_fails_at_full_size_makes_way(tmp_path: Path) -> None:
    def only_small(recipe: Recipe) -> Outcome | float:
        fails = recipe.cluster.nodes == 2 and recipe.knob("micro_batch_size") == 4
        return OOM if fails else micro_batches(recipe)

    study_in(tmp_path, rule=only_small).run()
    history = read_study(tmp_path)
    assert history.best is not None
    assert history.best.fidelity is None
    assert history.best.recipe.knob("micro_batch_size") == 1


def test_the_budget_keeps_room_for_the_bursts_at_full_size(tmp_path: Path) -> None:
    study_in(tmp_path, budget=4).run()
    assert sizes(tmp_path) == [SMALL, SMALL, None, None]


@pytest.mark.parametrize("events", [3, 6, 9, 12, 15, 18, 21])
def test_killed_after_any_event_the_study_goes_on_as_it_would_have(tmp_path: Path, events: int) -> None:
    study_in(tmp_path / "whole").run()
    with pytest.raises(Killed):
        study_in(tmp_path / "killed", listener=dies_after(events)).run()
    study_in(tmp_path / "killed").run()
    assert measured(read_study(tmp_path / "killed").trials) == measured(read_study(tmp_path / "whole").trials)


TWO_NODES_OF_TWO = """\
name: target
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, vocab_size: 256, ffn_hidden_size: 128,
        num_moe_experts: 4, moe_router_topk: 2, moe_ffn_hidden_size: 64}
cluster: {gpu: cpu, nodes: 2, gpus_per_node: 2}
training: {seq_length: 64, global_batch_size: 8, micro_batch_size: 1, precision: fp32}
parallelism: {ep: 2}
burst: {warmup_steps: 1, measure_steps: 3, trace_steps: 1}
"""


@pytest.mark.megatron
@pytest.mark.cold
@pytest.mark.usefixtures("light_agent")
@pytest.mark.thorough
def test_two_real_ranks_tune_a_run_of_four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launcher local has one node of the target's two: its ranks run the proxies, and the full run stays unmeasured."""
    monkeypatch.chdir(tmp_path)
    Path("target.yaml").write_text(TWO_NODES_OF_TWO)
    words = ["run", "target.yaml", "--proxy-nodes", "1", "--budget", "2", "--study", "study"]
    assert main(words) == 0
    history = read_study(tmp_path / "study")
    assert sizes(tmp_path / "study") == [Fidelity(nodes=1, layers=4)] * 2
    assert [burst.ranks for burst in history.finished] == [2, 2]
    assert history.best is not None
    assert history.only_proxies
    assert history.best.recipe.world_size == 4
    assert NOT_AT_FULL_SIZE in (tmp_path / "study" / "report.md").read_text().splitlines()[0]
