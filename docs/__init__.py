"""The documents, and in `site/` what makes a site of them."""
