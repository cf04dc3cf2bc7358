"""The checkpoints of a run while it goes on: begun, complete, and then given their name."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from genoctx.engine.checkpoint import LoopState
from genoctx.run.ranks import Ranks
from genoctx.run.rundir import RunDir
from genoctx.run.trainer import Trainer


class Saver:
    """Writes one checkpoint at a time; on many ranks, which call all of this together, while training goes on."""

    def __init__(self, run: RunDir, trainer: Trainer, ranks: Ranks, keep: int, step: int) -> None:
        """``step``: that of the checkpoint the run goes on from; -1 where there is none."""
        self.run, self.trainer, self.ranks, self.keep = run, trainer, ranks, keep
        self.step, self.time = step, time.monotonic()
        """Of the newest checkpoint that was begun."""
        self._writing: tuple[Path, int] | None = None

    def begin(self, state: LoopState) -> None:
        """Start to write a checkpoint of ``state``, unless there is one; GenoctxError where the disk refuses."""
        if self.step == state.step:
            return
        self.finish()
        self.ranks.at(f"copying the checkpoint of step {state.step}", patient=True)
        folder = self.ranks.once(self.run.new_checkpoint_dir)
        self._writing = folder, state.step
        try:
            self.trainer.begin_save(folder, state)
            self.settle()
        except BaseException:
            self._drop(folder)
            raise
        self.step, self.time = state.step, time.monotonic()

    def settle(self) -> None:
        """Commit the checkpoint that is being written, if it is complete by now."""
        if self._writing is not None and self.trainer.is_saved():
            self.finish()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written and commit it; GenoctxError where it cannot be."""
        if self._writing is None:
            return
        folder, step = self._writing
        self.ranks.at(f"writing the checkpoint of step {step}", patient=True)
        try:
            self.trainer.end_save()
            self.ranks.once(lambda: self._commit(folder, step))
        except BaseException:
            self._drop(folder)
            raise
        self._writing = None

    def _commit(self, folder: Path, step: int) -> None:
        self.run.commit_checkpoint(folder, step)
        self.run.prune(self.keep)

    def _drop(self, folder: Path) -> None:
        """A full disk is not helped by half a checkpoint."""
        self._writing = None
        if self.ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
