"""Memory of every pipeline rank by part, its upper bound, and the constants of the estimate."""
