"""The parameters and FLOPs of a model, layer by layer, independent of the trainer."""
