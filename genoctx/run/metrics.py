"""``metrics.jsonl``: one JSON object per optimizer step, appended, and cut back on resume."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from genoctx.errors import InputError
from genoctx.files import write_atomic

SCHEMA = 1


class MetricsLog:
    """The open metrics file of a run. Readers may follow it: every line is written in one piece."""

    def __init__(self, path: Path, *, after_step: int = 0) -> None:
        """Keep what ``path`` holds up to ``after_step``, the checkpoint the run continues from."""
        self.path = path
        _cut_back(path, after_step)
        self._file = path.open("a", encoding="utf-8")

    def append(
        self,
        *,
        step: int,
        bases: int,
        loss_nats: float,
        grad_norm: float,
        lr: float,
        bases_per_s: float,
        host_peak_bytes: int,
        **more: Any,
    ) -> dict[str, Any]:
        """Write the line of ``step`` (1 is the first) and return it.

        ``bases`` are all bases scored so far, ``loss_nats`` the mean of this step; numbers that are
        not finite become null, because JSON has no NaN.
        """
        line = {
            "schema": SCHEMA,
            "t": round(time.time(), 3),
            "step": step,
            "bases": bases,
            "loss_nats": loss_nats,
            "loss_bits": loss_nats / math.log(2),
            "grad_norm": grad_norm,
            "lr": lr,
            "bases_per_s": bases_per_s,
            "host_peak_bytes": host_peak_bytes,
            **more,
        }
        line = {key: _finite(value) for key, value in line.items()}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        return line

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a torn last line is left out. Raises InputError on any other damage."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found: list[dict[str, Any]] = []
    for number, text in enumerate(lines[:-1], 1):  # what follows the last newline is empty or torn
        try:
            line = json.loads(text)
            line["step"] = int(line["step"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path}:{number} is not a metrics line", "restore the file or remove the line"
            ) from error
        found.append(line)
    return found


def _cut_back(path: Path, after_step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in read_metrics(path) if line["step"] <= after_step]
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in kept)
    if text != path.read_text(encoding="utf-8"):
        write_atomic(path, text)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
