"""``genoctx bench io``: our ingest beside Biopython and pyfaidx on the same files, each in its own process.

The readers take turns, A B C A B C, so that a machine that slows down slows them all. Ours does more than
the others: it validates, counts, digests and writes a durable store. They end with codes in memory.
"""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from genoctx.genome.alphabet import CODE_TABLE
from genoctx.run.bench_files import IoFiles
from genoctx.run.machine import peak_resident_memory


@dataclass(frozen=True)
class IoRound:
    """One reader, once."""

    seconds: float
    """From open files to codes; interpreter and imports are not counted."""
    cpu_seconds: float
    """Of all threads, the kernel's work for them included: what a machine shared with others does not change."""
    bases: int
    extra_bytes: int
    """Peak resident memory beyond that of the process with everything imported."""


@dataclass
class IoResult:
    """One reader, all rounds."""

    reader: str
    form: str
    """``plain`` or ``gzip``."""
    rounds: list[IoRound] = field(default_factory=list)
    failed: str = ""
    """Why there is nothing, if so."""

    @property
    def rates(self) -> list[float]:
        """Million bases per second of each round, ascending."""
        return sorted(one.bases / one.seconds / 1e6 for one in self.rounds)

    @property
    def rate(self) -> float:
        """Their median."""
        return statistics.median(self.rates)

    @property
    def cpu_rate(self) -> float:
        """Million bases per second of processor time, median."""
        return statistics.median(one.bases / one.cpu_seconds / 1e6 for one in self.rounds)

    @property
    def extra_bytes(self) -> int:
        """The most of all rounds."""
        return max(one.extra_bytes for one in self.rounds)


READERS = (
    ("genoctx", "plain"),
    ("Biopython", "plain"),
    ("pyfaidx", "plain"),
    ("genoctx", "gzip"),
    ("Biopython", "gzip"),
)
"""What is compared; pyfaidx reads no plain gzip."""

_MODULES = {"Biopython": "Bio", "pyfaidx": "pyfaidx"}


def run_io(files: IoFiles, rounds: int, say: Callable[[str], None]) -> list[IoResult]:
    """Let every reader of ``READERS`` read ``files``, ``rounds`` times in turn."""
    results = [IoResult(reader, form) for reader, form in READERS]
    for result in results:
        module = _MODULES.get(result.reader)
        if module and find_spec(module) is None:
            result.failed = "not installed"
    for number in range(1, rounds + 1):
        for result in results:
            if not result.failed:
                say(f"round {number} of {rounds}: {result.reader}, {result.form}")
                _run_once(result, files)
    return results


def _run_once(result: IoResult, files: IoFiles) -> None:
    paths = files.plain if result.form == "plain" else files.gzipped
    scratch = files.folder / "scratch"
    scratch.mkdir()
    try:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, result.reader, result.form, str(scratch), *map(str, paths)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(scratch)
    if done.returncode:
        last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        result.failed = "killed, most likely for memory" if done.returncode < 0 else last
    else:
        result.rounds.append(IoRound(**json.loads(done.stdout)))


def _read_genoctx(paths: Sequence[str], form: str, scratch: Path) -> Callable[[], int]:
    from genoctx.genome.store import ingest

    return lambda: ingest(paths, scratch / "store").bases


def _read_biopython(paths: Sequence[str], form: str, scratch: Path) -> Callable[[], int]:
    from Bio import SeqIO

    def read() -> int:
        bases = 0
        for path in paths:
            with open(path) if form == "plain" else gzip.open(path, "rt") as text:
                bases += sum(_codes(bytes(record.seq)).size for record in SeqIO.parse(text, "fasta"))
        return bases

    return read


def _read_pyfaidx(paths: Sequence[str], form: str, scratch: Path) -> Callable[[], int]:
    from pyfaidx import Fasta

    def read() -> int:
        bases = 0
        for number, path in enumerate(paths):
            # its index is written first; beside the file it would stay there
            with Fasta(path, as_raw=True, indexname=str(scratch / f"{number}.fai")) as records:
                bases += sum(_codes(records[name][:].encode()).size for name in records.keys())  # noqa: SIM118
        return bases

    return read


def _codes(letters: bytes) -> np.ndarray:
    return np.frombuffer(letters.translate(CODE_TABLE), dtype=np.uint8)


_PREPARE = {"genoctx": _read_genoctx, "Biopython": _read_biopython, "pyfaidx": _read_pyfaidx}


def _main(reader: str, form: str, scratch: str, *paths: str) -> None:
    read = _PREPARE[reader](paths, form, Path(scratch))
    before, begin, cpu = peak_resident_memory(), time.perf_counter(), time.process_time()
    bases = read()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    print(json.dumps(asdict(IoRound(seconds, cpu, bases, peak_resident_memory() - before))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
