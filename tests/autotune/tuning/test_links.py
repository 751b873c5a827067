"""Links between the nodes that were measured before the first burst: in the journal, and from there in every reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import autotune.probe.study as probing
from autotune.tuning.events import Event, Probed, StudyStarted
from autotune.tuning.history import History
from autotune.tuning.journal import JOURNAL, read_events
from autotune.tuning.lines import line_of, links_in_words
from autotune.tuning.study import Study, create
from policies.tuner.tuner import Tuner
from tests.policies.drawn import links
from trainer.burst import Failure, FailureKind
from trainer.probe.probe import Probe
from trainer.recipe import Recipe, load_recipe

FAILED = Failure(kind=FailureKind.INFRASTRUCTURE, evidence="node n2: it is gone", node="n2")


def started(recipe: Recipe) -> StudyStarted:
    return StudyStarted(
        version="0", name="s", recipe=recipe.model_dump(mode="json"), digest="0", seed=1, environment={}
    )


def probed(found: bool = True) -> Probed:
    return Probed(links=links(5.0) if found else None, failure=None if found else FAILED, ranks=16, seconds=30.0)


def test_measured_links_are_a_lesson_and_cost_what_they_took() -> None:
    recipe = load_recipe("deepseek-v3-1024xh100")
    history = History([started(recipe), probed()])
    (lesson,) = history.lessons
    assert lesson.mean["network"] < -1
    assert history.gpu_hours == pytest.approx(16 * 30 / 3600)
    assert Tuner(recipe, 1, history.lessons).surrogate([]).time.theta["network"] < -0.5
    assert lesson.study == "a probe of the links"


def test_a_failed_probe_is_reported_and_is_no_observation() -> None:
    recipe = load_recipe("deepseek-v3-1024xh100")
    history = History([started(recipe), probed(found=False)])
    assert history.lessons == []
    said = line_of(probed(found=False), history)
    assert said == "the links between the nodes could not be measured: infrastructure: node n2: it is gone"


def test_clocks_and_a_folder_that_lag_are_reported() -> None:
    usual = links(5.0)
    words = links_in_words(usual)
    assert words == "5.00 GB/s per rank, 25.0 us per 4 KiB all-reduce (nccl over ib0, 2 nodes)"
    odd = links_in_words(msgspec.structs.replace(usual, clocks_apart_s=2.0, folder_lag_s=9.0))
    assert odd.endswith(
        "their clocks are 2.0 s apart: the order of failures depends on them; "
        "a file appears on the other nodes after 9.0 s"
    )


def test_links_are_measured_once_and_again_only_where_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = on_two_nodes(load_recipe("cpu-moe"))
    answers = [Probe(links=None, failure=FAILED, seconds=1.0), Probe(links=links(5.0), failure=None, seconds=2.0)]
    monkeypatch.setattr(probing, "probe", lambda recipe, **folders: answers.pop(0))
    study = study_in(tmp_path / "s", recipe)
    for _ in range(4):
        probing.probe_before(study, budget=20, max_gpu_hours=None, rows=True)
    study.close()
    assert answers == []
    events, _ = read_events(tmp_path / "s" / JOURNAL)
    assert [event.links is None for event in events if isinstance(event, Probed)] == [True, False]


def test_a_recipe_that_does_without_links_is_not_probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "probe", lambda recipe, **folders: pytest.fail("it was probed"))
    recipe = on_two_nodes(load_recipe("cpu-moe"))
    burst = recipe.burst.model_copy(update={"probe_links": False})
    study = study_in(tmp_path / "s", recipe.model_copy(update={"burst": burst}))
    probing.probe_before(study, budget=20, max_gpu_hours=None, rows=True)
    study.close()
    assert study.journal.whole.probed is None


def on_two_nodes(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"cluster": recipe.cluster.model_copy(update={"nodes": 2, "gpus_per_node": 1})})


def study_in(folder: Path, recipe: Recipe) -> Study:
    return create(recipe, given=b"", folder=folder, seed=1, clock=lambda: 0.0, listener=heard)


def heard(event: Event, history: History) -> None: ...
