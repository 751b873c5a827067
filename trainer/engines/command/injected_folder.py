"""The folder that PYTHONPATH begins with for the user's own trainer: its sitecustomize acts from inside."""

from pathlib import Path

INJECTED = Path(__file__).parent / "injected"
