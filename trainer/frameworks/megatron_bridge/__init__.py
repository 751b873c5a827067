"""Megatron-Bridge's overrides, as Hydra reads them."""
