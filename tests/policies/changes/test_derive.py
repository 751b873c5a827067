"""Changes that the policy may propose."""

from __future__ import annotations

from policies.changes.legality import Refusal, derive
from tests.trainer.engines.gpu_recipes import on_gpus


def test_a_change_that_megatron_sets_back_is_refused_and_one_that_stays_is_not() -> None:
    plain = on_gpus({"overlap_grad_reduce": False})
    refused = derive(plain, {"bucket_size": 100_000_000})
    assert isinstance(refused, Refusal)
    assert "reduces all gradients at once" in refused.reason
    together = derive(plain, {"bucket_size": 100_000_000, "overlap_grad_reduce": True})
    assert not isinstance(together, Refusal)
