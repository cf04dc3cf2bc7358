"""What a report says in words: reasons not to quote it, and warnings."""

from __future__ import annotations

from typing import Any

from genoctx.report.stats import MIN_BLOCKS

FEW_WINDOWS = 8
WIDTHS_DIFFER = 1.3


def gate(report: dict[str, Any], unpaired: str) -> list[str]:
    """Reasons not to quote the headline; with --strict they make the command fail. Empty is good."""
    reasons = [*_leakage(report["header"]["leakage"])]
    blocks, size = report["method"]["blocks"], report["method"]["block"]
    if blocks < MIN_BLOCKS:
        reasons.append(
            f"only {count(blocks, 'block')} of {size:,} bases scored, too few for an interval: hold out more"
        )
    after, before = report["header"]["after"], report["header"]["before"]
    if before is not None and before.get("windows_digest") != after.get("windows_digest"):
        reasons.append("before and after were evaluated on different window tables")
    if unpaired:
        reasons.append(f"before and after scored different bases ({unpaired}): no difference is given")
    return reasons


def _leakage(found: dict[str, Any] | None) -> list[str]:
    """The reason, where more of the held-out k-mers is in training than the limit of the window table."""
    if not found or not found["audited"] or found["share"] is None or found["limit"] is None:
        return []
    if found["share"] <= found["limit"]:
        return []
    return [
        f"leakage: {100 * found['share']:.2g} % of the held-out {found['k']}-mers stand in training too, the "
        f"limit is {100 * found['limit']:.2g} %"
    ]


def warnings(report: dict[str, Any]) -> list[str]:
    """What a reader should know before quoting a number, beside the gate's reasons."""
    header = report["header"]
    after, before = header["after"], header["before"]
    found = []
    if header["windows"] <= FEW_WINDOWS:
        found.append(
            f"{count(header['windows'], 'held-out window')}: the interval covers chance within this sequence "
            "only; hold out more before claiming more"
        )
    if header["unaccounted_bases"] > 0:
        found.append(f"{header['unaccounted_bases']:,} bases of the windows were neither scored nor excluded")
    if header["unaccounted_bases"] < 0:
        found.append(f"{-header['unaccounted_bases']:,} more bases scored or excluded than the windows hold")
    if header["overlapping_bases"]:
        found.append(f"the windows overlap: {header['overlapping_bases']:,} bases count more than once")
    leakage = header["leakage"]
    if leakage and leakage["audited"] is False:
        why = f": {leakage['reason']}" if leakage.get("reason") else ""
        found.append(
            f"nobody looked for held-out sequence in the training windows{why} (`genoctx windows --leak`)"
        )
    for key in ("store_digest", "context", "split"):
        if before is not None and before.get(key) != after.get(key):
            found.append(f"before and after differ in {key}: {before.get(key)} and {after.get(key)}")
    return found + _block_length_warning(report)


def _block_length_warning(report: dict[str, Any]) -> list[str]:
    half, here, double = report["block_lengths"]
    if not here["half_width"]:
        return []
    for other in (half, double):
        if other["half_width"] is None:
            continue
        change = other["half_width"] / here["half_width"]
        if not 1 / WIDTHS_DIFFER <= change <= WIDTHS_DIFFER:
            return [
                f"with blocks of {other['block']:,} bases the interval is {change:.2f} times as wide: "
                "blocks are too short, or there are too few of them"
            ]
    return []


def count(n: int, thing: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"
