"""Measures every figure of docs/benchmarks.md, one command each: `python -m benchmarks.<name>`."""
