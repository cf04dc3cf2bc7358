"""``genoctx bench homes``: seconds and memory of a step with things in mapped files, printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from genoctx.cli.console import Console
from genoctx.errors import CheckFailed, UsageError
from genoctx.sizes import format_size


def bench_homes(
    console: Console, preset: str, context: int, chunk: int, threads: int, rounds: int, folder: Path
) -> None:
    """Measure and print. Raises UsageError; CheckFailed (exit 3) where files cost more than a tenth."""
    from genoctx.run.bench_homes import FILES, LIMIT, homes_record, run_homes
    from genoctx.run.provenance import machine, versions

    if rounds < 1 or context < 2 or chunk < 1:
        raise UsageError("there is nothing to measure", "for instance --contexts 8k --rounds 3")
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", "bench homes FOLDER: where the mapped files go")
    found = run_homes(preset, context, chunk, threads, rounds, folder, console.info)
    base, files = found[0], next(v for v in found if v.name == FILES)
    if console.json:
        said = {"machine": machine(), "versions": versions(), "preset": preset, "context": context}
        records = [homes_record(variant, base) for variant in found]
        console.emit({**said, "chunk": chunk, "threads": threads, "rounds": rounds, "homes": records})
    else:
        rows: list[tuple[Any, ...]] = []
        for variant in found:
            ratios, seconds = variant.ratios(base), sorted(turn.seconds for turn in variant.turns)
            peak = max(turn.peak_bytes for turn in variant.turns)
            anonymous = max(turn.anonymous_bytes for turn in variant.turns)
            spread = ("", "", "") if variant is base else (variant.ratio(base), min(ratios), max(ratios))
            rows.append(
                (
                    variant.name,
                    f"{seconds[len(seconds) // 2]:.2f}",
                    *(f"{ratio:.3f}" if ratio else "" for ratio in spread),
                    round(peak / 2**20),
                    round(anonymous / 2**20),
                )
            )
        columns = ("in files", "s/step", "of memory", "least", "most", "peak MiB", "not of files MiB")
        console.table("", columns, rows, stdout=True)
        console.info(
            f"{preset}, one step of {format_size(context)} in chunks of {format_size(chunk)}, float32, "
            f"{threads or 'all'} threads, {rounds} rounds in turn; weights and moments are the same to the last bit"
        )
    if files.ratio(base) > LIMIT:
        raise CheckFailed(
            f"a step with everything in files takes {files.ratio(base):.2f} times as long",
            "measure on an idle machine; a slow disk wants homes.folder elsewhere",
        )
