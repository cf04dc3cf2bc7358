"""The journal of a step: an interrupted window goes on from its last finished chunk, bit for bit.

What the forward sweep leaves is append-only, so each entry holds only the chunks since the one before.
What the backward sweep changes (gradient sums, d-latents, the leaving carry's gradients, losses) is one
file, replaced at once:

step/sums.safetensors                         micro-batch, sweep, chunks left, and all sums
step/batch-0000-chunks-000000-000016.safetensors   what chunks 0..15 of that micro-batch left

Every file names the step and what determines it: run, windows, and how ranks share them. A journal of
another step is left alone until this one has something to say, or is done; then those that another number of ranks
left go, too: they stand on weights that were made in another way, to the last bit. Where many ranks walk a
step, each has a journal, and keeps the sums before its last ones too: all go on from the latest place that all
of them have.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from genoctx.engine.agreement import START, Alone, Place
from genoctx.engine.journal_tape import forward_tensors, replay_chunk, restore_sums, sum_tensors
from genoctx.engine.tape import Losses, Tape
from genoctx.engine.tensorfile import read_about, read_tensors, write_tensors
from genoctx.errors import GenoctxError

_SUMS, _BEFORE = "sums.safetensors", "sums-before.safetensors"
_BROKEN = (SafetensorError, OSError, ValueError, KeyError, TypeError)


class Sums(Protocol):
    """Who holds the gradient sums of a step: an optimizer, or the ranks' halves of one."""

    @property
    def device(self) -> torch.device: ...

    def gradients(self) -> Iterator[tuple[str, Tensor]]: ...

    def add_gradient(self, name: str, gradient: Tensor) -> None: ...


