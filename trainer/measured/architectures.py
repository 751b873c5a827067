"""Fitted constants that differ by GPU architecture: `<name>.<architecture>[.<what>]` in a table of constants.

Tables name each architecture that published runs were fitted on, and `unfitted` for any other: the geometric mean of
the fitted ones, for which intervals are widened.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TypeVar

from trainer.errors import refused
from trainer.recipe.hardware import UNFITTED, Hardware, known_hardware

Value = TypeVar("Value")
WIDE = ("bf16", "fp16", "fp32")  # precisions whose GEMMs run at the BF16 rate


def of_architecture(values: Mapping[str, Value], name: str, hardware: Hardware, what: str = "") -> Value:
    """Returns the constant for this device's architecture. Raises BadInputError if the table has none."""
    key = ".".join(filter(None, (name, hardware.fitted_as, what)))
    if key not in values:
        raise _not_fitted(hardware, key)
    return values[key]


def of_precision(values: Mapping[str, Value], name: str, hardware: Hardware, precision: str) -> Value:
    """Returns the constant of a precision: BF16's for formats of 16 and 32 bits, else its own row or, without one,
    FP8's."""
    tried = ("bf16",) if precision in WIDE else (precision, "fp8_current", "fp8")
    keys = [f"{name}.{hardware.fitted_as}.{each}" for each in tried]
    key = next((key for key in keys if key in values), None)
    if key is None:
        raise _not_fitted(hardware, keys[-1])
    return values[key]


def _not_fitted(hardware: Hardware, key: str) -> Exception:
    return refused(
        f"hardware.csv {hardware.name}",
        f"no constant is fitted for architecture {hardware.fitted_as!r}: {key} is missing",
        f"write {UNFITTED} in its column fitted_as, or fit the constant and add its row",
    )


def known(hardware: Hardware, figure: float | None, field: str) -> float:
    """Returns a figure of a GPU.

    Raises BadInputError if it is not known: another GPU's figure is never used instead.
    """
    if figure is None:
        raise refused(f"cluster.gpu {hardware.name}", f"{field} is not known", f"write {field} under cluster.gpu")
    return figure


@cache
def fitted_architectures() -> tuple[str, ...]:
    """Returns every value that `Hardware.fitted_as` of a GPU may have."""
    return (*dict.fromkeys(gpu.fitted_as for gpu in known_hardware().values() if not gpu.is_cpu), UNFITTED)
