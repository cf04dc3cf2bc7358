"""Files and oracles for the genome tests: everything is written by a second, naive hand."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

GENOMES = Path(__file__).parents[2] / "data" / "genomes"

BGZF_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def fasta(records: dict[str, str], width: int = 60, end: str = "\n", final: bool = True) -> bytes:
    """Records as FASTA text; ``final`` keeps the last line end."""
    lines = []
    for name, bases in records.items():
        lines.append(f">{name} some words")
        lines += [bases[i : i + width] for i in range(0, len(bases), width)]
    text = end.join(lines) + (end if final else "")
    return text.encode()


def gzip_members(data: bytes, pieces: int) -> bytes:
    """``data`` as that many gzip members in a row."""
    step = max(1, -(-len(data) // pieces))
    return b"".join(gzip.compress(data[i : i + step]) for i in range(0, max(1, len(data)), step))


def bgzip(data: bytes, block: int = 60_000, end: bool = True) -> bytes:
    """``data`` as BGZF, with or without its end marker."""
    out = b""
    for i in range(0, len(data), block):
        part = data[i : i + block]
        deflate = zlib.compressobj(wbits=-15)
        body = deflate.compress(part) + deflate.flush()
        head = b"\x1f\x8b\x08\x04" + bytes(4) + b"\x00\xff" + struct.pack("<H", 6)
        extra = b"BC" + struct.pack("<HH", 2, len(body) + 25)
        out += head + extra + body + struct.pack("<II", zlib.crc32(part), len(part))
    return out + (BGZF_END if end else b"")


def naive_fasta(data: bytes) -> dict[str, str]:
    """The records of well-formed FASTA text, the slow and obvious way."""
    records: dict[str, str] = {}
    name = ""
    for line in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.startswith(">"):
            name = line[1:].split()[0]
            records[name] = ""
        else:
            records[name] = records.get(name, "") + "".join(line.split())
    return records


def tree(folder):
    """What lies below ``folder``, sorted."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
