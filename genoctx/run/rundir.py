"""The directory of one run: what is where, who may write, and how a crash leaves it usable.

config.toml            the user's file, verbatim
config.resolved.json   every key with its value
provenance.json        inputs by digest; one entry per session: argv, versions, machine
metrics.jsonl          one line per step (genoctx.run.metrics)
train.log              what was printed
checkpoints/step-000200/
LATEST                 name of the checkpoint a resume starts from
eval/step-000200/      ledgers
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from genoctx.config import Config, differing_keys
from genoctx.errors import InputError, UsageError
from genoctx.files import sync_folder, sync_tree, write_atomic, write_json
from genoctx.run.provenance import Inputs, session

RESOLVED = "config.resolved.json"
WINDOW = "window"
"""Where an unfinished window is kept."""
# resolved config last: while it is there, the folder is a run and --fresh may clear it
_OWN = (
    "LATEST",
    "checkpoints",
    WINDOW,
    "ranks",
    "eval",
    "metrics.jsonl",
    "train.log",
    "provenance.json",
    "config.toml",
    RESOLVED,
)
# what an attempt writes that ends before any work: a wrong path, a glob that matches nothing
_ATTEMPT = {".lock", "train.log", "provenance.json", "config.toml", RESOLVED}
_STEP = re.compile(r"step-(\d{6,})")


def step_name(step: int) -> str:
    """``step-000200``."""
    return f"step-{step:06d}"


class RunDir:
    """One run directory, locked for this process until ``close`` (or the end of a ``with``)."""

    def __init__(self, path: Path, lock: IO[str] | None) -> None:
        self.path = path
        self.resumed = False
        """True when the directory held a run of the same config."""
        self._lock = lock

    @classmethod
    def beside(cls, path: Path, resumed: bool) -> RunDir:
        """A run that another rank has opened; that one holds the lock and writes what all share."""
        run = cls(path, None)
        run.resumed = resumed
        return run

    @classmethod
    def create_or_resume(
        cls,
        path: Path,
        config: Config,
        *,
        source: str,
        inputs: Inputs,
        fresh: bool = False,
        ranks: int = 1,
    ) -> RunDir:
        """Lock ``path`` and make it a run of ``config``, or continue the one that is there.

        ``source`` is the user's TOML text. Raises UsageError when ``path`` holds something else or is
        in use, and InputError when its run has another config or other inputs; one that failed before
        any work is no run yet, and takes them. ``fresh`` clears an old run first; files that genoctx did
        not write stay. ``ranks`` work in it together.
        """
        refuse_foreign(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, _lock(path))
        try:
            if fresh:
                run._clear()
            if (path / RESOLVED).exists() and _has_begun(path):
                check_same(path, config, inputs)
                run.resumed = True
            run._write_head(config, source, inputs, ranks)
        except BaseException:
            run.close()
            raise
        return run

    # places

    def eval_path(self, step: int) -> Path:
        """Where the evaluation at ``step`` lies, or will."""
        return self.path / "eval" / step_name(step)

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def log_path(self) -> Path:
        return self.path / "train.log"

    # checkpoints

    def new_checkpoint_dir(self) -> Path:
        """An empty folder to write a checkpoint into; ``commit_checkpoint`` gives it its name."""
        folder = self.path / "checkpoints" / f".tmp-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def commit_checkpoint(self, folder: Path, step: int) -> Path:
        """Make ``folder`` the checkpoint of ``step`` and the one a resume starts from."""
        final = self.path / "checkpoints" / step_name(step)
        (folder / "COMPLETE").write_text(f"{step}\n")
        sync_tree(folder)
        if final.exists():  # a resume from an older checkpoint came by here again
            old = final.with_name(f".tmp-old-{os.getpid()}")
            os.rename(final, old)
            os.rename(folder, final)
            shutil.rmtree(old)
        else:
            os.rename(folder, final)
        sync_folder(final.parent)
        write_atomic(self.path / "LATEST", f"{final.name}\n")
        return final

    def latest_checkpoint(self) -> Path | None:
        """Where a resume starts: what LATEST names, else the newest complete checkpoint."""
        return latest_checkpoint(self.path)

    def prune(self, keep: int) -> list[Path]:
        """Remove all but the newest ``keep`` checkpoints, never the one LATEST names."""
        latest = self.latest_checkpoint()
        doomed = [c for c in checkpoints(self.path)[:-keep] if c != latest]
        for folder in doomed:
            hidden = folder.with_name(f".tmp-prune-{folder.name}")
            os.rename(folder, hidden)  # half a removal must not look like a checkpoint
            shutil.rmtree(hidden)
        return doomed

    # life

    def close(self) -> None:
        """Let other processes use the run."""
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _clear(self) -> None:
        for name in _OWN:
            entry = self.path / name
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)

    def _write_head(self, config: Config, source: str, inputs: Inputs, ranks: int) -> None:
        write_json(self.path / RESOLVED, config.to_dict())
        write_atomic(self.path / "config.toml", source)
        record = self.path / "provenance.json"
        sessions = _read_json(record).get("sessions", []) if self.resumed and record.exists() else []
        write_json(record, {"schema": 1, "inputs": inputs.to_dict(), "sessions": [*sessions, session(ranks)]})
        for leftover in (self.path / "checkpoints").glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for half in self.path.iterdir():
            if _is_half_written(half.name):
                half.unlink(missing_ok=True)


def check_same(path: Path, config: Config, inputs: Inputs) -> None:
    """Raise InputError naming what differs if the run at ``path`` has another config or other inputs."""
    elsewhere = "give --fresh to start over in this directory, or another -o"
    changed = differing_keys(_read_json(path / RESOLVED), config.to_dict())
    if changed:
        raise InputError(f"run {path} has another config: {'; '.join(changed)}", elsewhere)
    before = path / "provenance.json"
    recorded = _read_json(before).get("inputs", {}) if before.exists() else {}
    for name, digest in inputs.to_dict().items():
        if recorded.get(name, digest) != digest:
            message = f"run {path} read another {name}: digest {recorded[name]}, now {digest}"
            raise InputError(message, elsewhere)


def refuse_foreign(path: Path) -> None:
    """Raise UsageError if ``path`` exists and is neither empty nor a run."""
    if path.is_dir():
        names = {p.name for p in path.iterdir() if not _is_half_written(p.name)}
        if RESOLVED in names or names <= {".lock", *_OWN}:
            return
    elif not path.exists():
        return
    raise UsageError(f"{path} exists and is not a run of genoctx", "choose another -o; nothing was changed")


def _is_half_written(name: str) -> bool:
    """What ``write_atomic`` of one of our files leaves behind when it is killed."""
    return any(name.startswith(f".{own}.tmp-") for own in _OWN)


def _has_begun(path: Path) -> bool:
    """Whether the run at ``path`` has anything its config has led to: a step, an evaluation, a window."""
    return any(p.name not in _ATTEMPT and not _is_half_written(p.name) for p in path.iterdir())


def checkpoints(path: Path) -> list[Path]:
    """Complete checkpoints of the run at ``path``, oldest first."""
    folder = path / "checkpoints"
    named = [p for p in folder.iterdir() if _STEP.fullmatch(p.name)] if folder.is_dir() else []
    return sorted((p for p in named if (p / "COMPLETE").exists()), key=checkpoint_step)


def checkpoint_step(checkpoint: Path) -> int:
    """The step in a checkpoint's name; 0 for a folder that no run has named."""
    match = _STEP.fullmatch(checkpoint.resolve().name)
    return int(match[1]) if match else 0


def latest_checkpoint(path: Path) -> Path | None:
    """What LATEST of the run at ``path`` names, else its newest complete checkpoint, else None."""
    complete = checkpoints(path)
    pointer = path / "LATEST"
    if pointer.exists():
        named = path / "checkpoints" / pointer.read_text().strip()
        if named in complete:
            return named
    return complete[-1] if complete else None


def checkpoint_at(path: Path) -> Path:
    """``path`` if it is a checkpoint, or the newest one of the run there; InputError if neither."""
    directory = path if (path / "config.json").exists() else latest_checkpoint(path)
    if directory is None or not directory.is_dir():
        raise InputError(
            f"{path} is neither a checkpoint (no config.json) nor a run with one",
            "give RUN/checkpoints/step-..., a hub directory, or a run that has saved",
        )
    return directory


def _lock(path: Path) -> IO[str]:
    file = (path / ".lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise UsageError(
            f"run {path} is in use by {holder}", "wait for it, stop it, or choose another -o"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    return file


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {path}: {error}", "give --fresh to start over, or another -o"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is not a JSON object", "give --fresh to start over, or another -o")
    return found
