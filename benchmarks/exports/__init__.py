"""Checks exports with Megatron-LM's real parser, by version: `python -m benchmarks.exports megatron-lm`."""
