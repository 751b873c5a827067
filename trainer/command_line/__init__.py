"""How the trainers people run spell a recipe: Megatron-LM's arguments, Megatron-Bridge's overrides.

Written for exports and for bursts of engine `command`, read by `moe-autotune import`. Pure: text and recipes only.
"""
