"""`import` takes the GPU by name, by figures inline or in a file, or finds it on the machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.importing.here import amd_gpu_here, gpu_here
from autotune.importing.reading import imported
from tests.autotune.importing.starts import asked_of
from trainer.errors import BadInputError
from trainer.recipe import Recipe
from trainer.recipe.hardware import known_hardware

FIGURES = "name: mi300x, vendor: amd, memory_gib: 191.5, bf16_tflops: 1307, hbm_tb_s: 5.3, nvlink_gb_s: 448"
NETWORK = "network_gbit_s: 400"
VRAM = 205_822_885_888  # bytes, of an MI300X as rocm-smi prints it


def read(gpu: str | None, *, nodes: int = 8) -> Recipe:
    """Returns the recipe of a file of arguments, which no bash has to run."""
    return imported(replace(asked_of("arguments.txt"), gpu=gpu, nodes=nodes, gpus_per_node=8)).recipe


def refusal(gpu: str | None, *, nodes: int = 8) -> str:
    with pytest.raises(BadInputError) as refused:
        read(gpu, nodes=nodes)
    return str(refused.value)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of programs that precedes the machine's on PATH, none of which knows a GPU."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("nvidia-smi", "rocm-smi"):
        write(folder, name, "exit 9")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def write(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def rocm_smi(folder: Path, *series: str) -> None:
    """Writes a program that answers as rocm-smi of ROCm 6: a JSON object with one card per GPU, or lines of names."""
    cards = {
        f"card{number}": {
            "VRAM Total Memory (B)": str(VRAM),
            "VRAM Total Used Memory (B)": "297373696",
            "Card Series": name,
            "Card Model": "0x74a1",
            "Card Vendor": "Advanced Micro Devices, Inc. [AMD/ATI]",
            "Card SKU": "M3000100",
            "Subsystem ID": "0x74a1",
            "GFX Version": "gfx942",
        }
        for number, name in enumerate(series)
    }
    lines = "\n".join(f"GPU[{number}]\t\t: Card Series: \t\t{name}" for number, name in enumerate(series))
    (folder / "json").write_text(json.dumps(cards))
    (folder / "text").write_text(f"===== ROCm System Management Interface =====\n{lines}\n")
    write(folder, "rocm-smi", f'case "$*" in *--json*) cat {folder}/json;; *) cat {folder}/text;; esac')


def test_figures_are_given_inline() -> None:
    recipe = read(f"{{{FIGURES}, {NETWORK}}}", nodes=2)
    assert recipe.hardware.name == "mi300x"
    assert recipe.memory_limit_gib == 191.5
    assert Recipe.model_validate(recipe.model_dump(mode="json")).digest() == recipe.digest()


@pytest.mark.parametrize("name", ["mi300x.yaml", "mi300x.json"])
def test_figures_are_given_in_a_file(tmp_path: Path, name: str) -> None:
    figures = (pair.split(": ") for pair in f"{FIGURES}, {NETWORK}".split(", "))
    typed = {key: value if key in ("name", "vendor") else float(value) for key, value in figures}
    file = tmp_path / name
    file.write_text(json.dumps(typed) if name.endswith("json") else f"{FIGURES}, {NETWORK}".replace(", ", "\n"))
    assert read(str(file), nodes=2).cluster == read(f"{{{FIGURES}, {NETWORK}}}", nodes=2).cluster


@pytest.mark.usefixtures("programs")
def test_wrong_figures_are_refused_with_what_to_write(tmp_path: Path) -> None:
    assert "--gpu bf16_tflops: missing" in refusal("{name: mi300x}")
    assert "did you mean bf16_tflops?" in refusal(f"{{{FIGURES}, bf16_tflop: 3}}")
    assert "it is not YAML" in refusal("{name: mi300x")
    assert "it holds no figures" in refusal(str(_file(tmp_path, "- h100\n")))
    assert "cannot be read" in refusal(str(tmp_path / "absent.yaml"))
    assert "did you mean h100?" in refusal("h1000")
    assert "no network_gbit_s, and there are 2 nodes" in refusal(f"{{{FIGURES}}}", nodes=2)


def _file(folder: Path, text: str) -> Path:
    file = folder / "gpu.yaml"
    file.write_text(text)
    return file


def test_an_amd_gpu_of_this_machine_is_found(programs: Path) -> None:
    rocm_smi(programs, *["AMD Instinct MI250X OAM"] * 8)
    assert gpu_here(known_hardware()) is None
    assert amd_gpu_here() == {"name": "mi250x", "vendor": "amd", "memory_gib": 191.69}
    asked = refusal(None)
    assert "this machine's mi250x is not a GPU of the table" in asked
    assert "name: mi250x, memory_gib: 191.69, bf16_tflops: N" in asked


def test_rocm_smi_completes_the_figures_of_the_gpu_that_is_here(programs: Path) -> None:
    rocm_smi(programs, *["AMD Instinct MI300X VF"] * 4)
    measured = f"bf16_tflops: 1307, hbm_tb_s: 5.3, nvlink_gb_s: 448, {NETWORK}"
    recipe = read(f"{{{measured}}}", nodes=2)
    assert recipe.hardware.name == "mi300x"
    assert recipe.memory_limit_gib == 191.69
    assert "name: missing" not in refusal(f"{{name: mi250, {measured}}}")
    assert "memory_gib: missing" in refusal(f"{{name: mi250, {measured}}}")


def test_a_gpu_of_the_table_is_found_by_rocm_smi_too(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm_smi(programs, "AMD Instinct MI300X OAM")
    assert gpu_here({"mi300x": None, "h100": None}) == "mi300x"


@pytest.mark.parametrize(
    "series",
    [(), ("AMD Instinct MI300X OAM", "AMD Instinct MI250X"), ("Radeon",)],
    ids=["none", "two kinds", "no name"],
)
def test_what_is_not_one_known_kind_is_no_gpu(programs: Path, series: tuple[str, ...]) -> None:
    rocm_smi(programs, *series)
    assert amd_gpu_here() is None


def test_a_machine_without_the_program_has_no_amd_gpu(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs.parent))
    assert amd_gpu_here() is None
