"""The JSON Schema of every document that is written, made from the types that are written."""
