"""``genoctx doctor``: what this machine can run, and whether streamed training is exact on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from genoctx.cli.console import Console, get_console
from genoctx.errors import CheckFailed


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
        console.table("", ("what", "here"), [(k, str(v)) for k, v in facts.items()], stdout=True)
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
        "kernels": "plain torch for kda, dsa, mhc, conv, loss, swiglu (no Triton kernels in this version)",
    }


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
