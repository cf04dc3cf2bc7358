"""The names of records: each can stand in a BED file, and each is used once."""

from __future__ import annotations

from collections.abc import Iterator

from genoctx.genome.faults import located

_SHOWN = 5


class _Given(str):
    """Where a record stands whose name was made up here."""


class RecordNames:
    """Judges the names of one file; ``seen`` maps those of all files to where they stand."""

    def __init__(self, path: str, seen: dict[str, str]) -> None:
        self._path = path
        self._seen = seen
        self._next: dict[str, int] = {}
        """Per name the number to try next."""
        self._renamed: list[str] = []

    def legal(self, word: bytes, line: int) -> str:
        """``word`` as text. Raises InputError where it cannot be a name."""
        try:
            name = word.decode()
        except UnicodeDecodeError:
            name = word.decode("latin-1")
        if not name.isprintable() or name.startswith("#"):
            raise located(
                self._path,
                line,
                f"{name!r} cannot be a contig name",
                "use printable characters and no '#' in front: the name goes into BED files",
            )
        return name

    def claim(self, name: str, line: int) -> None:
        """Use ``name``. Raises InputError where it is taken."""
        if name in self._seen:
            raise located(
                self._path,
                line,
                f"the name {name!r} is used twice, first in {self._seen[name]}",
                "a contig is known by the first word after '>': make these words unique, or add --rename-duplicates",
            )
        self._seen[name] = f"{self._path}, line {line}"

    def free(self, name: str, line: int) -> str:
        """Use ``name``, or ``name.2``, ``name.3`` ... where it is taken.

        Raises InputError where it was given away before it appeared: a file that cannot be read twice does
        not tell which names are still to come, and a real name must never mean another record.
        """
        first = self._seen.get(name)
        if first is None:
            self.claim(name, line)
            return name
        if isinstance(first, _Given):
            raise located(
                self._path,
                line,
                f"the name {name!r} was given to a renamed record already, in {first}",
                "change one of the two names in the file",
            )
        number = self._next.get(name, 2)
        while f"{name}.{number}" in self._seen:
            number += 1
        self._next[name] = number + 1
        given = f"{name}.{number}"
        self._seen[given] = _Given(f"{self._path}, line {line}")
        self._renamed.append(f"{name!r} in line {line:,} is {given!r}")
        return given

    def notes(self) -> Iterator[str]:
        """Which records were renamed."""
        if self._renamed:
            shown = ", ".join(self._renamed[:_SHOWN]) + (", ..." if len(self._renamed) > _SHOWN else "")
            yield f"{self._path}: {len(self._renamed):,} records whose name was taken were renamed: {shown}"
