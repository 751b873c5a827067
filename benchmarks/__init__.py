"""Every figure of docs/benchmarks.md, as a command: `python -m benchmarks.<name>`."""
