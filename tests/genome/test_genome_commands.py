"""``genoctx ingest`` and ``genoctx windows``, as a user runs them."""

import json
import os
import subprocess
import sys

import pytest
from genome_helpers import GENOMES, fasta

from genoctx.cli.app import run
from genoctx.genome.store import GenomeStore
from genoctx.genome.windows import read_table

YEAST = GENOMES / "yeast_r64_chrI.fna.gz"
LAMBDA = GENOMES / "lambda_phage.fa.gz"


@pytest.fixture
def genoctx(capsys):
    def call(*args):
        code = run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def store(genoctx, tmp_path):
    assert genoctx("ingest", YEAST, LAMBDA, "-o", tmp_path / "store", "--name", "mix")[0] == 0
    return tmp_path / "store"


def test_ingest_describes_every_contig_on_stderr(genoctx, tmp_path):
    code, out, err = genoctx("ingest", YEAST, LAMBDA, "-o", tmp_path / "s")
    assert (code, out) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in err.splitlines() if line}
    assert rows["NC_001133.9"] == ["230,218", "39.3%", "0.0%", "0", "-", "12.9%"]
    assert rows["gi|9626243|ref|NC_001416.1|"][0] == "48,502"
    assert GenomeStore.open(tmp_path / "s").digest in err


def test_ingest_json_is_one_object(genoctx, tmp_path):
    code, out, _ = genoctx("ingest", YEAST, "-o", tmp_path / "s", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["digest"] == GenomeStore.open(tmp_path / "s").digest
    assert found["contigs"][0]["length"] == found["bases"] == 230_218
    assert found["name"] == "s"


def test_ingest_warns_of_lower_case_that_is_no_mask(genoctx, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({"a": "acgtryacgt"}))
    code, _, err = genoctx("ingest", tmp_path / "g.fa", "-o", tmp_path / "s")
    assert code == 0
    assert "warning: 100.0 % of the bases are lower case" in err
    assert "R:1,Y:1" in err


def test_ingest_lists_the_first_of_many_contigs(genoctx, tmp_path):
    (tmp_path / "g.fa").write_bytes(fasta({f"s{i}": "ACGT" for i in range(100)}))
    err = genoctx("ingest", tmp_path / "g.fa", "-o", tmp_path / "s")[2]
    assert "\ns39 " in err
    assert "\ns40 " not in err
    assert f"and 60 more: genoctx show {tmp_path / 's'} --head N" in err


def test_ingest_says_what_is_wrong_and_exits_2(genoctx, tmp_path):
    (tmp_path / "g.fa").write_bytes(b">a\nACG-T\n")
    code, out, err = genoctx("ingest", tmp_path / "g.fa", "-o", tmp_path / "s")
    assert (code, out) == (2, "")
    assert f"error: {tmp_path / 'g.fa'}, line 2 (contig a): column 4: '-' is not a nucleotide" in err
    assert "hint: gaps" in err
    assert not (tmp_path / "s").exists()


def test_ingest_refuses_to_overwrite(genoctx, store):
    code, _, err = genoctx("ingest", LAMBDA, "-o", store)
    assert code == 2
    assert "exists already" in err
    assert len(GenomeStore.open(store).contigs) == 2
    assert genoctx("ingest", LAMBDA, "-o", store, "--force")[0] == 0
    assert len(GenomeStore.open(store).contigs) == 1


def test_ingest_reads_an_annotation(genoctx, tmp_path):
    gff = GENOMES / "yeast_r64_chrI.gff3.gz"
    code, _, err = genoctx("ingest", YEAST, "-o", tmp_path / "s", "--annotation", gff)
    assert code == 0
    assert {"CDS", "UTR", "intergenic"} & set(err.splitlines()[0].split()) >= {"CDS", "intergenic"}
    total = next(line for line in err.splitlines() if line.startswith("total: "))
    assert "CDS 61." in total and "intergenic" in total
    assert GenomeStore.open(tmp_path / "s").manifest.annotations[0].path == gff.name


def test_ingest_options_reach_the_reader(genoctx, tmp_path):
    (tmp_path / "a.fa").write_bytes(b">chr1\nAC-GT\n>chr2\nGGGG\n>alt\nTT\n")
    (tmp_path / "b.fa").write_bytes(b">chr1\nCCCCCC\n")
    files = (tmp_path / "a.fa", tmp_path / "b.fa")

    def contigs(*options):
        code, _, err = genoctx("ingest", *files, "-o", tmp_path / "s", "--force", *options)
        assert code == 0, err
        store = GenomeStore.open(tmp_path / "s")
        return {contig.name: contig.length for contig in store.contigs}

    rename = ("--gaps", "n", "--rename-duplicates")
    assert contigs(*rename) == {"chr1": 5, "chr2": 4, "alt": 2, "chr1.2": 6}
    assert contigs(*rename, "--jobs", "2") == {"chr1": 5, "chr2": 4, "alt": 2, "chr1.2": 6}
    assert contigs(*rename, "--contigs", "chr*", "--skip", "chr1") == {"chr2": 4, "chr1.2": 6}
    assert contigs("--regions", "chr2:2-3", "--regions", "alt") == {"chr2:2-3": 2, "alt": 2}
    assert genoctx("ingest", *files, "-o", tmp_path / "s", "--force")[0] == 2
    assert genoctx("ingest", *files, "-o", tmp_path / "s", "--force", "--gaps", "keep")[0] == 2
    assert genoctx("ingest", *files, "-o", tmp_path / "s", "--force", "--jobs", "0")[0] == 2


def test_windows_writes_a_table_and_counts_on_stderr(genoctx, store, tmp_path):
    code, out, err = genoctx(
        "windows", store, "-o", tmp_path / "t.bed", "--context", "16k", "--holdout", "gi*", "--guard", "4k"
    )
    assert (code, out) == (0, "")
    table = read_table(tmp_path / "t.bed")
    assert (len(table.split("train")), len(table.split("holdout"))) == (14, 2)
    assert table.header["guard"] == 4096
    rows = [line.split() for line in err.splitlines()]
    assert ["train", "14", "229,376", "39.3%"] in rows
    assert ["holdout", "2", "32,768"] in [row[:3] for row in rows]
    assert ["tail", "2", f"{230218 - 229376 + 48502 - 32768:,}"] in rows


def test_windows_to_stdout_is_the_same_table(genoctx, store, tmp_path):
    args = ("windows", store, "--context", "8k", "--holdout", "0.25", "--guard", "1k", "--seed", "3")
    genoctx(*args, "-o", tmp_path / "t.bed")
    code, out, _ = genoctx(*args, "-o", "-")
    assert code == 0
    assert out == (tmp_path / "t.bed").read_text()


def test_windows_json(genoctx, store, tmp_path):
    args = ("windows", store, "-o", tmp_path / "t.bed", "--context", "16k", "--holdout", "none", "--json")
    code, out, err = genoctx(*args)
    assert code == 0
    found = json.loads(out)
    assert found["splits"][0]["windows"] == 16
    assert sum(s["bases"] for s in found["splits"]) + sum(d["bases"] for d in found["dropped"]) == 278_720
    assert "no holdout window" in err
    assert genoctx(*args[:3], "-", *args[4:])[0] == 2


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--context", "1M", "--holdout", "none"), "the longest contig, NC_001133.9, has 230,218"),
        (("--context", "a lot", "--holdout", "none"), "not a size"),
        (("--context", "16k", "--holdout", "chrI"), "no contig is called 'chrI'"),
        (("--context", "16k", "--holdout", "missing.bed"), "cannot read missing.bed"),
        (("--context", "16k", "--holdout", "none", "--max-n", "nan"), "max-n"),
        (("--context", "16k", "--holdout", "none", "--contigs", "z"), "no contig is called 'z'"),
        (("--context", "16k"), "--holdout"),
    ],
)
def test_windows_says_what_is_wrong_and_writes_nothing(genoctx, store, tmp_path, args, word):
    code, out, err = genoctx("windows", store, "-o", tmp_path / "t.bed", *args)
    assert (code, out) == (2, "")
    assert word in err
    assert not (tmp_path / "t.bed").exists()


