"""Exact streamed training and scoring of windows. Knows no FASTA and no terminal."""
