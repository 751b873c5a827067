"""Measurements that the estimates and the simulation share: links, software releases, and the reader of tables of
fitted constants."""
