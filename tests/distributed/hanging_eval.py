"""``genoctx eval`` of two ranks that wait for each other for four seconds, instead of ten minutes; the second stops."""

from __future__ import annotations

import os
import signal
import sys

from genoctx.cli import app
from genoctx.run import eval_checkpoint, train_ranks
from genoctx.run.ranks import Joined


class Hanging(Joined):
    def at(self, where: str, *, patient: bool = False) -> None:
        super().at(where, patient=patient)
        if self.rank == 1 and where == "scoring":
            os.kill(os.getpid(), signal.SIGSTOP)


eval_checkpoint.HANG_SECONDS = 4.0
train_ranks.Joined = Hanging  # type: ignore[misc]
sys.exit(app.run(["eval", *sys.argv[1:]]))
