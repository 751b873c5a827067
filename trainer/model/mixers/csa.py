"""DeepSeek-V4's compressed sparse attention: over a window, and over keys of four positions each that an indexer
chooses."""

from __future__ import annotations

from trainer.model.compressed import compressed_attention

MIXER = compressed_attention("csa", 4, "compressors, indexers and top-k of compressed sparse attention")
