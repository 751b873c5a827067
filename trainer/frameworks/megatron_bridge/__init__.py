"""Megatron-Bridge: overrides in Hydra's grammar."""
