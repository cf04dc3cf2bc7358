"""Found first on PYTHONPATH: rank 1 ends itself at event KILL_AT, of those after which a file is durable or named."""

from __future__ import annotations

import os
import signal
from typing import Any

if os.environ.get("RANK") == "1" and "KILL_AT" in os.environ:
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
