"""What `init` writes: a commented recipe to start from."""
