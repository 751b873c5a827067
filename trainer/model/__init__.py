"""What a model holds and computes, whatever runs it: parameters and FLOPs, layer by layer."""
