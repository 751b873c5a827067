"""Memory of a rank over time: its peak, its holders, the allocator's retries; from traces and snapshots."""
