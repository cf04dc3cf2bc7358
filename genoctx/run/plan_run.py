"""What a run really takes, for ``genoctx bench plan``: ``genoctx train`` of a config on random bases, in a process of
its own, with its evaluations and checkpoints.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import numpy as np

from genoctx.config import Config, DataConfig
from genoctx.errors import GenoctxError
from genoctx.genome.store import ingest
from genoctx.genome.windows import cut, write_table

STEPS = 8
"""The heap settles over as many, each a little higher than the last."""
_WINDOWS = 4
"""Of which the last is held out."""


def peak_of_a_run(config: Config, length: int) -> int:
    """Most bytes resident while ``config`` trains STEPS steps on windows of ``length`` bases.

    GenoctxError when the process dies.
    """
    with tempfile.TemporaryDirectory(prefix="genoctx-bench-") as name:
        folder = Path(name)
        data = _data(folder, length, _WINDOWS + config.train.batch)
        train = replace(config.train, steps=STEPS, windows_per_step=config.train.batch)
        stream = replace(config.stream, fit="off")
        (folder / "run.toml").write_text(_toml(replace(config, data=data, train=train, stream=stream)))
        # without the process's own heap settings, which would move the peak
        env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        command = [sys.executable, "-m", "genoctx", "train", name + "/run.toml", "-o", name + "/run", "-q"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise GenoctxError(f"a run of {length:,} bases ended with status {done.returncode}: {last[0]}")
        steps = (folder / "run/metrics.jsonl").read_text().splitlines()
        return max(int(json.loads(step)["host_peak_bytes"]) for step in steps)


def _toml(config: Config) -> str:
    """``config`` as a file, with everything in it that has a value."""
    lines = []
    for section in fields(config):
        if not is_dataclass(values := getattr(config, section.name)):
            continue
        lines.append(f"[{section.name}]")
        for key in fields(values):
            value = getattr(values, key.name)
            value = str(value) if isinstance(value, Path) else value
            if value is not None:
                lines.append(f"{key.name} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _data(folder: Path, length: int, windows: int) -> DataConfig:
    """A store of random bases and its windows; the last one is held out."""
    letters = np.frombuffer(b"ACGT", np.uint8)[np.random.default_rng(0).integers(0, 4, windows * length)]
    fasta = folder / "random.fa"
    fasta.write_bytes(
        b">train\n" + letters[:-length].tobytes() + b"\n>held\n" + letters[-length:].tobytes() + b"\n"
    )
    table, _ = cut(ingest(fasta, folder / "store"), context=length, holdout="held")
    write_table(table, folder / "windows.bed")
    return DataConfig(store=folder / "store", windows=folder / "windows.bed")
