"""What was measured and serves estimate and simulation alike: links, software, and the reader of fitted tables."""
