"""The window table: which stretches of a store a model reads, as a BED file. Windows are views."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from genoctx.errors import InputError
from genoctx.files import write_atomic
from genoctx.genome.bed import parse_span, text_lines
from genoctx.genome.splits import HOLDOUT, TRAIN
from genoctx.genome.store import GenomeStore

SCHEMA = 2
KIND = "genoctx-windows"
COLUMNS = ("chrom", "start", "end", "name", "score", "strand", "split", "n_fraction", "leak_fraction")
NOT_AUDITED = "."

_AGAIN = "cut the table again: genoctx windows STORE -o TABLE.bed --context 1M --holdout ..."


@dataclass(frozen=True)
class Window:
    """Bases ``start..end-1`` of a contig, 0-based and half-open: the unit of training and evaluation."""

    contig: str
    start: int
    end: int
    name: str
    """Unique in its table."""
    strand: str
    """``+``, or ``-`` to read the reverse complement."""
    split: str
    """``train`` or ``holdout``."""
    gc: float
    """(C + G) / (A + C + G + T), to three decimals as in the table."""
    n_fraction: float
    """Share of bases that are N, to six decimals."""
    leak_fraction: float | None = None
    """Share of its k-mers that stand in training windows too, to six decimals; None where nobody looked."""


@dataclass
class WindowTable:
    """Windows and where they come from."""

    windows: tuple[Window, ...]
    header: dict[str, str | int | float] = field(default_factory=dict)
    """``store``, ``store_digest``, ``context``, ``stride``, ``guard``, ``holdout``, ``max_n``, ``seed``,
    ``lost_to_n``, ``genoctx`` (the version); after an audit ``leak_k``, ``leak_sampled``, ``leak_kmers``,
    ``leak_limit``, ``leak_share``, ``leak_error``, ``leak_distinct``, ``leak_rows`` (of which rows it was); of a
    table whose rows were edited since then only ``leak_edited``."""
    path: Path | None = None
    """The file it was read from."""

    def split(self, name: str) -> tuple[Window, ...]:
        """The windows of split ``name``, in table order; empty if there are none."""
        return tuple(window for window in self.windows if window.split == name)


def format_table(table: WindowTable) -> str:
    """The text of a table: ``#key value`` lines, the column names, one tab-separated line per window."""
    top = {"kind": KIND, "schema": SCHEMA, **table.header}
    lines = [f"#{key}\t{_one_line(value)}" for key, value in top.items()]
    lines.append("#" + "\t".join(COLUMNS))
    for w in table.windows:
        leak = NOT_AUDITED if w.leak_fraction is None else w.leak_fraction
        row = (w.contig, w.start, w.end, w.name, round(1000 * w.gc), w.strand, w.split, w.n_fraction, leak)
        lines.append("\t".join(map(str, row)))
    return "\n".join(lines) + "\n"


def _one_line(value: str | int | float) -> str:
    """A header value that cannot break its line, nor the encoding: a path may hold any byte."""
    text = str(value).translate({ord(blank): " " for blank in "\t\r\n"})
    return text.encode("utf-8", "backslashreplace").decode()


