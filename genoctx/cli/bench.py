"""``genoctx bench``: measured figures of this machine, with what they were measured on."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from genoctx.cli.console import Console, get_console
from genoctx.errors import UsageError


class What(enum.StrEnum):
    """What is measured."""

    length = "length"
    engine = "engine"
    kernels = "kernels"
    profile = "profile"
    gpu = "gpu"
    plan = "plan"
    homes = "homes"
    io = "io"


class Peer(enum.StrEnum):
    """What bench engine measures beside ours."""

    transformers = "transformers"
    whole = "whole"


_OPTIONS = {
    What.length: ("contig", "start", "contexts", "preset", "chunk", "threads"),
    What.engine: ("contexts", "preset", "chunk", "threads", "rounds", "against"),
    What.kernels: ("contexts", "threads", "rounds"),
    What.profile: ("contexts", "preset", "chunk", "threads"),
    What.gpu: ("contexts", "preset", "chunk", "rounds"),
    What.plan: ("rounds",),
    What.homes: ("contexts", "preset", "chunk", "threads", "rounds"),
    What.io: ("size", "rounds"),
}
_CONTEXTS = {
    What.length: "16k,64k,256k,1M",
    What.engine: "2k,8k",
    What.kernels: "8k",
    What.profile: "16k",
    What.gpu: "16k,64k,256k,1M",
    What.homes: "8k",
}


def bench(
    ctx: typer.Context,
    what: Annotated[
        What,
        typer.Argument(help="length, profile, homes: our own step. engine, kernels, gpu, io: beside peers."),
    ],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="length: a genome store. io: FASTA files; without, a synthetic genome. homes: where files go.",
            metavar="[STORE | FASTA... | FOLDER]",
            show_default=False,
        ),
    ] = None,
    contig: Annotated[str, typer.Option(help="Contig the windows are cut from; default: the longest.")] = "",
    start: Annotated[str, typer.Option(help="First base of the windows, 0-based.")] = "0",
    contexts: Annotated[
        str | None, typer.Option(help="Window lengths, separated by commas.", show_default=False)
    ] = None,
    preset: Annotated[str, typer.Option(help="Model preset, freshly drawn; gpu: small.")] = "nano",
    chunk: Annotated[str, typer.Option(help="Tokens per chunk; gpu: 16k.")] = "2k",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    size: Annotated[str, typer.Option(help="io: bases of the synthetic genome.")] = "200M",
    rounds: Annotated[int, typer.Option(help="Beside peers: how often each has its turn.")] = 3,
    against: Annotated[
        Peer, typer.Option(help="engine: Hugging Face, or our layers over the whole window with checkpoints.")
    ] = Peer.transformers,
) -> None:
    """Measure this machine.

    length: seconds, bases/s and peak memory of one exact training step (both sweeps and the optimizer);
    each length runs in a process of its own.
    engine: a full step beside Hugging Face's glm5_next (extra hf), same weights and tokens; or beside the
    usual way, the whole window in one piece with every layer checkpointed (--against whole).
    kernels: ops forward and backward beside Hugging Face's and fla's plain torch, and the equations.
    profile: rates of this machine (products of matrices, memory) and where the time of a step goes.
    gpu: KDA beside plain torch and fla's kernel, and bfloat16 steps of a mid-size model, on an NVIDIA GPU.
    plan: predicted against measured peak memory, eight shapes a round (three rounds: 24); exit 3 over 5 %.
    homes: a step with everything in mapped files, and each category alone, beside memory; exit 3 over 10 %.
    io: ingest beside Biopython and pyfaidx on the same files, plain and gzip.

    genoctx bench length stores/chrX --contexts 16k,64k --start 1M
    genoctx bench engine --contexts 2k,4k,8k
    genoctx bench homes
    genoctx bench io genome.fa.gz
    """
    from genoctx.sizes import parse_size

    console = get_console()
    _refuse_others(ctx, what)
    wanted = _CONTEXTS.get(what) if contexts is None else contexts
    lengths = [] if wanted is None else [parse_size(text) for text in wanted.split(",")]
    if what in (What.engine, What.kernels, What.profile, What.gpu):
        from genoctx.cli.bench_speed import bench_engine, bench_gpu, bench_kernels, bench_profile

        if paths:
            raise UsageError(f"bench {what.value} reads no file", f"genoctx bench {what.value}")
        if what == What.engine:
            bench_engine(console, preset, lengths, parse_size(chunk), threads, rounds, against.value)
        elif what == What.profile:
            bench_profile(console, preset, lengths, parse_size(chunk), threads)
        elif what == What.gpu:
            shape = preset if _given(ctx, "preset") else "small"
            bench_gpu(console, shape, lengths, parse_size(chunk if _given(ctx, "chunk") else "16k"), rounds)
        else:
            bench_kernels(console, lengths, threads, rounds)
        return
    if what == What.plan:
        from genoctx.cli.bench_plan import bench_plan

        if paths:
            raise UsageError("bench plan reads no file", "genoctx bench plan")
        bench_plan(console, rounds)
        return
    if what == What.homes:
        from genoctx.cli.bench_homes import bench_homes

        if len(lengths) != 1 or len(paths or []) > 1:
            raise UsageError("bench homes takes one window length and one folder", "genoctx bench homes")
        folder = paths[0] if paths else Path()
        bench_homes(console, preset, lengths[0], parse_size(chunk), threads, rounds, folder)
        return
    if what == What.io:
        from genoctx.cli.bench_io import bench_io

        bench_io(console, paths or [], parse_size(size), rounds)
        return
    if paths is None or len(paths) != 1:
        raise UsageError("bench length measures one store", "genoctx bench length STORE")
    _bench_length(console, paths[0], contig, start, lengths, preset, chunk, threads)


def _given(ctx: typer.Context, name: str) -> bool:
    """Whether the option was typed."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_others(ctx: typer.Context, what: What) -> None:
    """UsageError for an option that means nothing here."""
    for name in dict.fromkeys(option for options in _OPTIONS.values() for option in options):
        if name not in _OPTIONS[what] and _given(ctx, name):
            raise UsageError(f"bench {what.value} has no --{name}", "see genoctx bench --help")


