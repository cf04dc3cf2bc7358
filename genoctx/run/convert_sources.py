"""Where the parts of a conversion come from: weights, adapters to merge into them, and the base they began with."""

from __future__ import annotations

import json
from pathlib import Path

from genoctx.errors import UsageError
from genoctx.model.hub_fit import CONFIG_FILE
from genoctx.model.lora_file import AdapterFile, fingerprint, is_adapter
from genoctx.run.monitor import Monitor
from genoctx.run.rundir import RESOLVED, checkpoint_at

CONVERSION_FILE = "conversion.json"
"""In a result of the form ``genoctx``: what it was made of."""

_LONGEST_CHAIN = 16  # runs that started from one another


def with_adapter(source: Path, adapter: Path | None, monitor: Monitor) -> tuple[Path, AdapterFile | None]:
    """The weights that are to be converted, and the adapters to merge into them, if any.

    A ``source`` that holds adapters itself stands for the weights beside which they were trained, and these
    adapters. Warns where an adapter was trained beside other weights than those it is merged into.
    """
    if is_adapter(source):
        if adapter is not None:
            raise UsageError(
                f"{source} holds adapters itself",
                f"merge them first: genoctx convert {source} DST --to genoctx",
            )
        file = AdapterFile(source)
        checkpoint_at(file.base)  # refused here, by name, where the weights are gone
        if is_adapter(file.base):
            raise UsageError(
                f"the adapters in {source} stand beside other adapters, in {file.base}",
                f"merge those first: genoctx convert {file.base} DST --to genoctx",
            )
        monitor.info(f"{source} holds adapters: they are merged into {file.base}")
        source, adapter = file.base, source
    elif adapter is None:
        return source, None
    else:
        # a directory that PEFT wrote has no config.json
        adapter = adapter if is_adapter(adapter) else checkpoint_at(adapter)
        if not is_adapter(adapter):
            raise UsageError(
                f"{adapter} holds no adapters (no adapter_config.json)",
                "give a checkpoint of a run with lora.rank > 0, or a directory that PEFT wrote",
            )
        file = AdapterFile(adapter)
    if file.base_digest and file.base_digest != fingerprint(source):
        monitor.warn(
            f"the adapters in {adapter} were trained beside other weights than {source}: {file.base}"
        )
    return source, file


def base_of(checkpoint: Path) -> Path:
    """The checkpoint at the beginning: back over ``train.init`` of runs and over conversions.

    The checkpoint itself where nothing is known of its past, or its past is gone.
    """
    found = checkpoint
    for _ in range(_LONGEST_CHAIN):
        before = _before(checkpoint)
        if before is None or not (before / CONFIG_FILE).is_file():
            break
        checkpoint = before
        if not is_adapter(before):
            found = before
    return found


def _before(checkpoint: Path) -> Path | None:
    resolved = checkpoint.resolve()
    try:
        if (note := resolved / CONVERSION_FILE).is_file():
            found = json.loads(note.read_text())["source"]
        else:
            found = json.loads((resolved.parents[1] / RESOLVED).read_text())["train"]["init"]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return None
    return Path(found) if isinstance(found, str) else None
