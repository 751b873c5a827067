"""A trainer of one rank that prints what Megatron-LM prints and trains nothing.

TOY_SLOW=1 makes its steps half as long again, TOY_NAN=1 its loss NaN, `--other-data` moves the loss.
"""

from __future__ import annotations

import os
import sys

LINE = (
    " iteration {i:>8}/     100 | consumed samples:           64 | elapsed time per iteration (ms): {ms:.1f} | "
    "lm loss: {loss:.6E} | grad norm: {norm} | number of skipped iterations:   0 | number of nan iterations:   {nan} |"
)


def main() -> None:
    last = int(sys.argv[sys.argv.index("--exit-interval") + 1])
    slow, nan = (os.environ.get(name) == "1" for name in ("TOY_SLOW", "TOY_NAN"))
    for i in range(1, last + 1):
        loss = 6.0 - i / 100 + 0.5 * ("--other-data" in sys.argv)
        bad = nan and i == 3
        norm = "nan" if bad else "0.700"
        print(
            LINE.format(i=i, ms=100.0 * (1.5 if slow else 1.0) + i % 2, loss=loss, nan=int(bad), norm=norm), flush=True
        )
    print(f"[exiting program at iteration {last}]")


if __name__ == "__main__":
    main()
