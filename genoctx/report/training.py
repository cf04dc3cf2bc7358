"""How the training went: its metrics, thinned for a figure, and the held-out points beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genoctx.report.blocks import blocks_of
from genoctx.report.ledger import Ledger
from genoctx.report.stats import Sampling, bits

MOST_POINTS = 300
_PEAK = "_peak_bytes"


def training_curves(
    lines: Sequence[Mapping[str, Any]], held_out: Sequence[Ledger], size: int, sampling: Sampling
) -> dict[str, Any] | None:
    """Of the lines of ``metrics.jsonl`` and the run's evaluations; None where there are no lines.

    ``points`` are means over at most ``MOST_POINTS`` stretches of equally many steps: ``bits`` weighted by
    bases, rates as bases over seconds; ``peaks`` the largest value of every ``*_peak_bytes``.
    """
    if not lines:
        return None
    per = -(-len(lines) // MOST_POINTS)
    points, before = [], 0
    for at in range(0, len(lines), per):
        points.append(_mean(lines[at : at + per], before))
        before = points[-1]["bases"]
    evaluations = []
    for ledger in held_out:
        blocks = blocks_of(ledger, size)
        estimate = bits(blocks, blocks.nats_full, sampling).as_dict()
        evaluations.append({"step": ledger.header.get("step"), "bits": estimate})
    names = sorted({key for line in lines for key in line if key.endswith(_PEAK)})
    largest = {name: [line[name] for line in lines if line.get(name) is not None] for name in names}
    return {
        "steps": lines[-1]["step"],
        "bases": lines[-1]["bases"],
        "points": points,
        "held_out": evaluations,
        "peaks": {name.removesuffix(_PEAK): max(found) for name, found in largest.items() if found},
    }


def _mean(lines: Sequence[Mapping[str, Any]], bases_before: int) -> dict[str, Any]:
    """One point of ``lines``; losses that were not finite (null) are left out and counted."""
    spans, last = [], bases_before
    for line in lines:
        spans.append(line["bases"] - last)
        last = line["bases"]
    finite = [
        (n, line["loss_bits"]) for n, line in zip(spans, lines, strict=True) if line["loss_bits"] is not None
    ]
    weight = sum(n for n, _ in finite)
    seconds = sum(
        n / line["bases_per_s"] for n, line in zip(spans, lines, strict=True) if line.get("bases_per_s")
    )
    peaks = [line["host_peak_bytes"] for line in lines if line.get("host_peak_bytes") is not None]
    return {
        "step": lines[-1]["step"],
        "bases": last,
        "bits": sum(n * loss for n, loss in finite) / weight if weight else None,
        "not_finite": len(lines) - len(finite),
        "bases_per_s": sum(spans) / seconds if seconds else None,
        "host_peak_bytes": max(peaks) if peaks else None,
    }
