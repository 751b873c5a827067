"""Measurements that estimate and simulation share: links, software, and the reader of fitted tables."""
