"""``genoctx bench io``: the table of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genoctx.cli.console import Console
from genoctx.cli.layout import number
from genoctx.errors import GenoctxError, UsageError

if TYPE_CHECKING:
    from genoctx.run.bench_io import IoResult

COLUMNS = ("reader", "form", "mbp_per_s", "least", "most", "of_genoctx", "mbp_per_cpu_s", "extra_mib")


def bench_io(console: Console, fasta: Sequence[Path], size: int, rounds: int) -> None:
    """Measure and print. Raises UsageError, InputError, WouldNotFit."""
    from genoctx.run.bench_files import io_files
    from genoctx.run.bench_io import run_io
    from genoctx.run.provenance import machine, versions

    if size < 1 or rounds < 1:
        raise UsageError("there is nothing to measure", "give a --size and --rounds of at least 1")
    with io_files(fasta, size, console.info) as files:
        results = run_io(files, rounds, console.info)
        synthetic = files.synthetic
    ours = {result.form: result for result in results if result.reader == "genoctx"}
    for form, result in ours.items():
        if result.failed:
            raise GenoctxError(
                f"genoctx could not read the {form} files: {result.failed}", "see genoctx ingest"
            )
    rows = [_row(result, ours[result.form]) for result in results]
    bases = ours["plain"].rounds[0].bases
    if console.json:
        said = {"synthetic": synthetic, "bases": bases, "machine": machine(), "versions": versions()}
        console.emit(
            {
                **said,
                "rounds": rounds,
                "readers": [_record(r, row) for r, row in zip(results, rows, strict=True)],
            }
        )
        return
    console.table("", COLUMNS, rows, stdout=True)
    for result in results:
        if result.failed:
            console.warn(f"{result.reader}, {result.form}: {result.failed}")
    _explain(console, machine(), bases, rounds, synthetic)


def _row(result: IoResult, ours: IoResult) -> list[Any]:
    if result.failed:
        return [result.reader, result.form, *[None] * (len(COLUMNS) - 2)]
    rates = [round(rate, 1) for rate in (result.rate, result.rates[0], result.rates[-1])]
    share, cpu = round(result.rate / ours.rate, 3), round(result.cpu_rate, 1)
    return [result.reader, result.form, *rates, share, cpu, round(result.extra_bytes / 2**20, 1)]


def _record(result: IoResult, row: Sequence[Any]) -> dict[str, Any]:
    seconds = [one.seconds for one in result.rounds]
    return {**dict(zip(COLUMNS, row, strict=True)), "seconds": seconds, "failed": result.failed}


def _explain(console: Console, host: dict[str, Any], bases: int, rounds: int, synthetic: bool) -> None:
    kind = "synthetic bases" if synthetic else "bases"
    console.info(
        f"{bases:,} {kind}, {rounds} rounds in turn: million bases per second, median, least and most, and per "
        "second of processor time; extra_mib is peak memory beyond the process with everything imported"
    )
    console.info(
        "genoctx validates, counts, digests and writes a durable store; pyfaidx writes its index first; "
        "the others end with codes in memory"
    )
    console.info(
        f"{host['system']} {host['release']} {host['arch']}, {host['cpus']} cpus, "
        f"{number(host['memory_bytes'] / 2**30)} GiB"
    )
