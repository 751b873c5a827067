"""Exports held against Megatron-LM's real parser, by version: `python -m benchmarks.exports megatron-lm`."""
