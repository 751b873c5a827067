"""The output of `init`: a commented recipe to start from."""
