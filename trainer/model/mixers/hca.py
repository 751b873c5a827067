"""DeepSeek-V4's heavily compressed attention: over a window, and over keys of 128 positions each."""

from __future__ import annotations

from trainer.model.compressed import compressed_attention

MIXER = compressed_attention("hca", 128, "compressors of heavily compressed attention")
