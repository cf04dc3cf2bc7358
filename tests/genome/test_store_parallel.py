"""Several files in parallel processes: the store, the errors and the folder are those of a serial ingest."""

import gzip
import json
import os
import random

import pytest
from genome_helpers import GENOMES, bgzip, fasta

from genoctx.errors import GenoctxError, InputError, UsageError
from genoctx.genome.reader import ReadOptions
from genoctx.genome.store import ingest


def content(store):
    """Every byte of a store but the time it was made."""
    files = {path.name: path.read_bytes() for path in store.path.iterdir()}
    manifest = json.loads(files.pop("manifest.json"))
    del manifest["created"]
    return files, manifest


def both(paths, folder, **settings):
    """The same ingest serially and with three jobs; the contents, or the errors."""
    found = []
    for jobs in (1, 3):
        target = folder / f"store{jobs}" / "s"
        try:
            found.append(content(ingest(paths, target, jobs=jobs, **settings)))
        except GenoctxError as error:
            found.append((type(error), error.message, error.hint))
            assert not target.parent.exists()
    return found


def write(folder, **files):
    for name, data in files.items():
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return [folder / name for name in files]


def bases(size, seed):
    return "".join(random.Random(seed).choices("ACGTacgtNR", k=size))


def test_real_genomes_in_parallel(tmp_path):
    paths = [
        *sorted(GENOMES.glob("human_*.fa.gz")),
        *GENOMES.glob("lambda*.fa.gz"),
        *GENOMES.glob("yeast*I.fna.gz"),
    ]
    assert len(paths) == 6
    told = []
    store = ingest(paths, tmp_path / "parallel" / "s", jobs=2, progress=told.append)
    assert sum(told) == sum(path.stat().st_size for path in paths)
    assert content(store) == content(ingest(paths, tmp_path / "serial" / "s"))
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["s"]


def test_case_bits_shift_at_any_offset(tmp_path):
    parts = {f"f{n}": fasta({f"c{n}": bases(100 + n, n)}) for n in range(9)}
    serial, parallel = both(write(tmp_path, **parts), tmp_path)
    assert serial == parallel
    assert len(serial[1]["contigs"]["rows"]) == 9


def test_what_is_read_over_is_said_in_the_same_order(tmp_path):
    paths = write(
        tmp_path,
        a=b"\xef\xbb\xbf>a\nacgu\n>empty\n>b\nAC GT\n",
        b=gzip.compress(b">c\r\nACGT\r\n>empty2\r\n"),
        c=bgzip(fasta({"d": "ACGT" * 20})),
    )
    serial, parallel = both(paths, tmp_path, name="g")
    assert serial == parallel
    assert "2 records without bases were skipped: empty, empty2" in serial[1]["warnings"]
    assert [source["format"] for source in serial[1]["sources"]] == ["plain", "gzip", "bgzip"]


@pytest.mark.parametrize(
    ("files", "word"),
    [
        (
            {"a": ">a\nA\n", "b": ">b\nA\n>a\nA\n"},
            "b, line 3: the name 'a' is used twice, first in .*a, line 1",
        ),
        ({"a": ">a\n", "b": ">a\nACGT\n"}, "b, line 1: the name 'a' is used twice"),
        ({"a": ">a\nA\n", "b": ">a\nA\n>b\nA!\n"}, "the name 'a' is used twice"),
        ({"a": ">a\nA\n", "b": ">b\nA!\n>a\nA\n"}, "b, line 2 .contig b.: column 2: '!'"),
        ({"a": ">a\n" + "A" * 3_000_000 + "!\n", "b": ">b\nA!\n"}, "a, line 2 "),
        ({"a": ">a\nA\n", "b": "", "c": ">c\n!\n"}, "b is empty"),
        ({"a": ">a\n", "b": ">b\n\n"}, "no sequence has any bases"),
        ({"a": ">a\nA\n", "b": "@r\nA\n+\nI\n"}, "FASTQ"),
    ],
)
def test_errors_are_those_of_a_serial_ingest(tmp_path, files, word):
    serial, parallel = both(write(tmp_path, **files), tmp_path)
    assert serial == parallel
    with pytest.raises(InputError, match=word):
        ingest([tmp_path / name for name in files], tmp_path / "s", jobs=2)
    assert sorted(os.listdir(tmp_path)) == sorted(files)


