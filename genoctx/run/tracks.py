"""Bits per base along the genome, as a bedGraph track that genome browsers open."""

from __future__ import annotations

import contextlib
import gzip
import math
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np

from genoctx.errors import InputError, UsageError
from genoctx.genome.windows import Window
from genoctx.run.data import place
from genoctx.sizes import parse_size

BIN = 64
"""Bases averaged by default: fewer than an exon has, and few enough that a browser, which reads a whole
bedGraph into memory, opens the track of a chromosome (1.6 million lines for 100 Mb)."""


def parse_track(text: str) -> tuple[Path, int]:
    """``FILE[:BIN]`` apart. Raises UsageError."""
    path, colon, size = text.rpartition(":")
    if not colon:
        return Path(text), BIN
    bases = parse_size(size)
    if bases < 1 or not path:
        raise UsageError(f"--tracks {text} averages over no base", "write it like nll.bedgraph.gz:64")
    return Path(path), bases


def in_track_order(windows: Iterable[Window]) -> list[Window]:
    """By the bytes of the contig's name, then by start: what ``sort`` and bedGraphToBigWig want.

    Raises UsageError where windows overlap: a place of a bedGraph has one value.
    """
    ordered = sorted(windows, key=lambda window: (window.contig.encode(), window.start))
    for a, b in pairwise(ordered):
        if a.contig == b.contig and b.start < a.end:
            raise UsageError(
                f"{place(a)} and {place(b)} overlap, and a track has one value for a base",
                "leave out --tracks, or cut a table whose --stride is its --context",
            )
    return ordered


class TrackWriter:
    """A new bedGraph, compressed if it is called ``.gz``. A context manager: complete at its end, or not there."""

    def __init__(self, path: Path, size: int, name: str) -> None:
        """Means of ``size`` bases; ``name`` is what a browser writes beside the track."""
        if not path.parent.is_dir():
            raise InputError(f"there is no folder {path.parent}", f"make it: mkdir -p {path.parent}")
        self.path, self.size = path, size
        self._temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
        self._name = name.replace('"', "'")

    def __enter__(self) -> TrackWriter:
        self._raw: IO[bytes] = self._temporary.open("wb")
        self._out: IO[bytes] | gzip.GzipFile = self._raw
        if self.path.suffix == ".gz":  # without name and time: the same track is the same file
            self._out = gzip.GzipFile("", "wb", 6, self._raw, mtime=0)
        mean = f", means of {self.size} bases" if self.size > 1 else ""
        about = f"negative log likelihood in bits per base over A, C, G and T{mean}"
        self._out.write(f'track type=bedGraph name="{self._name}" description="{about}"\n'.encode())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(OSError) if kind else contextlib.nullcontext():
            if self._out is not self._raw:
                self._out.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
        self._raw.close()
        if kind is None:
            os.replace(self._temporary, self.path)
        else:
            self._temporary.unlink(missing_ok=True)

    def add(self, contig: str, start: int, nats: np.ndarray) -> None:
        """Bases from ``start`` on with their nats, NaN where there is none: lines that leave these out.

        A line holds neighbouring bases of one aligned stretch of ``size`` bases, and their mean.
        """
        offset = np.flatnonzero(~np.isnan(nats))
        if not offset.size:
            return
        position = start + offset
        new = np.diff(position) != 1
        new |= np.diff(position // self.size) != 0
        first = np.concatenate([[0], np.flatnonzero(new) + 1])
        count = np.diff(first, append=offset.size)
        bits = np.add.reduceat(nats[offset], first) / (math.log(2) * count)
        begin = position[first]
        lines = [
            f"{contig}\t{a}\t{b}\t{value:.4f}\n"
            for a, b, value in zip(begin.tolist(), (begin + count).tolist(), bits.tolist(), strict=True)
        ]
        self._out.write("".join(lines).encode())
