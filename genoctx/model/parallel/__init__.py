"""Context parallelism inside a chunk: what the layers exchange where ranks hold consecutive pieces of it."""