class Journal:
    """The journals of a run's steps, one at a time, in ``folder``."""

    def __init__(self, folder: Path, every_seconds: float, warn: Callable[[str], None]) -> None:
        """``every_seconds`` since the last entry a finished chunk makes a new one; 0: only when asked to stop."""
        self.folder, self.every_seconds, self.warn = folder, every_seconds, warn
        self.ranks = Alone()
        self._quiet = False

    def begin(self, key: str, sums: Sums) -> tuple[int, Losses]:
        """Start or go on with the step that ``key`` names: its first unfinished micro-batch, losses before it.

        Puts the gradient sums of an interrupted step back into ``sums``.
        """
        self.key, self.sums = key, sums
        self.entered = time.monotonic()
        for half in self.folder.glob(".*.tmp-*"):
            half.unlink(missing_ok=True)
        kept = self._places()
        self.place = self.ranks.common({START, *kept})
        self._source = kept.get(self.place)
        self._mine = self.place != START
        if not self._mine and kept:
            self.discard()
        self.about: dict[str, Any] = {"batch": 0, "left": None}
        if self._source is not None:
            self.about = _about(self.folder / self._source) or self.about
            for name, tensor in self.read(self._source, sums.device).items():
                if name.startswith("gradient."):
                    sums.add_gradient(name.removeprefix("gradient."), tensor)
        self.before = Losses(**self.about.get("before", {}))
        return self.place.batch, self.before

    def passed(self, chunks: int) -> int:
        """How many of the ``chunks`` of its first unfinished micro-batch the backward sweep has done."""
        return chunks + self.place.done if self.place.backward else 0

    def _places(self) -> dict[Place, str | None]:
        """Where this step could go on, and in which file the sums are that it needs there."""
        found: dict[Place, str | None] = dict.fromkeys(self._forward_places(0))
        for name in (_BEFORE, _SUMS):
            about = _about(self.folder / name)
            if about is None or about["key"] != self.key:
                continue
            batch, left = int(about["batch"]), about["left"]
            if left is None:
                found |= dict.fromkeys(self._forward_places(batch), name)
            else:
                found[Place(batch, True, -left)] = name
        return found

    def _forward_places(self, batch: int) -> list[Place]:
        start = [Place(batch)] if batch else []
        return start + [Place(batch, False, end) for _, end, _ in self.segments(batch)]

    def window(self, batch: int, before: Losses) -> WindowJournal:
        """The journal of micro-batch ``batch``; ``before``: losses of those before it."""
        return WindowJournal(self, batch, Losses(**asdict(before)))

    def segments(self, batch: int) -> list[tuple[int, int, Path]]:
        """(first chunk, end, file) of the unbroken sequence of entries from chunk 0 on."""
        found: list[tuple[int, int, Path]] = []
        for path in sorted(self.folder.glob(f"batch-{batch:04d}-chunks-*.safetensors")):
            about = _about(path)
            if about is None or about["key"] != self.key or about["first"] != (found[-1][1] if found else 0):
                break
            found.append((about["first"], about["end"], path))
        return found

    def read(self, name: str, device: Any) -> dict[str, Tensor]:
        """Tensors of an entry; GenoctxError when it cannot be read."""
        try:
            return read_tensors(self.folder / name, device)
        except _BROKEN as error:
            raise GenoctxError(
                f"cannot read {self.folder / name}: {error}",
                f"remove {self.folder}: the step starts over and ends with the same weights",
            ) from error

    def write(self, name: str, tensors: list[tuple[str, Tensor]], about: dict[str, Any]) -> None:
        """One entry; the first of a step removes what other steps left."""
        if not self._mine:
            self.discard()
            self._mine = True
        self.folder.mkdir(exist_ok=True)
        if name == _SUMS and self.ranks.generations > 1 and (self.folder / _SUMS).exists():
            os.replace(self.folder / _SUMS, self.folder / _BEFORE)
        write_tensors(self.folder / name, tensors, {**about, "key": self.key})

    def discard(self) -> None:
        """Forget the step: it is done, or starts over; and whatever other numbers of ranks have left."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for left in self.ranks.foreign(self.folder):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        self._mine = False

    def failed(self, error: Exception) -> None:
        """Say once that the disk takes no entry; the step goes on, it could only not be taken up here."""
        if not self._quiet:
            self.warn(f"cannot keep the unfinished window in {self.folder}: {error}; going on without")
        self._quiet = True


class WindowJournal:
    """One micro-batch of a journal."""

    def __init__(self, journal: Journal, batch: int, before: Losses) -> None:
        self.journal, self.batch, self.before = journal, batch, before
        self.written = 0
        """Chunks of the forward sweep that are in files."""
        self.has_sums = batch == 0 or (batch == journal.place.batch and journal._source is not None)

    def restore(self, tape: Tape) -> None:
        """Put ``tape``, just opened, where the interrupted window stood."""
        journal, place = self.journal, self.journal.place
        if place.batch != self.batch:
            return
        left = -place.done if place.backward else None
        for first, end, path in journal.segments(self.batch):
            if left is None and end > place.done:  # not everybody has it; an entry to come would overlap it
                path.unlink(missing_ok=True)
                continue
            if left is not None and first > left - 1:
                self.written = max(self.written, end)
                continue
            found = journal.read(path.name, tape.device)
            for chunk in range(first, end if left is None else min(end, left)):
                replay_chunk(tape, chunk, found)
            self.written = end
            if "router_counts" in found:
                tape.router_counts, tape.router_rows = found["router_counts"], int(found["router_rows"])
        if left is not None:
            if len(tape.carries) < min(left + 1, tape.left):
                raise GenoctxError(
                    f"{journal.folder} lacks chunks of an unfinished window",
                    "remove it: the step starts over and ends with the same weights",
                )
            assert journal._source is not None
            restore_sums(tape, left, journal.read(journal._source, tape.device), journal.about)

    def keep(self, tape: Tape) -> None:
        """Make an entry of the chunk just finished, if it is time."""
        journal = self.journal
        late = time.monotonic() - journal.entered >= journal.every_seconds
        if journal.every_seconds and journal.ranks.any(late):
            self.save(tape)

    def save(self, tape: Tape) -> None:
        """Make an entry now."""
        backward = tape.leaving is not None
        try:
            if not backward and not self.has_sums:
                self._write_sums(tape, None)
            self._write_segment(tape)
            if backward:
                self._write_sums(tape, tape.left)
        except OSError as error:
            self.journal.failed(error)
        self.journal.entered = time.monotonic()

    def _write_segment(self, tape: Tape) -> None:
        """What the forward sweep has left since the last entry."""
        first, end = self.written, len(tape.carries) - 1
        if end > first:
            tape.settle()
            name = f"batch-{self.batch:04d}-chunks-{first:06d}-{end:06d}.safetensors"
            self.journal.write(name, forward_tensors(tape, first, end), {"first": first, "end": end})
            self.written = end

    def _write_sums(self, tape: Tape, left: int | None) -> None:
        tensors = [(f"gradient.{n}", g) for n, g in self.journal.sums.gradients()]
        about: dict[str, Any] = {"batch": self.batch, "left": left, "before": asdict(self.before)}
        if left is not None:
            tensors += sum_tensors(tape)
            about |= {"losses": asdict(tape.losses), "leaves": len(tape.leaving or ())}
        self.journal.write(_SUMS, tensors, about)
        self.has_sums = True


def _about(path: Path) -> dict[str, Any] | None:
    """What a file of a journal says about itself; None where it is no such file, or broken."""
    try:
        found = read_about(path)
    except _BROKEN:
        return None
    return found if isinstance(found.get("key"), str) else None
