"""``genoctx doctor``: what this machine can run, and whether streamed training is exact on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from genoctx.cli.console import Console, get_console
from genoctx.errors import CheckFailed

OPS = ("kda", "kda_piece", "conv", "dsa_indexer", "dsa_attention", "mhc", "moe", "swiglu", "loss")
"""Names under which the ops ask for a backend (``genoctx_kernels.dispatch.choose``)."""


def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Test the model of this configuration.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="Test this preset's model; default nano.")
    ] = None,
    selftest: Annotated[
        bool,
        typer.Option("--selftest", help="Prove streamed = whole: all gradients, float64. Exit 3 if not."),
    ] = False,
) -> None:
    """Versions, memory, threads, devices and kernels; with --selftest a proof on your model's shape.

    genoctx doctor
    genoctx doctor run.toml --selftest
    """
    console = get_console()
    facts = _facts()
    if not console.json:
        console.table("", ("what", "here"), _rows(facts), stdout=True)
    result: dict[str, Any] = {}
    if selftest:
        result = _selftest(console, config, preset)
    if console.json:
        console.emit({"machine": facts, **({"selftest": result} if selftest else {})})
    if selftest and not result["passed"]:
        raise CheckFailed(
            f"streamed and whole-window gradients differ by {result['gradient']:.1e} in {result['worst']}",
            "please report this with the output of genoctx doctor --json",
        )


def _facts() -> dict[str, Any]:
    import torch

    from genoctx.run.machine import available_memory, total_memory
    from genoctx.run.provenance import machine, versions

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    host = machine()
    return {
        **versions(),
        "system": f"{host['system']} {host['release']} {host['arch']}",
        "cpus": host["cpus"],
        "threads": torch.get_num_threads(),
        "memory": f"{total_memory() / 2**30:.1f} GiB, {available_memory() / 2**30:.1f} GiB free to this process",
        "devices": ", ".join(gpus) or "cpu (no CUDA device visible)",
        "kernels": _kernels(),
    }


def _kernels() -> dict[str, dict[str, str]]:
    """The backend of every op on this machine, and why it is not Triton (empty where it is)."""
    from genoctx_kernels.dispatch import TORCH, TRITON, machine_reason

    reason = machine_reason()
    return {op: {"backend": TORCH if reason else TRITON, "reason": reason} for op in OPS}


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What is printed: a line per fact, and one per op."""
    rows = [(name, str(value)) for name, value in facts.items() if name != "kernels"]
    for op, kernel in facts["kernels"].items():
        rows.append(
            (f"kernel {op}", "Triton" if not kernel["reason"] else f"plain torch: {kernel['reason']}")
        )
    return rows


def _selftest(console: Console, config: Path | None, preset: str | None) -> dict[str, Any]:
    from genoctx.config import load_model_config
    from genoctx.run.selftest import LIMIT, selftest

    found = selftest(load_model_config(config, preset or ("nano" if config is None else None)))
    c = found.comparison
    console.info(
        f"selftest {'passed' if found.passed else 'FAILED'}: {found.tokens} tokens in {found.chunks} chunks, "
        f"{c.parameters} gradients within {c.gradient:.1e} (limit {LIMIT:.0e}, worst {c.worst}), "
        f"losses within {c.loss:.1e}"
    )
    return {
        "passed": found.passed,
        "tokens": found.tokens,
        "chunks": found.chunks,
        "gradient": c.gradient,
        "worst": c.worst,
        "loss": c.loss,
        "parameters": c.parameters,
        "same_choices": c.same_choices,
    }
