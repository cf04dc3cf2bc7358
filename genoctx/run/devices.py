"""What a plan may run on: ``b200:64``, ``h200:1``, ``cpu``. Data-sheet figures, never measurements of ours.

Rates are NVIDIA's data sheets, dense (without sparsity). Memory is what the driver leaves to programs.
Link rates are of one direction: PCIe generation 4 or 5 x16 (32 and 64 GB/s less protocol), NVLink per
device, one network port per device (400 Gb/s InfiniBand as in DGX H100, H200 and B200). A node's memory and
disks are those of the DGX of that device (2 TB; eight U.2 drives). Your node may differ: ``--host-ram``, ``--disk``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches

from genoctx.errors import UsageError

GB = 10**9
GIB = 1 << 30
TFLOPS = 1e12


@dataclass(frozen=True)
class Device:
    """One accelerator and its share of the node it sits in. Bytes, bytes/s and FLOP/s."""

    name: str
    memory: int
    """Usable by a program."""
    gemm: float
    """Peak of dense bfloat16 products."""
    memory_rate: float
    host_link: float
    """Between device and host memory, one way, as large copies reach it."""
    fabric: float
    """To the other devices of the node, one way."""
    network: float
    """To other nodes, one way."""
    per_node: int
    host_ram: int
    """Of one node."""
    disk: int
    disk_rate: float
    """Of one node, reading or writing large blocks."""


_DGX_DISK = 30 * 10**12
_TABLE = (
    Device("a100", 79 * GIB, 312 * TFLOPS, 2.04e12, 25e9, 300e9, 25e9, 8, 2 * 10**12, 30 * 10**12, 25e9),
    Device("h100", 79 * GIB, 989 * TFLOPS, 3.35e12, 50e9, 450e9, 50e9, 8, 2 * 10**12, _DGX_DISK, 40e9),
    Device("h200", 139 * GIB, 989 * TFLOPS, 4.8e12, 50e9, 450e9, 50e9, 8, 2 * 10**12, _DGX_DISK, 40e9),
    Device("b200", 178 * GIB, 2250 * TFLOPS, 8.0e12, 50e9, 900e9, 50e9, 8, 2 * 10**12, _DGX_DISK, 40e9),
    Device("b300", 267 * GIB, 2250 * TFLOPS, 8.0e12, 50e9, 900e9, 100e9, 8, 2 * 10**12, _DGX_DISK, 40e9),
    Device("l40s", 44 * GIB, 362 * TFLOPS, 0.86e12, 25e9, 25e9, 12e9, 8, 10**12, 4 * 10**12, 7e9),
    Device("rtx4090", 23 * GIB, 165 * TFLOPS, 1.01e12, 25e9, 25e9, 1e9, 1, 128 * GB, 2 * 10**12, 5e9),
    Device("rtx5090", 31 * GIB, 209 * TFLOPS, 1.79e12, 50e9, 50e9, 1e9, 1, 128 * GB, 2 * 10**12, 7e9),
)
DEVICES = {d.name: d for d in _TABLE}
CPU = "cpu"
CPU_DISK_RATE = 1e9
"""Bytes/s of a local disk whose rate nobody measured."""


@dataclass(frozen=True)
class Fleet:
    """``count`` devices of one kind, or ranks on the processor of this machine (``device`` None)."""

    device: Device | None
    count: int = 1

    @property
    def name(self) -> str:
        if self.device is None:
            return CPU if self.count == 1 else f"{CPU}:{self.count}"
        return f"{self.device.name}:{self.count}"

    @property
    def nodes(self) -> int:
        return 1 if self.device is None else -(-self.count // self.device.per_node)

    @property
    def in_node(self) -> int:
        """Devices, or ranks on a processor, that share one node's memory and disks."""
        return self.count if self.device is None else min(self.count, self.device.per_node)


def parse_fleet(text: str) -> Fleet:
    """``b200:64``, ``h200``, ``cpu``, ``cpu:2`` (ranks). UsageError with suggestions for anything else."""
    name, colon, number = text.strip().lower().partition(":")
    if name not in DEVICES and name != CPU:
        close = get_close_matches(name, [*DEVICES, CPU], n=3, cutoff=0.4)
        guess = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"unknown device {name!r}", f"{guess}known: {', '.join([*DEVICES, CPU])}")
    if colon and not (number.isdigit() and int(number) > 0):
        raise UsageError(f"--device {text!r}: {number!r} is no number of devices", f"for example {name}:8")
    return Fleet(DEVICES.get(name), int(number) if colon else 1)


def cpu_count() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """``24G``, ``24GiB``: powers of 1024; ``2TB``, ``500gb``: decimal. UsageError for anything else."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{text!r} is no amount of memory", "write it like 24G (powers of 1024) or 2TB (decimal)"
        )
    step = 1000 if match[4] and not match[3] else 1024
    return int(float(match[1]) * step ** " kmgt".index(match[2].lower() or " "))
