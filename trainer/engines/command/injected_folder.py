"""The folder that is put first in PYTHONPATH of the user's own trainer, so that its sitecustomize runs there."""

from pathlib import Path

INJECTED = Path(__file__).parent / "injected"
