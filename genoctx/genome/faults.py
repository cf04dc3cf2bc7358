"""Errors that say where in a sequence file something is wrong, and what to do about it."""

from __future__ import annotations

from genoctx.errors import InputError
from genoctx.genome.alphabet import GAPS, LETTERS
from genoctx.genome.formats import BOM


def located(path: str, line: int, what: str, hint: str, contig: str = "") -> InputError:
    """The error ``what`` at ``line`` (from 1) of a file, to be raised."""
    where = f"{path}, line {line:,}" + (f" (contig {contig})" if contig else "")
    return InputError(f"{where}: {what}", hint)


def no_base(path: str, line: int, column: int, byte: int, contig: str) -> InputError:
    """The error for ``byte``, which is no base; ``column`` bytes stand before it in its line."""
    shown = repr(chr(byte)) if 32 < byte < 127 else f"byte 0x{byte:02x}"
    return located(path, line, f"column {column + 1}: {shown} is not a nucleotide", _hint(byte), contig)


def _hint(byte: int) -> str:
    char = chr(byte)
    if byte in GAPS:
        return "gaps of an alignment? drop them or read them as N with --gaps, or remove them from the file"
    if char in "xX":
        return "write N for a masked or unknown base; if this is a protein, give the genome instead"
    if char == "*":
        return "it looks like a protein; in a nucleotide record only a last '*' is read over"
    if char.upper() in "EFILPQJOZ":
        return "it looks like a protein; give the nucleotide sequence of the genome"
    if char in "0123456789":
        return "remove the position numbers: only letters belong between the headers"
    if char in "+@;#":
        return "FASTQ reads or comment lines? only '>name' lines and bases belong in a FASTA file"
    if byte == BOM[0]:
        return "a byte order mark, as when files that begin with one are joined? remove these three bytes"
    return f"the nucleotide letters are {LETTERS.decode()} and U; is the file damaged?"
