"""A small store."""

import pytest
from genome_helpers import fasta

from genoctx.genome.store import ingest


@pytest.fixture
def small(tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a": "ACGTNNacgtRRY", "b": "NNNN", "c": "gattaca"}))
    return ingest(tmp_path / "g.fa", tmp_path / "store")
