"""What `compare` says: two traces or two trials side by side, and what moved between them."""
