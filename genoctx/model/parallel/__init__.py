"""Context parallelism inside a chunk: what the layers exchange where ranks hold pieces of it."""
