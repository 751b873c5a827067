"""Compares, after a burst, parameters that must be equal on several ranks.

Ranks whose weights drift apart give no error and a plausible loss (seen with EP=1 and ETP≠TP); only the weights show
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def find_divergence(chunks: list[Any]) -> str | None:
    """Returns a description of a parameter whose replicas differ, or None.

    Collective: every rank must call it. Dense parameters are replicated over data × context parallel, experts' over
    expert data parallel, and dense ones that are not split over tensor parallel over that as well. They are compared by
    fingerprints, which must agree bit by bit, all of a group at once.
    """
    import torch
    from megatron.core import parallel_state

    dense = parallel_state.get_data_parallel_group(with_context_parallel=True)
    expert = parallel_state.get_expert_data_parallel_group()
    tensor = parallel_state.get_tensor_model_parallel_group()
    replicated: dict[Any, dict[str, Any]] = {dense: {}, expert: {}, tensor: {}}
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
                replicated[group][f"{name} (chunk {index})"] = parameter
    spreads = {group: _spreads(torch, parameters.values(), group) for group, parameters in replicated.items()}
    for group, parameters in replicated.items():
        for name, spread in zip(parameters, spreads[group], strict=True):
            if spread:
                return f"{name} differs by {spread:.3g} between ranks that must be equal"
    return None


_SLICE = 2**22  # elements compared at a time: a whole embedding in float64 would not fit in memory with the model


def _spreads(torch: Any, parameters: Iterable[Any], group: Any) -> list[float]:
    """Returns the largest difference between the fingerprints of the group's copies of each parameter; 0.0 if they are
    equal."""
    parameters = list(parameters)
    if not parameters or group.size() == 1:
        return [0.0] * len(parameters)
    prints = [_fingerprint(torch, parameter.detach()) for parameter in parameters]
    low, high = torch.stack(prints), torch.stack(prints)
    torch.distributed.all_reduce(low, op=torch.distributed.ReduceOp.MIN, group=group)
    torch.distributed.all_reduce(high, op=torch.distributed.ReduceOp.MAX, group=group)
    spreads: list[float] = (high - low).amax(dim=1).tolist()
    return spreads


def _fingerprint(torch: Any, values: Any) -> Any:
    """Returns float64[3]: sum, sum of magnitudes, and a sum that depends on each value's position in its slice."""
    return torch.stack([_fingerprint_of_slice(torch, part) for part in values.flatten().split(_SLICE)]).sum(0)


def _fingerprint_of_slice(torch: Any, values: Any) -> Any:
    value = values.double()
    weights = torch.arange(1, value.numel() + 1, dtype=torch.float64, device=value.device) % 1021
    return torch.stack([value.sum(), value.abs().sum(), (value * weights).sum()])
