"""Every figure the README claims, as a command: `python -m benchmarks.<name>`."""