def _bench_length(
    console: Console,
    store: Path,
    contig: str,
    start: str,
    lengths: list[int],
    preset: str,
    chunk: str,
    threads: int,
) -> None:
    from genoctx.genome.store import GenomeStore
    from genoctx.run.bench import refuse_unfit, run_length
    from genoctx.run.provenance import machine, versions
    from genoctx.sizes import format_size, parse_size

    opened, first, tokens = GenomeStore.open(store), parse_size(start), parse_size(chunk)
    if tokens < 1:
        raise UsageError(f"--chunk {chunk} holds no token", "write it like 2k")
    there = opened.contig(contig) if contig else max(opened.contigs, key=lambda c: c.length)
    for context in lengths:  # all of them before the first is measured
        refuse_unfit(there, first, context)
    results = []
    for context in lengths:
        console.info(f"one training step of {preset} on {format_size(context)} bases of {there.name}")
        results.append(run_length(store, there.name, first, context, preset, tokens, threads))
    if console.json:
        console.emit(
            {
                "machine": machine(),
                "versions": versions(),
                "preset": preset,
                "lengths": [vars(r) for r in results],
            }
        )
        return
    gib = 1 << 30
    rows = [
        (
            format_size(r.context),
            f"{r.forward_s:.1f}",
            f"{r.backward_s:.1f}",
            f"{r.tokens_per_s:.0f}",
            f"{r.peak_bytes / gib:.2f}",
            f"{r.cache_bytes / gib:.3f}",
            f"{r.graph_bytes / gib:.3f}",
        )
        for r in results
    ]
    columns = ("window", "forward s", "backward s", "bases/s", "peak GiB", "caches GiB", "graph GiB")
    console.table(f"{preset}, chunks of {chunk}, float32", columns, rows, stdout=True)
