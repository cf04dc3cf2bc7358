"""What a report says in words: reasons not to quote it, warnings, and the footnotes on method."""

from __future__ import annotations

from typing import Any

from genoctx.report.markov import BACKOFF
from genoctx.report.stats import FEW_BLOCKS, MIN_BLOCKS

FEW_WINDOWS = 8
WIDTHS_DIFFER = 1.3


def gate(report: dict[str, Any], unpaired: str) -> list[str]:
    """Reasons not to quote the headline; with --strict they make the command fail. Empty is good."""
    reasons = []
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


def notes(report: dict[str, Any]) -> list[str]:
    """The method, in sentences that can go under a table."""
    method, header = report["method"], report["header"]
    written = [
        "Scored are the held-out bases that are A, C, G or T and not the first of their window, on the "
        "forward strand. Anything else (N, other IUPAC codes) is never a target.",
        "Bits per base = summed negative log likelihood / (ln 2 x scored bases); sums in float64, divided "
        "once. Over the full vocabulary it is what the model does; renormalised over A, C, G and T it leaves "
        "out the gain from learning that this is DNA.",
        _interval_note(method),
    ]
    if report["main"]["full"]["difference"] or report["baselines"]:
        written.append("A difference is paired: both sides are resampled in the same blocks.")
    if method["blocks"] <= FEW_BLOCKS:
        written.append(
            f"Few blocks: with {MIN_BLOCKS} to {FEW_BLOCKS} the interval is Student's t over blocks (not "
            "stratified); with fewer none is given."
        )
    if len(header["contigs"]) < 3:
        written.append(
            f"Intervals are conditional on these contigs: with only {' and '.join(header['contigs'])} held "
            "out they do not say how other contigs would score."
        )
    power = _power_note(report)
    return written + ([power] if power else []) + _baseline_notes(report)


def _interval_note(method: dict[str, Any]) -> str:
    return (
        f"Intervals ({100 * method['confidence']:g} %): percentiles of {method['bootstrap']:,} bootstrap "
        f"draws of blocks of {method['block']:,} bases, sums and counts together, within contigs (contigs of "
        f"fewer than {MIN_BLOCKS} blocks are pooled), seed {method['seed']}."
    )


def _power_note(report: dict[str, Any]) -> str:
    _, here, _ = report["block_lengths"]
    if here["half_width"] is None:
        return ""
    blocks, reach = count(here["blocks"], "block"), f"{here['half_width']:.2g} bits"
    if report["main"]["full"]["difference"]:
        return f"With {blocks} a difference under {reach} cannot be seen at this confidence."
    return f"With {blocks} the loss after training is known to about {reach} at this confidence."


def _baseline_notes(report: dict[str, Any]) -> list[str]:
    if not report["baselines"]:
        return []
    bases = report["baselines"][0]["train_bases"]
    trained = f"{bases:,} bases of the" if bases is not None else "the"
    written = [
        f"Baselines are Markov models of {trained} training windows, forward strand, each order backed off "
        f"to the shorter one with weight {BACKOFF:g}; order 0 is base composition. They see no base before "
        "the window and predict four letters, so they are compared over A, C, G and T."
    ]
    cv = report["cross_validation"]
    if cv:
        folds = "groups of whole contigs" if cv["folds_are"] == "contigs" else "equal stretches"
        written.append(
            f"Order {cv['order']} was chosen by cross-validation on training data alone "
            f"({cv['folds']} folds, {folds}, {cv['scored_bases']:,} bases scored)."
        )
    return written


def count(n: int, thing: str) -> str:
    """``1 block``, ``2 blocks``."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"