def test_a_missing_file(tmp_path):
    paths = [*write(tmp_path, a=">a\nACGT\n"), tmp_path / "none"]
    serial, parallel = both(paths, tmp_path)
    assert serial == parallel
    assert "cannot open" in serial[1]


NAMES = {"x": ">a\nACGT\n>b\nGG\n>a\nTT\n", "y": ">c\nA\n>a\nCC\n>a.2\nG\n", "z": ">d\nNN\n>b\nAC\n"}


@pytest.mark.parametrize(
    "options",
    [
        {"rename": True},
        {"rename": True, "skip": ("a",)},
        {"contigs": ("a", "d"), "rename": True},
        {"contigs": ("none",), "rename": True},
        {"gaps": "n"},
    ],
)
def test_options_in_parallel(tmp_path, options):
    del_second = {name: text.replace(">a.2\n", ">e\n") for name, text in NAMES.items()}
    for files in (NAMES, del_second):
        serial, parallel = both(write(tmp_path, **files), tmp_path, options=ReadOptions(**options))
        assert serial == parallel
        for jobs in (1, 3):
            if (tmp_path / f"store{jobs}").exists():
                (tmp_path / f"store{jobs}").rename(tmp_path / f"old{jobs}-{files is NAMES}")


def test_twins_in_different_files(tmp_path):
    text = "".join(random.Random(5).choices("ACGT", k=200_000))
    copy = "".join(base if n % 1000 else "A" for n, base in enumerate(text))
    paths = write(tmp_path, a=fasta({"a": text}), b=fasta({"b": bases(99, 1)}), c=fasta({"c": copy}))
    serial, parallel = both(paths, tmp_path)
    assert serial == parallel
    assert "(a and c, about 99.9 %)" in serial[1]["warnings"][0]


CHOICE = {"x": ">chr1\nACGTACGT\n>chr2\nGGGG\n", "y": ">chr*\nTTTT\n>alt\nCC\n", "z": ">chr3\nA\n"}


@pytest.mark.parametrize(
    "options",
    [
        {"contigs": ("chr*",)},
        {"contigs": ("chr[1-3]",)},
        {"skip": ("chr*",)},
        {"skip": ("chr1", "nothing")},
        {"regions": ("chr1:3-6", "alt")},
        {"regions": ("chr1:3-6", "chr9")},
        {"regions": ("chr3:1-2", "chr1:1-2")},
    ],
)
def test_a_choice_of_records_in_parallel(tmp_path, options):
    serial, parallel = both(write(tmp_path, **CHOICE), tmp_path, options=ReadOptions(**options))
    assert serial == parallel


def test_a_name_seen_before_changes_the_choice(tmp_path):
    """Once a record is called ``chr*``, this means itself alone; a worker that never saw it reads too much."""
    paths = write(tmp_path, x=">chr*\nTTTT\n", y=">chr1\nACGT\n>chr2\nGG\n")
    serial, parallel = both(paths, tmp_path, options=ReadOptions(contigs=("chr*",)))
    assert serial == parallel
    assert [row[0] for row in serial[1]["contigs"]["rows"]] == ["chr*"]


def test_standard_input_is_read_here_while_others_are_read_there(tmp_path, monkeypatch):
    paths = write(
        tmp_path, a=fasta({"a": bases(50, 1)}), b=fasta({"b": bases(70, 2)}), c=fasta({"c": "ACGTA"})
    )
    stores = []
    for jobs in (1, 2):
        with paths[1].open("rb") as piped:
            monkeypatch.setattr(
                "sys.stdin", type("Stdin", (), {"buffer": piped, "isatty": lambda self: False})()
            )
            stores.append(ingest([paths[0], "-", paths[2]], tmp_path / str(jobs) / "s", jobs=jobs))
    assert content(stores[0]) == content(stores[1])
    assert [source.path for source in stores[1].manifest.sources] == ["a", "stdin", "c"]


def test_no_jobs(tmp_path):
    with pytest.raises(UsageError, match="0 jobs"):
        ingest(write(tmp_path, a=">a\nA\n"), tmp_path / "s", jobs=0)
