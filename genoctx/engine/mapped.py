"""Memory in files: tensors over shared mappings whose disk space is reserved before they are used.

A mapping whose file cannot grow ends the process with SIGBUS at some later write; so the space is
allocated first, and a full disk is an error with a message. The file has no name from the moment it is
open: whatever happens to the process, nothing is left behind.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from genoctx.errors import GenoctxError

_PAGE = mmap.PAGESIZE
_MADV_POPULATE_READ = 22
"""Linux 5.14 (<sys/mman.h>): read pages and map them."""
_libc = ctypes.CDLL(None)


class MappedFiles:
    """Gives out zeroed tensors, each over an unnamed file of its own in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # by address; only the tensor over it keeps a mapping, and with it the file, alive
        self._maps: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
        self._reader: ThreadPoolExecutor | None = None

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros of ``shape``. GenoctxError, naming folder and bytes, when the disk cannot hold them."""
        count = torch.Size(shape).numel()
        if count == 0:
            return torch.zeros(shape, dtype=dtype)
        memory = self._map(count * dtype.itemsize)
        tensor = torch.frombuffer(memory, dtype=dtype, count=count).view(shape)
        self._maps[tensor.data_ptr()] = memory
        return tensor

    def require(self, nbytes: int) -> None:
        """GenoctxError when the disk cannot hold ``nbytes`` more now; they are reserved and given back."""
        if nbytes:
            os.close(self._reserved(nbytes))

    def _map(self, nbytes: int) -> mmap.mmap:
        handle = self._reserved(nbytes)
        try:
            return mmap.mmap(handle, nbytes)
        except OSError as error:
            raise GenoctxError(
                f"cannot map {nbytes:,} bytes of a file in {self.folder}: {error.strerror}",
                "use fewer homes on 'file'",
            ) from error
        finally:
            os.close(handle)

    def _reserved(self, nbytes: int) -> int:
        """An open file whose ``nbytes`` the disk has set aside."""
        try:
            handle = _unnamed(self.folder)
        except OSError as error:
            raise GenoctxError(
                f"cannot make a file in {self.folder}: {error.strerror}",
                "set homes.folder to a writable folder",
            ) from error
        try:
            os.posix_fallocate(handle, 0, nbytes)
        except OSError as error:
            os.close(handle)
            free = shutil.disk_usage(self.folder).free
            raise GenoctxError(
                f"{self.folder} has no room for {nbytes:,} bytes of mapped homes, {free:,} are free: {error.strerror}",
                "free some space, set homes.folder to another disk, or use fewer homes on 'file'",
            ) from error
        return handle

    def ahead(self, tensors: Iterable[Tensor]) -> Future[None]:
        """Read the pages of ``tensors`` (views of what was allocated here) on a thread, and map them."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "genoctx-ahead")
        # the tensors go along: while they live, so do their mappings
        return self._reader.submit(_populate, [x for x in tensors if self._mapping(x) is not None])

    def behind(self, tensors: Iterable[Tensor]) -> None:
        """Take the pages that lie wholly within ``tensors`` out of this process; the file keeps them."""
        for tensor in tensors:
            found, first = self._mapping(tensor), tensor.storage_offset() * tensor.itemsize
            start, end = -(-first // _PAGE) * _PAGE, (first + tensor.nbytes) // _PAGE * _PAGE
            if found is not None and end > start:
                found.madvise(mmap.MADV_DONTNEED, int(start), int(end - start))

    def _mapping(self, tensor: Tensor) -> mmap.mmap | None:
        return self._maps.get(tensor.untyped_storage().data_ptr())


def _populate(tensors: list[Tensor]) -> None:
    """ctypes lets other threads compute meanwhile. An older kernel starts to read, and maps nothing."""
    for tensor in tensors:
        start = tensor.data_ptr() // _PAGE * _PAGE
        where, size = ctypes.c_void_p(start), ctypes.c_size_t(tensor.data_ptr() + tensor.nbytes - start)
        if _libc.madvise(where, size, _MADV_POPULATE_READ):
            _libc.madvise(where, size, mmap.MADV_WILLNEED)


def _unnamed(folder: Path) -> int:
    """A new file without a name, open for reading and writing."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # some file systems cannot; a name that lives for an instant will do
        handle, name = tempfile.mkstemp(prefix=".genoctx-home-", dir=folder)
        os.unlink(name)
        return handle
