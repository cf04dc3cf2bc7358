"""What a file is, judged by its first bytes; all but FASTA and GenBank is refused with the way out."""

from __future__ import annotations

import shlex

from genoctx.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"

_PIPE = "genoctx ingest - -o STORE"

# first bytes, what it looks like, what to do; {path} is quoted for the shell
_KNOWN: tuple[tuple[bytes, str, str], ...] = (
    (GZIP_MAGIC, "gzip data compressed twice", f"gzip -dc {{path}} | {_PIPE}"),
    (b"BZh", "bzip2 data", f"bzip2 -dc {{path}} | {_PIPE}"),
    (b"\xfd7zXZ\x00", "xz data", f"xz -dc {{path}} | {_PIPE}"),
    (b"\x28\xb5\x2f\xfd", "zstd data", f"zstd -dc {{path}} | {_PIPE}"),
    (b"PK\x03\x04", "a zip archive", f"unzip -p {{path}} NAME_OF_THE_FASTA | {_PIPE}"),
    (b"\x1a\x41\x27\x43", "a 2bit file", f"twoBitToFa {{path}} stdout | {_PIPE}"),
    (b"\x43\x27\x41\x1a", "a 2bit file", f"twoBitToFa {{path}} stdout | {_PIPE}"),
    (b"ID   ", "an EMBL file", f"any2fasta {{path}} | {_PIPE}, or download the FASTA of the same record"),
    (b"##gff", "a GFF annotation", "give the FASTA of the genome, and this file with --annotation"),
    (b"##FASTA", "the FASTA part of a GFF file", "remove the lines before the first '>'"),
    (b"##fileformat=VCF", "a VCF of variants", "give the FASTA of the reference genome"),
    (b"BAM\x01", "a BAM of aligned reads", "give the FASTA of the reference genome"),
    (b"CRAM", "a CRAM of aligned reads", "give the FASTA of the reference genome"),
    (b"@HD\t", "a SAM of aligned reads", "give the FASTA of the reference genome"),
    (b"@SQ\t", "a SAM of aligned reads", "give the FASTA of the reference genome"),
    (b"@", "FASTQ sequencing reads", "give the FASTA of an assembled genome"),
    (b"<", "an HTML or XML page", "the download probably failed: fetch it again and look at the first lines"),
    (b"\xff\xfe", "UTF-16 text", f"iconv -f UTF-16 -t ASCII {{path}} | {_PIPE}"),
    (b"\xfe\xff", "UTF-16 text", f"iconv -f UTF-16 -t ASCII {{path}} | {_PIPE}"),
    (b"version https://git-lfs", "a Git LFS pointer", "run `git lfs pull` to fetch the file it stands for"),
)


def refuse_other_formats(head: bytes, path: str) -> None:
    """InputError if ``head``, the first bytes after one decompression, are of a known other format."""
    text = head.removeprefix(BOM).lstrip()
    for magic, what, hint in _KNOWN:
        if head.startswith(magic) or text.startswith(magic):
            raise InputError(
                f"{path} is not FASTA: it looks like {what}", hint.format(path=shlex.quote(path))
            )


def is_genbank(head: bytes) -> bool:
    """Whether the text that begins with ``head`` is a GenBank flat file."""
    return head.removeprefix(BOM).lstrip().startswith(b"LOCUS ")


def is_bgzip(head: bytes) -> bool:
    """Whether ``head`` begins a BGZF block: a gzip member with the extra field ``BC``."""
    return head.startswith(b"\x1f\x8b\x08\x04") and head[12:14] == b"BC"
