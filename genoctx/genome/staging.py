"""Where a store, or another folder, is written before it is complete: beside its place, locked while its
process lives.

``.NAME.0123abcd.partial`` holds the files, ``.lock`` of the same name is held with flock by the process
and its children, ``.replaced`` is the older folder while the new one takes its place. The kernel lets go of
the lock when the last of them is dead, however it died: then the next writer to that place clears up.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from genoctx.errors import InputError, UsageError
from genoctx.files import sync_folder
from genoctx.genome.manifest import MANIFEST

_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}
_TRIES = 100
"""Others may remove a parent, or take a name, a few times in a row; a folder that takes no files always says so."""


@dataclass(frozen=True)
class Kind:
    """What is written: ``--force`` replaces nothing else."""

    noun: str
    """``a genome store``."""
    is_one: Callable[[Path], bool]
    """Whether a folder is one."""


STORE = Kind("a genome store", lambda folder: (folder / MANIFEST).is_file())


class Staging:
    """A folder in the making. Get one from ``stage``; the attributes are fixed."""

    def __init__(self, target: Path, shown: str | Path, force: bool, kind: Kind, lock: IO[bytes]) -> None:
        self.target = target
        self.lock = lock
        """Hand its descriptor to child processes: the folder then lives as long as any of them."""
        self.folder = Path(lock.name).with_suffix(".partial")
        self._old = Path(lock.name).with_suffix(".replaced")
        self._shown, self._force, self._kind = shown, force, kind

    def publish(self) -> None:
        """Put the finished folder at its place; an older one leaves only once the new one is there.

        Raises UsageError if the place was taken meanwhile.
        """
        sync_folder(self.folder)
        while not self._moved():
            _settle(self._old, self.target)
        sync_folder(self.target.parent)

    def _moved(self) -> bool:
        refuse_taken(self.target, self._shown, self._force, self._kind)
        if self.target.exists():
            os.rename(self.target, self._old)
        try:
            os.rename(self.folder, self.target)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            return False  # another process put its own there just now: look again
        return True

    def clear(self) -> None:
        """Remove what is not published, and the lock last: without it the folder counts as abandoned."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _settle(self._old, self.target)
        Path(self.lock.name).unlink(missing_ok=True)
        self.lock.close()


@contextmanager
def stage(target: Path, shown: str | Path, force: bool, kind: Kind = STORE) -> Iterator[Staging]:
    """A new locked folder for ``target`` (an absolute path), gone afterwards unless it was published.

    ``shown`` is the path as the user wrote it, ``force`` allows to replace one of its ``kind``. Clears up after dead
    processes first. Parents that were missing are made, and removed again if the work fails. Raises
    UsageError if the place is taken.
    """
    sweep(target)
    refuse_taken(target, shown, force, kind)
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        staging = Staging(target, shown, force, kind, _new_lock(target))
        try:
            staging.folder.mkdir()
            yield staging
        finally:
            staging.clear()
    finally:
        for parent in missing:
            with suppress(OSError):  # not empty: the folder, or another process, is in there
                parent.rmdir()


def refuse_taken(target: Path, shown: str | Path, force: bool, kind: Kind = STORE) -> None:
    """UsageError if ``target`` exists, unless it is of the ``kind`` and ``force`` is given."""
    if not target.exists():
        return
    if not force:
        raise UsageError(f"{shown} exists already", "choose another place, or replace it with --force")
    if not kind.is_one(target):
        raise UsageError(f"{shown} is not {kind.noun}: --force will not remove it", "choose another place")


def sweep(target: Path) -> None:
    """Remove what writers of ``target`` left behind whose processes are dead; a folder that one of them had
    moved aside goes back to its place."""
    form = re.compile(rf"(\.{re.escape(target.name)}\.[0-9a-f]{{8}})\.(?:partial|replaced|lock)")
    names = os.listdir(target.parent) if target.parent.is_dir() else []
    for stem in {match[1] for match in map(form.fullmatch, names) if match}:
        lock = target.with_name(f"{stem}.lock")
        try:
            file = lock.open("r+b")
        except FileNotFoundError:  # a living process makes its lock first and removes it last
            _remove(lock, target)
            continue
        except OSError:
            continue  # not ours to judge
        with file:
            if _locked(file) and _is_at(file, lock):
                _remove(lock, target)


def _remove(lock: Path, target: Path) -> None:
    shutil.rmtree(lock.with_suffix(".partial"), ignore_errors=True)
    _settle(lock.with_suffix(".replaced"), target)
    lock.unlink(missing_ok=True)


def _settle(old: Path, target: Path) -> None:
    """A folder that was moved aside goes back if nothing took its place, else away."""
    if old.exists() and not target.exists():
        with suppress(OSError):
            os.rename(old, target)
    shutil.rmtree(old, ignore_errors=True)


def _new_lock(target: Path) -> IO[bytes]:
    """A lock file of a new name, held. It is made before the folder, so that a folder is never without.

    Raises InputError where no file can be made.
    """
    for _ in range(_TRIES):
        target.parent.mkdir(parents=True, exist_ok=True)
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.lock")
        try:
            file = path.open("x+b")
        except (FileExistsError, FileNotFoundError):
            continue  # taken, or a failing process has just removed the parent it had made
        # a sweep may see the file before it is locked, take it for abandoned and remove it
        if _locked(file) is not False and _is_at(file, path):
            return file
        file.close()
    raise InputError(f"no file can be made in {target.parent}", "choose another place with -o")


def _locked(file: IO[bytes]) -> bool | None:
    """Whether this process holds ``file`` now; None where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
