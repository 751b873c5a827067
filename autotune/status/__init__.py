"""Shows the state of a study in another shell, from its journal alone."""
