"""Arrays with a JSON object in one .npz file: written whole or not at all, read without pickles."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from genoctx.errors import InputError
from genoctx.files import write_atomic

# what numpy and zipfile raise on damaged archives; RuntimeError: bytes that look like encryption
_BROKEN = (OSError, ValueError, KeyError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_npz(path: Path, kind: str, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Save ``arrays`` and the JSON object ``meta`` under the file type ``kind``."""
    text = json.dumps(meta, sort_keys=True, allow_nan=False)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, kind=np.array(kind), meta=np.array(text), **arrays)
    write_atomic(path, buffer.getvalue())


def read_npz(
    path: Path, kind: str, dtypes: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta object, the arrays named in ``dtypes``, and what is there of ``optional``; exactly so typed.

    Raises InputError where the file is missing, broken, or not of this ``kind``.
    """
    try:
        if path.is_file() and not zipfile.is_zipfile(path):  # numpy would talk of pickles
            raise InputError(
                f"{path} is not a {kind} file, or is cut short",
                "give a file that `genoctx eval` wrote, or run it again",
            )
        with np.load(path, allow_pickle=False) as file:
            found = str(file["kind"]) if "kind" in file else "something else"
            if found != kind:
                raise InputError(
                    f"{path} is not a {kind} file but {found}", "give the file that `genoctx eval` wrote"
                )
            meta = json.loads(str(file["meta"]))
            wanted = {**dtypes, **{name: dtype for name, dtype in (optional or {}).items() if name in file}}
            arrays = {name: file[name] for name in wanted}
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "`genoctx eval` writes ledgers") from None
    except _BROKEN as error:
        raise InputError(
            f"{path} cannot be read as a {kind} file: {error}", "run `genoctx eval` again"
        ) from error
    for name, dtype in wanted.items():
        if arrays[name].dtype != np.dtype(dtype):
            raise InputError(
                f"{path}: {name} is {arrays[name].dtype}, not {dtype}", "run `genoctx eval` again"
            )
    return meta, arrays
