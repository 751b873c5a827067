"""The launch files of these tests, and the options that the user gives with each."""

from __future__ import annotations

from pathlib import Path

from autotune.importing.found import ImportOptions

LAUNCH = Path(__file__).parent / "launch"

# file -> (GPU, nodes, --set)
STARTS: dict[str, tuple[str | None, int | None, dict[str, str]]] = {
    "mixture_torchrun.sh": ("h100", None, {"1": "/ckpt", "2": "/tok.model", "3": "/data/a", "vocab_size": "32000"}),
    "latent_slurm.sh": (None, None, {}),
    "old_words.sh": ("b200", None, {}),
    "sharded.sh": ("b200", None, {}),
    "arguments.txt": ("h100", 8, {"vocab_size": "102400"}),
    "zoo.yaml": ("h100", 4, {"EP": "8"}),
    "traps.sh": ("h100", None, {}),
}


def asked_of(name: str) -> ImportOptions:
    gpu, nodes, given = STARTS[name]
    return ImportOptions(file=str(LAUNCH / name), gpu=gpu, nodes=nodes, given=given)
