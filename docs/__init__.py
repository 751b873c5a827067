"""The documents, and in `site/` the generator of their site."""
