"""DeepSeek-V4's attention over a window of positions only."""

from __future__ import annotations

from trainer.model.compressed import compressed_attention

MIXER = compressed_attention("window_attention", 0, "window attention with one key for all heads")
