"""The audit as a user meets it: in ``genoctx windows``, and on the page about splits."""

import json
import os
import subprocess
import sys

import pytest
from genome_helpers import GENOMES, fasta

from genoctx.cli.app import run
from genoctx.genome.store import ingest
from genoctx.genome.windows import read_table


@pytest.fixture(scope="module")
def locus(tmp_path_factory):
    out = tmp_path_factory.mktemp("locus") / "store"
    ingest(GENOMES / "vertebrates_orthologous_8sp.fa.gz", out)
    return out


@pytest.fixture
def windows(capsys, tmp_path):
    def call(store, *args, out="t.bed", context="16k"):
        code = run(["windows", str(store), "-o", str(tmp_path / out), "--context", context, *args])
        said, err = capsys.readouterr()
        return code, said, err

    return call


def test_too_much_leakage_is_printed_stored_and_exits_3(windows, locus, tmp_path):
    code, out, err = windows(locus, "--holdout", "hg38*", "--json", "--leak-limit", "0.05")
    assert code == 3
    found = json.loads(out)
    assert found["leak_limit"] == 0.05 < found["leak_share"] < 0.12
    percent = f"{100 * found['leak_share']:.2f} %"
    assert (
        f"leakage: {percent} of the held-out 31-mers are in training windows too (all 196,578 looked at)"
        in err
    )
    assert "diverged homology is not seen" in err
    assert f"error: {percent} of the held-out 31-mers" in err
    assert "more than --leak-limit 0.05" in err
    assert "hint: " in err
    table = read_table(tmp_path / "t.bed")
    assert table.header["leak_share"] == found["leak_share"]
    worst = max(table.split("holdout"), key=lambda w: w.leak_fraction)
    assert f"\n{worst.name}" in err.split("held-out windows with most of them")[1]


def test_repeats_are_a_warning_copies_an_error(windows, locus, tmp_path):
    code, _, err = windows(locus, "--holdout", "hg38*")
    assert code == 0
    assert "is notable: repeats do this in large genomes" in err
    assert read_table(tmp_path / "t.bed").header["leak_limit"] == 0.25


def test_a_higher_limit_accepts_it(windows, locus, tmp_path):
    code, out, err = windows(locus, "--holdout", "hg38*", "--leak-limit", "0.2", "--leak", "exact")
    assert (code, out) == (0, "")
    assert "error" not in err
    header = read_table(tmp_path / "t.bed").header
    assert (header["leak_limit"], header["leak_sampled"], header["leak_k"]) == (0.2, "1/1", 31)
    assert windows(locus, "--holdout", "hg38*", "--leak-limit", "1", "--leak-k", "21", out="k.bed")[0] == 0
    assert read_table(tmp_path / "k.bed").header["leak_share"] > header["leak_share"]


@pytest.mark.parametrize("args", [("--holdout", "hg38*", "--leak", "off"), ("--holdout", "none")])
def test_without_an_audit_nothing_is_claimed(windows, locus, tmp_path, args):
    code, _, err = windows(locus, *args)
    assert code == 0
    assert "leak" not in err
    table = read_table(tmp_path / "t.bed")
    assert not [key for key in table.header if key.startswith("leak")]
    assert {w.leak_fraction for w in table.windows} == {None}


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--leak-k", "10"), "k-mers of 10 bases"),
        (("--leak-k", "32"), "k-mers of 32 bases"),
        (("--leak-limit", "1.5"), "--leak-limit 1.5"),
        (("--leak-limit", "nan"), "--leak-limit nan"),
        (("--leak", "perhaps"), "'perhaps'"),
    ],
)
def test_wrong_arguments_write_nothing(windows, locus, tmp_path, args, word):
    code, out, err = windows(locus, "--holdout", "hg38*", *args)
    assert (code, out) == (2, "")
    assert word in err
    assert not (tmp_path / "t.bed").exists()


def test_windows_lost_to_n_are_counted(windows, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a": "ACGTTGCAGG" * 8 + "N" * 40 + "A" * 10}))
    ingest(tmp_path / "g.fa", tmp_path / "store")
    code, out, err = windows(
        tmp_path / "store", "--holdout", "none", "--max-n", "0.25", "--json", context="10"
    )
    assert code == 0
    assert "warning: 4 windows have more than 25 % N and were left out: 40 bases are in no window" in err
    assert json.loads(out)["lost_to_n"] == 4
    _, _, err = windows(tmp_path / "store", "--holdout", "none", "--max-n", "1", context="10", out="u.bed")
    assert "left out" not in err


def test_windows_too_short_for_a_kmer_are_said_to_be_unaudited(windows, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a": "ACGTTGCAGG" * 8, "b": "ACGTTGCAGG"}))
    ingest(tmp_path / "g.fa", tmp_path / "store")
    code, _, err = windows(tmp_path / "store", "--holdout", "b", context="10")
    assert code == 0
    assert "hold no 31-mer of A, C, G and T: nothing was audited" in err


def test_the_commands_of_the_page_on_splits_run(tmp_path):
    page = (GENOMES.parents[1] / "docs" / "splits.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```sh\n")[1:]]
    assert len(blocks) == 4
    (tmp_path / "data").symlink_to(GENOMES.parent)
    own = f'genoctx() {{ "{sys.executable}" -m genoctx "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", own + "".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr + done.stdout
    # every line of output that the page shows as a comment behind its command
    shown = [line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("# ")]
    assert len(shown) >= 4
    for line in shown:
        assert line in said
