"""Memory of a rank over time: its peak, what holds it, what the allocator did; from traces and snapshots."""
