"""Memory of a rank over time, from traces and snapshots: its peak, the phases or call sites that hold it, the
allocator's retries."""
