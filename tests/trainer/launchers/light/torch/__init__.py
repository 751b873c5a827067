"""Replaces torch in tests that start ranks by an agent without torch: it has only `distributed/run.py`."""
