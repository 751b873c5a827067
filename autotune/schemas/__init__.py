"""The JSON Schema of every document, made from the types of the documents."""
