"""genoctx: teach a language model to read a genome half a million to a million bases at a time."""

__version__ = "0.1.0"
