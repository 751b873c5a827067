"""Where a study stands, told in another shell from its journal alone."""
