"""Compares, after a burst, parameters that must be equal on several ranks.

Ranks whose weights drift apart give no error and a plausible loss (seen with EP=1 and ETP≠TP); only the weights show
it.
"""

from __future__ import annotations

from typing import Any


def find_divergence(chunks: list[Any]) -> str | None:
    """Returns a description of the first parameter whose replicas differ, or None.

    Collective: every rank must call it. Dense parameters are replicated over data × context parallel, experts' over
    expert data parallel, and dense ones that are not split over tensor parallel over that as well. They are compared by
    fingerprints, which must agree bit by bit.
    """
    import torch
    from megatron.core import parallel_state

    dense = parallel_state.get_data_parallel_group(with_context_parallel=True)
    expert = parallel_state.get_expert_data_parallel_group()
    tensor = parallel_state.get_tensor_model_parallel_group()
    first: str | None = None
    for index, chunk in enumerate(chunks):
        if chunk.ddp_config.overlap_param_gather:  # the last step's gather is due with the next forward only
            chunk.start_param_sync(force_sync=True)
        for name, parameter in chunk.named_parameters():
            # decided by name, because with EP=1 Megatron's own mark (`allreduce`) is missing
            is_expert = ".experts." in name
            groups = [expert if is_expert else dense]
            if not is_expert and not getattr(parameter, "tensor_model_parallel", False):
                groups.append(tensor)
            for group in groups:
                difference = _spread(torch, parameter, group)
                if difference and first is None:
                    first = f"{name} (chunk {index}) differs by {difference:.3g} between ranks that must be equal"
    return first


_SLICE = 2**22  # elements compared at a time: a whole embedding in float64 would not fit in memory with the model


def _spread(torch: Any, parameter: Any, group: Any) -> float:
    """Returns the largest difference between the fingerprints of the group's copies; 0.0 if they are equal."""
    if group.size() == 1:
        return 0.0
    prints = torch.stack([_fingerprint(torch, part) for part in parameter.detach().flatten().split(_SLICE)]).sum(0)
    low, high = prints.clone(), prints.clone()
    torch.distributed.all_reduce(low, op=torch.distributed.ReduceOp.MIN, group=group)
    torch.distributed.all_reduce(high, op=torch.distributed.ReduceOp.MAX, group=group)
    return float((high - low).max())


def _fingerprint(torch: Any, values: Any) -> Any:
    """Returns float64[3]: sum, sum of magnitudes, and a sum that depends on each value's position."""
    value = values.double()
    weights = torch.arange(1, value.numel() + 1, dtype=torch.float64, device=value.device) % 1021
    return torch.stack([value.sum(), value.abs().sum(), (value * weights).sum()])
