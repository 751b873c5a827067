"""`bisect --env-b`: one recipe in two environments, on real CPU ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.cli import main
from tests.autotune.outside import SMALL
from tests.conftest import HANG_S

CPU = f"""\
name: cpu-tiny
model: {{num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 512, num_moe_experts: 4,
  moe_router_topk: 2, moe_ffn_hidden_size: 64}}
cluster: {{gpu: cpu, nodes: 1, gpus_per_node: 1}}
training: {{seq_length: 64, global_batch_size: 4, precision: fp32}}
burst: {{engine: megatron, warmup_steps: 1, measure_steps: 4, trace_steps: 0, deadline_s: {HANG_S}}}
"""


def test_an_environment_that_an_engine_cannot_make_is_refused(
    empty_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("sim.yaml").write_text(SMALL)
    Path("cpu.yaml").write_text(CPU)
    for words, said in (
        (["sim.yaml", "--env-b", "OMP_NUM_THREADS=1"], "engine simulated starts no process"),
        (["cpu.yaml", "--env-b", "module load new"], "runs no line of a shell"),
        (["cpu.yaml", "--env-b", "HF_TOKEN=hf_abcdefghijklmnopqrst"], "journals hold none"),
        (["cpu.yaml"], "they do not differ"),
    ):
        assert main(["bisect", *words]) == 2
        assert said in capfd.readouterr().err


@pytest.mark.cold
@pytest.mark.usefixtures("light_agent")
def test_variables_are_bisected_on_real_ranks(empty_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("cpu.yaml").write_text(CPU)
    words = ["--env-b", "OMP_THREAD_LIMIT=1", "--env-b", "MALLOC_ARENA_MAX=1", "--budget", "2", "--study", "s"]
    assert main(["bisect", "cpu.yaml", *words, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    names = {"burst.env.OMP_THREAD_LIMIT", "burst.env.MALLOC_ARENA_MAX"}
    assert {each["name"] for each in found["differences"]} == names
    assert set(found["bursts"][1]["taken"]) == names
    assert all(each["symptom"] is None for each in found["bursts"])
    second = json.loads(Path("s/bursts/0002/burst.json").read_text())
    assert second["recipe"]["burst"]["env"] == {"OMP_THREAD_LIMIT": "1", "MALLOC_ARENA_MAX": "1"}
