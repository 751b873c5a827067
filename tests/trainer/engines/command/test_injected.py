"""Checks the module injected into the user's trainer: it chains what it hides, and is idle in children of a rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S
from trainer.engines.command.injected_folder import INJECTED
from trainer.engines.command.usage import read_usage

# A module of Megatron's name and shape, so that nothing heavy is loaded
SCHEDULES = "def forward_step(x):\n    return x + 1\ndef backward_step(x):\n    return x\n"


def module(folder: Path, name: str, text: str) -> None:
    """Writes a module that hides an installed one of that name."""
    *packages, last = name.split(".")
    for package in packages:
        folder = folder / package
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / f"{last}.py").write_text(text)


def run(folder: Path, program: str, **env: str) -> subprocess.CompletedProcess[str]:
    out = folder / "ranks"
    out.mkdir(exist_ok=True)
    paths = os.pathsep.join([str(INJECTED), str(folder)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "MOE_AUTOTUNE_OUT": str(out), "RANK": "0", **env}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=HANG_S
    )


def test_a_sitecustomize_of_the_users_own_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['MINE'] = 'ran'\n")
    assert run(tmp_path, "import os; print(os.environ['MINE'])").stdout == "ran\n"


def test_the_rank_says_where_it_is_and_computes_the_same(tmp_path: Path) -> None:
    module(tmp_path, "megatron.core.pipeline_parallel.schedules", SCHEDULES)
    program = "from megatron.core.pipeline_parallel.schedules import forward_step; print(forward_step(41))"
    done = run(tmp_path, program)
    assert done.stdout == "42\n"
    assert (tmp_path / "ranks" / "rank0.phase").read_text().strip() == "forward"


def test_a_child_of_the_rank_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    module(tmp_path, "megatron.core.pipeline_parallel.schedules", SCHEDULES)
    child = "from megatron.core.pipeline_parallel.schedules import backward_step; backward_step(1)"
    program = (
        "from megatron.core.pipeline_parallel.schedules import forward_step; forward_step(1); "
        f"import subprocess, sys, os; print(os.getpid()); subprocess.run([sys.executable, '-c', {child!r}], check=True)"
    )
    pid = run(tmp_path, program).stdout.strip()
    assert (tmp_path / "ranks" / "rank0.pid").read_text() == pid
    assert (tmp_path / "ranks" / "rank0.phase").read_text().strip() == "forward"


def test_memory_is_reported_at_the_last_measured_step(tmp_path: Path) -> None:
    module(tmp_path, "megatron.training.training", "def train_step():\n    return sum(range(100000))\n")
    program = (
        "import sys; sys.modules.setdefault('torch', type(sys)('torch')); sys.modules['torch'].cuda = "
        "type('C', (), {'is_initialized': staticmethod(lambda: False)}); "
        "from megatron.training.training import train_step; [train_step() for _ in range(3)]"
    )
    run(tmp_path, program, MOE_AUTOTUNE_LAST_STEP="2")
    usage = json.loads((tmp_path / "ranks" / "rank0.usage.json").read_text())
    assert len(usage["cpu_s"]) == 2
    assert usage["resident_gib"] >= 0


CUDA = """
def mem_get_info(): {info}
cuda = type("cuda", (), {{
    "is_initialized": staticmethod(lambda: True), "max_memory_allocated": staticmethod(lambda: 5 * 2**30),
    "max_memory_reserved": staticmethod(lambda: 7 * 2**30), "memory_reserved": staticmethod(lambda: 6 * 2**30),
    "mem_get_info": staticmethod(mem_get_info)}})
"""  # a stand-in for torch.cuda


@pytest.mark.parametrize(
    ("info", "outside_gib"),
    [
        ("return 3 * 2**30, 12 * 2**30", 3.0),
        ("return 8 * 2**30, 12 * 2**30", 0.0),
        ("raise RuntimeError('CUDA error: an illegal memory access was encountered')", None),
    ],
)
def test_memory_outside_the_allocator_is_reported(tmp_path: Path, info: str, outside_gib: float | None) -> None:
    module(tmp_path, "megatron.training.training", "def train_step():\n    return 1\n")
    (tmp_path / "torch.py").write_text(CUDA.format(info=info))
    run(tmp_path, "import torch; from megatron.training.training import train_step; train_step()")
    usage = read_usage(tmp_path / "ranks", 1)[0]
    assert (usage.peak_gib, usage.outside_gib) == (7.0, outside_gib)


def test_outside_a_burst_the_injected_module_does_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "import sys; print(len(sys.meta_path))", MOE_AUTOTUNE_OUT="")
    assert done.stderr == ""
    assert list((tmp_path / "ranks").iterdir()) == []


def test_the_first_weights_do_not_depend_on_the_micro_batch(tmp_path: Path) -> None:
    warm_up = "import torch\ndef _warmup_jit_function(micro_batch):\n    return torch.rand(micro_batch, 8)\n"
    module(tmp_path, "megatron.training.initialize", warm_up)
    program = (
        "import torch; from megatron.training.initialize import _warmup_jit_function as warm\n"
        "for size in (1, 4): torch.manual_seed(1); warm(size); print(torch.rand(1).item())"
    )
    one, other = run(tmp_path, program).stdout.split()
    assert one == other


def test_a_phase_is_written_when_it_is_new_and_where_an_exception_came(tmp_path: Path) -> None:
    fails = "def backward_step(x):\n    if x == 99:\n        raise ValueError(x)\n    return x\n"
    module(tmp_path, "megatron.core.pipeline_parallel.schedules", SCHEDULES.partition("def backward")[0] + fails)
    program = (
        "import os; pwrite, written = os.pwrite, []; "
        "os.pwrite = lambda *given: (written.append(given), pwrite(*given)); "
        "from megatron.core.pipeline_parallel.schedules import forward_step, backward_step\n"
        "for step in range(99): backward_step(step); forward_step(step)\n"
        "print(len(written))\n"
        "try: backward_step(99)\n"
        "except ValueError: print(open(os.environ['MOE_AUTOTUNE_OUT'] + '/rank0.phase').read().strip())\n"
    )
    written, phase = run(tmp_path, program).stdout.split()
    assert int(written) < 20  # 198 changes: a slow machine may write one every two seconds
    assert phase == "backward"
