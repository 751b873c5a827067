"""Memory of every pipeline rank by part, its upper bound, and the constants they rest on."""
