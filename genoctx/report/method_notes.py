"""The footnotes of a report: how every number in it was made, in sentences that can go under a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from genoctx.report.by_block import ENOUGH
from genoctx.report.markov import BACKOFF
from genoctx.report.remarks import count
from genoctx.report.stats import BCA_BLOCKS, FEW_BLOCKS, MIN_BLOCKS
from genoctx.report.strata import PROBABILITY_BINS


def notes(report: dict[str, Any]) -> list[str]:
    """All that applies to what ``report`` holds."""
    found = (
        *_scoring(report),
        *_intervals(report),
        *_baselines(report),
        *_windows(report),
        *_sections(report),
    )
    return [note for note in found if note]


def _scoring(report: dict[str, Any]) -> Iterator[str]:
    after = report["header"]["after"]
    letters, strand = after.get("token_bases") or 1, after.get("strand")
    if letters > 1:
        unit = f"the held-out words of {letters} bases (the model's tokens) that are A, C, G and T alone"
    else:
        unit = "the held-out bases that are A, C, G or T"
    first = "" if after.get("prefixed") else " and not the first of their window"
    on = "as reverse complement" if strand == "-" else "on the forward strand"
    yield (
        f"Scored are {unit}{first}, {on}. Anything else (N, other IUPAC codes) is read but never a target; "
        "soft-masked bases are targets like others."
    )
    yield (
        "Bits per base = summed negative log likelihood / (ln 2 x scored bases); sums in float64, divided "
        "once. Over the full vocabulary it is what the model does; renormalised over A, C, G and T it leaves "
        "out the gain from learning that this is DNA."
    )


def _intervals(report: dict[str, Any]) -> Iterator[str]:
    method, header = report["method"], report["header"]
    yield (
        f"Intervals ({100 * method['confidence']:g} %): percentiles of {method['bootstrap']:,} bootstrap "
        f"draws of blocks of {method['block']:,} bases, sums and counts together, within contigs (contigs of "
        f"fewer than {MIN_BLOCKS} blocks are pooled), seed {method['seed']}. Over {BCA_BLOCKS} blocks they are "
        "corrected for the bias of the draws and the skewness of the blocks (BCa), which fewer blocks do not "
        "let one estimate."
    )
    if report["main"]["full"]["difference"] or report["baselines"]:
        yield "A difference is paired: both sides are resampled in the same blocks."
    if method["blocks"] <= FEW_BLOCKS or report["strata"]:
        yield (
            f"Few blocks: with {MIN_BLOCKS} to {FEW_BLOCKS} the interval is Student's t over blocks (not "
            "stratified); with fewer none is given."
        )
    if len(header["contigs"]) < 3:
        yield (
            f"Intervals are conditional on these contigs: with only {' and '.join(header['contigs'])} held "
            "out they do not say how other contigs would score."
        )
    yield _power(report)


def _power(report: dict[str, Any]) -> str:
    _, here, _ = report["block_lengths"]
    if here["half_width"] is None:
        return ""
    blocks, reach = count(here["blocks"], "block"), f"{here['half_width']:.2g} bits"
    if report["main"]["full"]["difference"]:
        return f"With {blocks} a difference under {reach} cannot be seen at this confidence."
    return f"With {blocks} the loss after training is known to about {reach} at this confidence."


def _baselines(report: dict[str, Any]) -> Iterator[str]:
    trained = [row for row in report["baselines"] if row["train_bases"] is not None]
    if trained:
        yield (
            f"Baselines of an order are Markov models of {trained[0]['train_bases']:,} bases of the training "
            f"windows, forward strand, each order backed off to the shorter one with weight {BACKOFF:g}; order 0 "
            "is base composition. They see no base before the window and predict four letters, so all "
            "baselines are compared over A, C, G and T."
        )
    cv = report["cross_validation"]
    if cv:
        folds = "groups of whole contigs" if cv["folds_are"] == "contigs" else "equal stretches"
        yield (
            f"Order {cv['order']} was chosen by cross-validation on training data alone "
            f"({cv['folds']} folds, {folds}, {cv['scored_bases']:,} bases scored)."
        )
    for row in report["baselines"]:
        if row["copy"]:
            yield (
                f"The baseline {row['name']} learns within each window alone, as a compressor does: words of up to "
                f"{row['order'] + 1} bases on both strands in what of the window lies behind, and copies of "
                f"earlier sequence on either strand that agree in the last {_either(row['copy'])} bases."
            )


def _windows(report: dict[str, Any]) -> Iterator[str]:
    table, found = report["header"]["table"], report["header"]["leakage"]
    if table:
        yield (
            f"Windows: held out by {table.get('holdout')}, stride {_number(table.get('stride'))}, "
            f"{_number(table.get('guard'))} bases of guard between the splits; windows with more than "
            f"{100 * float(table.get('max_n', 1)):g} % N are left out "
            f"({_number(table.get('lost_to_n'))} bases in all)."
        )
    if found and found["audited"] and found["share"] is not None:
        looked = f"{found['kmers']:,} occurrences, {found['sampled']} of the different {found['k']}-mers"
        yield (
            f"Leakage: the share of {found['k']}-mers of the held-out windows that also stand in training "
            f"windows, on either strand ({looked}; standard error {found['error']:.2g})."
        )
    if found and found["audited"] is None:
        yield f"Leakage is not known: {found['reason']}."


def _sections(report: dict[str, Any]) -> Iterator[str]:
    block = report["method"]["block"]
    if any(table["facet"] == "mask" for table in report["strata"]):
        yield (
            "Soft-mask is the lower case of the ingested file; maskers differ by a factor of ten between "
            "assemblies, so compare it within one."
        )
    if report["contexts"]:
        yield (
            "Context: at context c a window is read in pieces of c bases, one every c / 2, of which the second "
            "half counts; all contexts are compared on the second half of every window. Seen bases end 24 bases "
            "that stand earlier in their window, on either strand; the others are novel. A gain on seen bases "
            "alone is copying."
        )
    if report["contexts"] and report["contexts"]["adaptive"]:
        yield (
            "The adaptive baseline reads the same pieces, each with nothing learned before it, and is scored on the "
            "same bases: its gain by context is what these bases offer to counting and copying alone."
        )
    if report["positions"]:
        yield (
            "Loss by position is not a controlled comparison: different positions are different bases. It "
            "has no interval, since it is summed over windows."
        )
    if report["extremes"]["worst"]:
        yield (
            f"Worst and best blocks are ranked by bits per base over A, C, G and T; blocks with less than "
            f"{100 * ENOUGH:g} % of {block:,} bases scored are not ranked. Coordinates are 1-based, both ends "
            "included."
        )
    if report["calibration"]:
        yield (
            f"Expected calibration error: the mean distance between probability and share of hits over "
            f"{PROBABILITY_BINS} bins of the four probabilities of every base, weighted by their number."
        )
    if report["strands"]:
        yield "Strands: the same windows read forward and as reverse complement, paired by block."
    yield from _seeds_and_tests(report)


def _seeds_and_tests(report: dict[str, Any]) -> Iterator[str]:
    if report["tests"]:
        yield (
            f"Tests: Student's t over blocks of the paired difference, two-sided, where there are {MIN_BLOCKS} blocks; "
            "corrected by Holm's method within each family, which allows for strata that share bases. The "
            "number of blocks stands beside every p."
        )
    if report["seeds"]:
        yield (
            f"Over seeds: {len(report['seeds']['runs'])} runs on the same bases. The interval of their mean is "
            "Student's t over runs and says nothing about other sequence; intervals of single runs are over blocks "
            "and say nothing about other seeds."
        )
    elif report["training"]:
        yield (
            "Training seeds are another source of variance than blocks; a single run says nothing about it, and "
            "no interval here holds it."
        )


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _either(lengths: list[int]) -> str:
    return " or ".join(map(str, lengths))
