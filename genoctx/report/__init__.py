"""Held-out loss: ledger, baselines, statistics, tables. numpy only, never torch."""