def write_table(table: WindowTable, path: str | Path) -> None:
    """Write ``table`` to ``path`` as BED; an existing file is replaced in one step."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent}", f"make it: mkdir -p {path.parent}")
    write_atomic(path, format_table(table))


def read_table(path: str | Path) -> WindowTable:
    """Read a table. Raises InputError with file and line for everything that does not fit the format."""
    path = Path(path)
    header: dict[str, str | int | float] = {}
    windows: list[Window] = []
    names: dict[str, int] = {}
    rows = False
    for number, line in text_lines(path):
        if line.startswith("#"):
            key, _, value = line[1:].partition("\t")
            if not line.startswith("#" + "\t".join(COLUMNS[:3])):
                header[key] = _value(key, value, f"{path}, line {number}")
            continue
        if not rows:  # of another schema's rows nothing can be said
            _check_format(header, path)
            rows = True
        window = _row(line, f"{path}, line {number}")
        if window.name in names:
            raise InputError(
                f"{path}, line {number}: the name {window.name!r} is that of line {names[window.name]}",
                "names tell windows apart in reports; make them unique",
            )
        names[window.name] = number
        windows.append(window)
    _check_format(header, path)
    for key in ("store", "store_digest", "context"):
        if key not in header:
            raise InputError(f"{path} has no header line #{key}", _AGAIN)
    del header["kind"], header["schema"]
    _check_apart(windows, path)
    if header.get("leak_rows", now := rows_digest(windows)) != now:
        windows = [replace(window, leak_fraction=None) for window in windows]
        header = {key: value for key, value in header.items() if not key.startswith("leak_")}
        header["leak_edited"] = "rows were edited since the audit"
    return WindowTable(tuple(windows), header, path)


def rows_digest(windows: Iterable[Window]) -> str:
    """Of which bases are in which split, whatever their order and strand: what an audit speaks of."""
    rows = sorted(f"{w.contig}\t{w.start}\t{w.end}\t{w.split}" for w in windows)
    return hashlib.sha256("\n".join(rows).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def check_store(table: WindowTable, store: GenomeStore) -> None:
    """InputError unless ``table`` was cut from the content of ``store`` and its windows lie inside."""
    where = table.path or "the window table"
    if table.header.get("store_digest") != store.digest:
        raise InputError(
            f"{where} was cut from store {table.header.get('store_digest')} "
            f"({table.header.get('store')}), but {store.path} is {store.digest}",
            "give the store it was cut from, or cut a new table from this one",
        )
    for window in table.windows:
        length = store.contig(window.contig).length
        if window.end > length:
            raise InputError(
                f"{where}: window {window.name} ends at {window.end:,}, "
                f"but {window.contig} has {length:,} bases",
                _AGAIN,
            )


_NUMBERS = {
    **dict.fromkeys(("schema", "context", "stride", "guard", "seed", "lost_to_n"), int),
    **dict.fromkeys(("leak_k", "leak_kmers"), int),
    **dict.fromkeys(("max_n", "leak_limit", "leak_share", "leak_error", "leak_distinct"), float),
}


def _value(key: str, value: str, where: str) -> str | int | float:
    try:
        return _NUMBERS.get(key, str)(value)
    except ValueError as error:
        raise InputError(f"{where}: {key} is {value!r}, not a number", _AGAIN) from error


def _check_format(header: dict[str, str | int | float], path: Path) -> None:
    if header.get("kind") != KIND:
        raise InputError(f"{path} is not a window table of genoctx", _AGAIN)
    schema = header.get("schema")
    if schema != SCHEMA:
        raise InputError(f"{path} has schema {schema}, but this genoctx reads schema {SCHEMA}", _AGAIN)


def _check_apart(windows: list[Window], path: Path) -> None:
    """InputError where a training and a held-out window share bases: an edit that no audit has seen."""
    reach: dict[tuple[str, str], Window] = {}  # per contig and split, the window that ends last so far
    for window in sorted(windows, key=lambda w: (w.contig, w.start)):
        other = reach.get((window.contig, {TRAIN: HOLDOUT, HOLDOUT: TRAIN}.get(window.split, "")))
        if other is not None and other.end > window.start:
            raise InputError(
                f"{path}: windows {other.name} ({other.split}) and {window.name} ({window.split}) share "
                f"{min(other.end, window.end) - window.start:,} bases of {window.contig}",
                "what was trained on cannot be held out: remove one of the rows",
            )
        last = reach.get((window.contig, window.split))
        if last is None or window.end > last.end:
            reach[window.contig, window.split] = window


def _row(line: str, where: str) -> Window:
    fields = line.split("\t")
    if len(fields) < len(COLUMNS):
        raise InputError(f"{where}: {len(fields)} columns instead of {', '.join(COLUMNS)}", _AGAIN)
    contig, first, last, name, score, strand, split, n_fraction, leak = fields[: len(COLUMNS)]
    start, end = parse_span(first, last, where)
    if strand not in ("+", "-"):
        raise InputError(f"{where}: strand {strand!r} is neither + nor -", _AGAIN)
    if not (contig and name and split):
        raise InputError(f"{where}: contig, name or split is empty", _AGAIN)
    gc, n = _share(score, 1000, "score", where), _share(n_fraction, 1, "n_fraction", where)
    leaked = None if leak == NOT_AUDITED else _share(leak, 1, "leak_fraction", where)
    return Window(contig, start, end, name, strand, split, gc, n, leaked)


def _share(text: str, scale: int, column: str, where: str) -> float:
    """A column between 0 and ``scale`` as a fraction."""
    try:
        value = float(text) / scale
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:  # also false for nan
        raise InputError(f"{where}: {column} {text!r} does not lie between 0 and {scale}", _AGAIN)
    return value
