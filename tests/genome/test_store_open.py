"""Opening a store: whatever in it was edited, cut short or swapped is refused, with the reason."""

import json

import pytest
from genome_helpers import fasta

from genoctx.errors import InputError
from genoctx.genome.store import GenomeStore, ingest


@pytest.fixture
def small(tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a": "ACGTNNacgtRRY", "b": "NNNN", "c": "gattaca"}))
    return ingest(tmp_path / "g.fa", tmp_path / "store")


def edit(store, **changes):
    path = store.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"schema": 1}, "schema 1, but this genoctx reads schema 2"),
        ({"schema": 3}, "schema 3"),
        ({"kind": "zarr"}, "kind"),
        ({"alphabet": "ACGT"}, "alphabet"),
        ({"contigs": {"columns": [], "rows": []}}, "the columns of its contigs are not name, length"),
        ({"contigs": []}, "must be integers"),
        ({"contigs": {}}, "no key 'columns'"),
        ({"contigs": 7}, "not subscriptable"),
        ({"regions_sha256": 7}, "7 should be text"),
        ({"annotations": [{}]}, "no key 'path'"),
        ({"digest": "0" * 64}, "digest"),
        ({"name": None}, "None should be text"),
        ({"sources": [{"path": "g", "sha256": "0", "format": "plain", "bytes": "9"}]}, "bytes = '9'"),
    ],
)
def test_an_edited_manifest_is_refused(small, changes, word):
    edit(small, **changes)
    with pytest.raises(InputError, match=word) as caught:
        GenomeStore.open(small.path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("length", 12), ("length", -1), ("length", True), ("offset", 1), ("name", "b"), ("name", 3)),
        *(("gc", 2.0), ("gc", None), ("iupac_counts", {"R": "2"}), ("n_runs", 1.5), ("sha256", "0")),
        *(("region_counts", {"CDS1": -1}), ("region_counts", 0), ("line", -1), ("source", None)),
    ],
)
def test_an_edited_contig_is_refused(small, field, value):
    table = json.loads((small.path / "manifest.json").read_text())["contigs"]
    table["rows"][0][table["columns"].index(field)] = value
    edit(small, contigs=table)
    with pytest.raises(InputError, match="is broken"):
        GenomeStore.open(small.path)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (lambda rows: [], "no contigs"),
        (lambda rows: [*rows, rows[0]], "two contigs have one name"),
        (lambda rows: [rows[0][:-1], *rows[1:]], "a contig does not have 13 entries"),
        (lambda rows: [{}, *rows[1:]], "a contig does not have 13 entries"),
        (lambda rows: [7], "has no len"),
        (lambda rows: rows[1:], "contig 'b' has an impossible length or offset"),
        (lambda rows: rows[:-1], "its digest does not belong to its contigs"),
    ],
)
def test_an_edited_table_of_contigs_is_refused(small, rows, word):
    table = json.loads((small.path / "manifest.json").read_text())["contigs"]
    edit(small, contigs={**table, "rows": rows(table["rows"])})
    with pytest.raises(InputError, match=word):
        GenomeStore.open(small.path)


def test_not_a_number_is_no_share(small):
    path = small.path / "manifest.json"
    path.write_text(path.read_text().replace("0.5,", "NaN,"))
    with pytest.raises(InputError, match="gc = nan in contig"):
        GenomeStore.open(small.path)


@pytest.mark.parametrize("name", ["codes.u8", "softmask.bits"])
@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b"", None]
)
def test_files_of_another_size_are_refused(small, name, change):
    path = small.path / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=name) as caught:
        GenomeStore.open(small.path)
    assert "incomplete" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00"])
def test_a_manifest_that_is_no_json_object(small, text):
    (small.path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match=r"manifest\.json"):
        GenomeStore.open(small.path)


def test_a_folder_that_is_no_store(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="not a genome store") as caught:
            GenomeStore.open(path)
        assert "genoctx ingest" in caught.value.hint
