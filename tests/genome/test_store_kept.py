import gzip
import os
import sys

import pytest
from genome_helpers import fasta, tree

from genoctx.errors import InputError, UsageError
from genoctx.genome.store import GenomeStore, ingest

# nothing is left, nothing is lost


@pytest.mark.parametrize("data", [b">a\nACGT!\n", b"", gzip.compress(b">a\nAC\n" * 9)[:-3]])
def test_bad_input_leaves_nothing_behind(tmp_path, data):
    (tmp_path / "g.fa").write_bytes(data)
    with pytest.raises(InputError):
        ingest(tmp_path / "g.fa", tmp_path / "new" / "deep" / "store")
    assert tree(tmp_path) == ["g.fa"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("where", ["progress", "ingest.write_manifest", "staging.sync_folder"])
def test_interruption_leaves_nothing_and_keeps_the_old_store(tmp_path, monkeypatch, error, where):
    (tmp_path / "g.fa").write_bytes(b">a\nACGT\n")
    (tmp_path / "h.fa").write_bytes(b">b\nGGGG\n")
    old = ingest(tmp_path / "g.fa", tmp_path / "s")
    before = tree(tmp_path)

    def stop(*_):
        raise error

    progress = stop if where == "progress" else None
    if where != "progress":
        monkeypatch.setattr(f"genoctx.genome.{where}", stop)
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        ingest(tmp_path / "h.fa", tmp_path / "s", force=True, progress=progress)
    assert tree(tmp_path) == before
    assert GenomeStore.open(tmp_path / "s").digest == old.digest


def test_a_disk_that_fails_behind_our_back(tmp_path, monkeypatch):
    """Data go to the disk in another thread; its error ends the ingest and names the file."""
    (tmp_path / "g.fa").write_bytes(fasta({f"c{n}": "ACGT" * 1000 for n in range(400)}))
    monkeypatch.setattr("genoctx.genome.outfile._STRETCH", 1 << 19)

    def full(_):
        raise OSError(28, "No space left on device")

    whole = ingest(tmp_path / "g.fa", tmp_path / "whole")
    assert whole.bases == 1_600_000
    assert (whole.path / "codes.u8").read_bytes() == bytes([0, 1, 2, 3]) * 400_000
    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        ingest(tmp_path / "g.fa", tmp_path / "s")
    assert caught.value.filename.endswith("codes.u8")
    assert sorted(os.listdir(tmp_path)) == ["g.fa", "whole"]


def test_a_failing_rename_brings_the_old_store_back(tmp_path, monkeypatch):
    (tmp_path / "g.fa").write_bytes(b">a\nACGT\n")
    ingest(tmp_path / "g.fa", tmp_path / "s")
    before, rename = tree(tmp_path), os.rename

    def fail(source, target):
        if str(source).endswith(".partial"):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        ingest(tmp_path / "g.fa", tmp_path / "s", force=True)
    assert tree(tmp_path) == before


def test_a_taken_place_is_refused_before_reading(tmp_path, small):
    with pytest.raises(UsageError, match="exists already") as caught:
        ingest(tmp_path / "missing.fa", small.path)
    assert "--force" in caught.value.hint


def test_force_replaces_a_store_and_nothing_else(tmp_path, small):
    (tmp_path / "h.fa").write_bytes(b">z\nACGT\n")
    assert [c.name for c in ingest(tmp_path / "h.fa", small.path, force=True).contigs] == ["z"]
    assert tree(small.path) == ["codes.u8", "manifest.json", "softmask.bits"]
    assert tree(tmp_path) == ["g.fa", "h.fa", "store", *(f"store/{name}" for name in tree(small.path))]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("x")
    for taken in (tmp_path / "precious", tmp_path / "h.fa"):
        with pytest.raises(UsageError, match="is not a genome store"):
            ingest(tmp_path / "h.fa", taken, force=True)
    assert (tmp_path / "precious" / "thesis.tex").exists()


def test_a_folder_that_takes_no_files_is_an_error(tmp_path, monkeypatch):
    """/proc answers every new name with "no such file": there is nothing to wait for."""
    (tmp_path / "g.fa").write_bytes(b">a\nACGT\n")
    (tmp_path / ".s.00000000.lock").touch()
    monkeypatch.setattr("secrets.token_hex", lambda size: "00000000")
    monkeypatch.setattr("genoctx.genome.staging.sweep", lambda target: None)
    with pytest.raises(InputError, match="no file can be made in"):
        ingest(tmp_path / "g.fa", tmp_path / "s")
    assert tree(tmp_path) == [".s.00000000.lock", "g.fa"]


def test_a_link_to_a_store_stays_a_link(tmp_path, small):
    (tmp_path / "link").symlink_to(small.path)
    (tmp_path / "h.fa").write_bytes(b">z\nACGT\n")
    ingest(tmp_path / "h.fa", tmp_path / "link", force=True)
    assert (tmp_path / "link").is_symlink()
    assert [c.name for c in GenomeStore.open(small.path).contigs] == ["z"]


def test_permissions_follow_the_umask(small):
    umask = os.umask(0)
    os.umask(umask)
    assert small.path.stat().st_mode & 0o777 == 0o777 & ~umask


def test_no_input_and_stdin_twice(tmp_path):
    with pytest.raises(UsageError, match="no FASTA"):
        ingest([], tmp_path / "s")
    with pytest.raises(UsageError, match="only once"):
        ingest(["-", "-"], tmp_path / "s")


def test_a_terminal_as_standard_input(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match="nothing is piped"):
        ingest("-", tmp_path / "s")
