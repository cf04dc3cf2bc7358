"""Found first on PYTHONPATH: kills rank KILL_RANK at event KILL_AT, of those that name a file or make it durable."""

from __future__ import annotations

import os
import signal
from typing import Any

_first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
if "KILL_AT" in os.environ and os.environ.get("RANK") == os.environ["KILL_RANK"] and _first_start:
    left = iter(range(int(os.environ["KILL_AT"]) - 1, -1, -1))

    def _watched(name: str) -> None:
        before = getattr(os, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return before(*arguments, **named)

        setattr(os, name, watched)

    for name in ("fsync", "replace", "rename"):
        _watched(name)
