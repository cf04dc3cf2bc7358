"""Joins genome, engine and report: the loops behind ``train`` and ``eval``."""
