import hashlib

import pytest
from genome_helpers import tree

from genoctx.errors import InputError
from genoctx.genome.region_classes import CLASSES
from genoctx.genome.store import GenomeStore, ingest


def test_regions_need_an_annotation(small):
    with pytest.raises(InputError, match="has no annotation") as caught:
        small.regions("a", 0, 1)
    assert "--annotation" in caught.value.hint
    assert not small.annotated


def test_an_annotation_is_stored_and_does_not_change_the_digest(tmp_path, small):
    (tmp_path / "r.bed").write_text("a\t2\t5\nc\t0\t7\n")
    store = ingest(tmp_path / "g.fa", tmp_path / "with", annotations=[f"{tmp_path / 'r.bed'}=repeat"])
    repeat = CLASSES.index("repeat")
    assert (store.regions("a", 0, 13) == repeat).tolist() == [False] * 2 + [True] * 3 + [False] * 8
    assert [contig.region_counts.get("repeat") for contig in store.contigs] == [3, None, 7]
    assert store.digest == small.digest
    assert (
        store.manifest.regions_sha256 == hashlib.sha256((store.path / "regions.u8").read_bytes()).hexdigest()
    )
    assert [source.path for source in store.manifest.annotations] == ["r.bed"]
    (store.path / "regions.u8").unlink()
    with pytest.raises(InputError, match=r"regions\.u8"):
        GenomeStore.open(store.path)


def test_a_bad_annotation_leaves_nothing_behind(tmp_path, small):
    before = tree(tmp_path)
    for text in ("none.gff", f"{tmp_path / 'g.fa'}=repeat"):
        with pytest.raises(InputError):
            ingest(tmp_path / "g.fa", tmp_path / "with", annotations=[text])
    assert tree(tmp_path) == before
