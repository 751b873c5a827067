"""Measures every figure the README claims, one command each: `python -m benchmarks.<name>`."""
