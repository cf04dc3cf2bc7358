"""``genoctx bench engine`` and ``bench kernels``: tables of tokens per second beside peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from genoctx.cli.console import Console
from genoctx.errors import UsageError
from genoctx.sizes import format_size

if TYPE_CHECKING:
    from genoctx.run.bench_engine import Side
    from genoctx.run.bench_gpu import Measured
    from genoctx.run.bench_kernels import Timed
    from genoctx.run.bench_profile import Profile


def bench_engine(
    console: Console, preset: str, contexts: Sequence[int], chunk: int, threads: int, rounds: int, peer: str
) -> None:
    """Measure full steps and print. Raises UsageError, CheckFailed."""
    from genoctx.run.bench_engine import engine_record, run_engine
    from genoctx.run.provenance import machine, versions

    if rounds < 1 or min(contexts) < 2 or chunk < 1:
        raise UsageError("there is nothing to measure", "for instance --contexts 2k,8k --rounds 3")
    results = run_engine(preset, contexts, chunk, threads, rounds, console.info, peer)
    if console.json:
        said = {"machine": machine(), "versions": versions(), "preset": preset, "dtype": "float32"}
        sides = [engine_record(side) for pair in results for side in pair]
        console.emit({**said, "chunk": chunk, "threads": threads, "rounds": rounds, "sides": sides})
        return
    rows = [_engine_row(side, pair[0]) for pair in results for side in pair]
    columns = ("window", "step of", "tokens_per_s", "least", "most", "genoctx_is", "peak_gib")
    console.table("", columns, rows, stdout=True)
    for side in (side for pair in results for side in pair if side.failed):
        console.warn(f"{side.name}, {format_size(side.context)}: {side.failed}")
    _explain(console, f"full training step of {preset}, chunks of {format_size(chunk)}", threads, rounds)


def _engine_row(side: Side, ours: Side) -> list[Any]:
    if side.failed:
        return [format_size(side.context), side.name, *[None] * 5]
    ratio = "" if side is ours else f"{ours.rate / side.rate:.1f}x"
    rates = [round(rate) for rate in (side.rate, side.rates[0], side.rates[-1])]
    return [format_size(side.context), side.name, *rates, ratio, round(side.peak_bytes / 2**30, 2)]


def bench_kernels(console: Console, contexts: Sequence[int], threads: int, rounds: int) -> None:
    """Measure ops forward and backward and print. Raises UsageError, CheckFailed."""
    import torch

    from genoctx.engine.allocator import keep_freed_memory
    from genoctx.run.bench_kernels import run_kernels
    from genoctx.run.provenance import machine, versions

    if rounds < 1 or min(contexts) < 64 or any(context % 64 for context in contexts):
        raise UsageError("a peer takes multiples of 64 tokens", "for instance --contexts 8k --rounds 5")
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    results = [(context, run_kernels(context, rounds, console.info)) for context in contexts]
    if console.json:
        ops = [
            {
                "context": context,
                "op": form.op,
                "form": form.form,
                "failed": form.failed,
                "seconds": form.seconds,
            }
            for context, found in results
            for forms in found
            for form in forms
        ]
        said = {"machine": machine(), "versions": versions(), "threads": threads, "dtype": "float32"}
        console.emit({**said, "rounds": rounds, "ops": ops})
        return
    rows = [_kernel_row(c, form, forms[0]) for c, found in results for forms in found for form in forms]
    columns = ("tokens", "op", "form", "ms", "least", "most", "genoctx_is")
    console.table("", columns, rows, stdout=True)
    _explain(console, "forward and backward, widths of nano", threads, rounds)


def _kernel_row(context: int, form: Timed, ours: Timed) -> list[Any]:
    if form.failed:
        return [format_size(context), form.op, form.form, None, None, None, form.failed]
    ratio = "" if form is ours else f"{form.median / ours.median:.1f}x"
    times = [round(1e3 * s, 1) for s in (form.median, min(form.seconds), max(form.seconds))]
    return [format_size(context), form.op, form.form, *times, ratio]


def _explain(console: Console, what: str, threads: int, rounds: int) -> None:
    from genoctx.run.provenance import machine, versions

    host, used = machine(), threads or "all"
    console.info(f"{what}, float32, {used} threads, {rounds} rounds in turn: median, least and most")
    console.info(
        f"{host['system']} {host['release']} {host['arch']}, {host['cpus']} cpus, torch {versions()['torch']}"
    )


def bench_profile(console: Console, preset: str, contexts: Sequence[int], chunk: int, threads: int) -> None:
    """Measure rates and profile steps, and print. Raises UsageError."""
    import torch

    from genoctx.engine.allocator import keep_freed_memory
    from genoctx.run.bench_profile import measure_rates, profile_step
    from genoctx.run.provenance import machine, versions

    if min(contexts) < 2 or chunk < 1:
        raise UsageError("there is nothing to measure", "for instance --contexts 16k,64k")
    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    rates, bandwidth = measure_rates()
    steps = [profile_step(preset, context, chunk) for context in contexts]
    if console.json:
        said = {"machine": machine(), "versions": versions(), "preset": preset, "chunk": chunk}
        console.emit(
            {**said, "flops_per_s": rates, "bytes_per_s": bandwidth, "steps": [vars(s) for s in steps]}
        )
        return
    shown = [(f"product {shape}", f"{rate / 1e9:.0f} GFLOP/s") for shape, rate in rates.items()]
    console.table("", ("what", "best"), [*shown, ("copy", f"{bandwidth / 1e9:.1f} GB/s")], stdout=True)
    best = max(rates.values())
    for step in steps:
        rows = [_profile_row(step, kind, best) for kind in step.shares]
        flops = sum(step.flops.values())
        title = (
            f"{preset}, {format_size(step.tokens)} tokens: {step.seconds:.2f} s, "
            f"{flops / step.tokens / 1e6:.1f} MFLOP a token in products, "
            f"{100 * flops / step.seconds / best:.0f} % of the best product"
        )
        console.info(title)
        columns = ("where", "share", "seconds", "gflop_in_products", "seconds_at_best", "seconds_beyond")
        console.table("", columns, rows, stdout=True)
    _explain(console, f"chunks of {format_size(chunk)}", threads, 1)


def _profile_row(step: Profile, kind: str, best: float) -> list[str]:
    """What its products would take at the ``best`` rate (FLOP per second), and the seconds that are not explained."""
    share, flops = step.shares[kind], step.flops[kind]
    seconds = share * step.seconds
    spent = (seconds, flops / 1e9, flops / best, seconds - flops / best)
    return [kind, f"{100 * share:.1f} %", *(f"{x:.2f}" for x in spent)]


def bench_gpu(console: Console, preset: str, contexts: Sequence[int], chunk: int, rounds: int) -> None:
    """Measure on the GPU and print. Raises UsageError, CheckFailed."""
    from genoctx.run.bench_gpu import card, run_gpu
    from genoctx.run.provenance import versions

    if rounds < 1 or min(contexts) < 2 or chunk < 1:
        raise UsageError("there is nothing to measure", "for instance --contexts 16k,1M --rounds 3")
    name = card()
    results = run_gpu(preset, contexts, chunk, rounds)
    if console.json:
        said = {"card": name, "versions": versions(), "preset": preset, "dtype": "bfloat16", "chunk": chunk}
        console.emit({**said, "rounds": rounds, "results": [vars(m) for m in results]})
        return
    rows = [_gpu_row(m) for m in results]
    columns = ("tokens", "what", "form", "tokens_per_s", "least_ms", "most_ms", "peak_gib", "note")
    console.table("", columns, rows, stdout=True)
    console.info(
        f"{name}, bfloat16, {rounds} rounds; KDA: {_KDA}; step: {preset}, chunks of {format_size(chunk)}"
    )


_KDA = "forward and backward, 64 heads x 128"


def _gpu_row(m: Measured) -> list[Any]:
    if m.failed:
        return [format_size(m.tokens), m.what, m.form, None, None, None, None, m.failed]
    times = [round(1e3 * s, 1) for s in (min(m.seconds), max(m.seconds))]
    return [format_size(m.tokens), m.what, m.form, round(m.rate), *times, round(m.peak_bytes / 2**30, 2), ""]