def test_windows_refuses_to_overwrite(genoctx, store, tmp_path):
    (tmp_path / "t.bed").write_text("precious")
    args = ("windows", store, "-o", tmp_path / "t.bed", "--context", "16k", "--holdout", "none")
    assert genoctx(*args)[0] == 2
    assert (tmp_path / "t.bed").read_text() == "precious"
    assert genoctx(*args, "--force")[0] == 0


def test_windows_of_something_that_is_no_store(genoctx, tmp_path):
    code, _, err = genoctx("windows", tmp_path, "-o", "-", "--context", "16k", "--holdout", "none")
    assert code == 2
    assert "not a genome store" in err


def test_a_pipe_from_zcat_to_a_store_without_torch(tmp_path):
    script = (
        "import sys; from genoctx.cli.app import run; code = run(); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "ingest", "-", "-o", str(tmp_path / "s")],
        input=YEAST.read_bytes(),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert GenomeStore.open(tmp_path / "s").bases == 230_218


def test_the_commands_of_the_format_page_run(tmp_path):
    page = (GENOMES.parents[1] / "docs" / "file-formats.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```sh\n")[1:]]
    assert len(blocks) >= 4
    (tmp_path / "data").symlink_to(GENOMES.parent)
    python = f'"{sys.executable}"'
    own = f'genoctx() {{ {python} -m genoctx "$@"; }}; python() {{ {python} "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", own + "".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "GGGCGGCGACCTCGCGGGTTTTCGCTATTTATGAAAATTTTCCGGTTTAAGGCGTTTCCG" in done.stdout
    assert "every base as ingested" in done.stdout
    assert "\tholdout\t" in done.stdout
