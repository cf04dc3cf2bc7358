"""``genoctx report`` as a user runs it, on a real genome store and window table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from report_data import GENOMES, HEADER

from genoctx.cli.app import run
from genoctx.genome.store import GenomeStore, ingest
from genoctx.genome.windows import cut, read_table, write_table
from genoctx.report.ledger import Ledger, LedgerBuilder
from genoctx.run.strata import strata_of, stratum_names

Out = Callable[[], tuple[str, str]]


class Project(NamedTuple):
    """A store, a window table and a run with two evaluations."""

    root: Path
    store: Path
    table: Path
    run: Path

    def ledger(self, step: int) -> Path:
        return self.run / "eval" / f"step-{step:06d}" / "ledger.npz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("project")
    project = Project(root, root / "stores" / "y", root / "y.bed", root / "runs" / "y")
    store = ingest([GENOMES / "yeast_r64_chrI.fna.gz", GENOMES / "lambda_phage.fa.gz"], project.store)
    held_out = store.contigs[1].name
    write_table(cut(store, context=8192, holdout=held_out)[0], project.table)
    evaluate(project, 0, math.log(5))
    evaluate(project, 1000, math.log(5) - 0.25)
    return project


def evaluate(project: Project, step: int, level: float) -> None:
    """A ledger of losses around ``level``, as an evaluation writes it."""
    store, table = GenomeStore.open(project.store), read_table(project.table)
    header = {
        **HEADER,
        "step": step,
        "checkpoint": f"checkpoint {step}",
        "store": str(project.store),
        "store_digest": store.digest,
        "windows": str(project.table),
        "windows_digest": hashlib.sha256(project.table.read_bytes()).hexdigest(),
    }
    names = stratum_names(store)
    builder = LedgerBuilder(header, [contig.name for contig in store.contigs], 512, strata=names)
    rng = np.random.default_rng(step)
    for index, window in enumerate(table.split("holdout")):
        codes = store.codes(window.contig, window.start, window.end)
        target = np.flatnonzero(codes < 4)[1:]
        builder.window(index, window.contig, window.start, window.end)
        builder.exclude("first base of its window", 1)
        nats = rng.normal(level, 0.05, len(target))
        strata = strata_of(store, window.contig, window.start, window.end)[:, target]
        builder.add(index, window.contig, window.start + target, nats, nats - 0.2, strata=strata)
    project.ledger(step).parent.mkdir(parents=True, exist_ok=True)
    builder.build().save(project.ledger(step))


@pytest.fixture
def project(made: Project, tmp_path: Path) -> Project:
    """A run of its own; its ledgers name the shared store and table."""
    return made._replace(run=Path(shutil.copytree(made.run, tmp_path / "run")))


def test_a_run_compares_its_last_evaluation_with_its_first(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(project.run), "--block", "1k"]) == 0
    out, err = capsys.readouterr()
    assert "step        1,000 (before: 0)" in out and "after - before" in out
    assert "order-0" in out and "Order by cross-validation on training data" in out
    assert err == "" and max(map(len, out.splitlines())) <= 80
    assert (project.ledger(1000).parent / "baselines.npz").is_file()


def test_a_second_report_needs_neither_counting_nor_the_genome(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["report", str(project.ledger(1000)), "--block", "1k"]
    assert run(args) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr(GenomeStore, "open", lambda _: pytest.fail("the store was opened again"))
    assert run(args) == 0
    assert capsys.readouterr().out == first and "after - before" not in first


def test_json_is_one_object_with_every_number(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    for args in (["--json"], ["--format", "json"]):
        assert run(["report", str(project.run), "--block", "1k", *args]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["kind"] == "genoctx-report" and report["schema"] == 3
        assert report["main"]["full"]["difference"]["value"] == pytest.approx(-0.25 / math.log(2), abs=0.002)
        order = report["cross_validation"]["order"]
        assert [row["name"] for row in report["baselines"]] == ["order-0", f"order-{order}", "adaptive"]
        assert all(1.8 < row["bits"]["value"] < 2.1 for row in report["baselines"])
        for table in report["strata"]:
            for k, whole in enumerate(report["baselines"][1:]):
                parts = [(row["bases"], row["baselines"][k]["bits"]["value"]) for row in table["rows"]]
                mean = sum(n * bits for n, bits in parts) / report["header"]["scored_bases"]
                assert mean == pytest.approx(whole["bits"]["value"], rel=1e-9), table["facet"]
        assert [table["facet"] for table in report["strata"]] == ["mask", "gc"]


def test_files_go_where_they_are_asked_to(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out" / "here"
    for _ in range(2):
        assert run(["report", str(project.run), "--block", "1k", "-o", str(target), "--format", "tsv"]) == 0
    out, err = capsys.readouterr()
    assert sorted(path.name for path in target.iterdir()) == [
        f"report.{ending}" for ending in ("html", "json", "tsv", "txt")
    ]
    assert out == 2 * (target / "report.tsv").read_text() and "report.txt" in err
    (tmp_path / "file").write_text("mine")
    assert run(["report", str(project.run), "-o", str(tmp_path / "file")]) == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_before_may_be_any_ledger(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = str(project.ledger(0)), str(project.ledger(1000))
    assert run(["report", first, "--before", last, "--block", "1k", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["main"]["full"]["difference"]["value"] > 0
    assert report["main"]["full"]["difference"]["better"] == 0


def test_a_genome_that_is_gone_leaves_a_report_without_baselines(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = project.store.with_name("away")
    project.store.rename(gone)
    try:
        assert run(["report", str(project.run), "--block", "1k"]) == 0
    finally:
        gone.rename(project.store)
    out, err = capsys.readouterr()
    assert "warning: no baselines" in err and "No baselines:" in out and "order-0" not in out
    assert "after - before" in out
    assert not (project.ledger(1000).parent / "baselines.npz").exists()


def test_a_table_that_changed_gives_no_baselines(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    text = project.table.read_text()
    project.table.write_text(text.replace("\ttrain\t", "\tspare\t", 1))
    try:
        assert run(["report", str(project.run), "--block", "1k"]) == 0
    finally:
        project.table.write_text(text)
    assert "is not the window table that the ledger was made from" in capsys.readouterr().err


def test_a_ledger_without_a_window_of_its_table_has_no_report(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project.ledger(0)
    whole = Ledger.load(path)
    keep = whole.window != whole.windows[1, 0]
    columns = (
        "contig",
        "window",
        "block_start",
        "count",
        "nats_full_sum",
        "nats_acgt_sum",
        "nats_full_sq_sum",
    )
    rows = {name: getattr(whole, name)[keep] for name in columns}
    windows = np.delete(whole.windows, 1, axis=0)
    left_out = {reason: bases - 1 for reason, bases in whole.excluded.items()}
    dataclasses.replace(whole, windows=windows, excluded=left_out, positions=None, strata=None, **rows).save(
        path
    )
    assert run(["report", str(path), "--block", "1k"]) == 3
    assert run(["report", str(project.run), "--block", "1k"]) == 3, "the last one is compared with it"
    out, err = capsys.readouterr()
    assert out == "" and "1 are missing" in err and "hint:" in err
    text = project.table.read_text()
    project.table.write_text(text + "\n")
    try:
        assert run(["report", str(path), "--block", "1k"]) == 0, "there is no table to compare with"
    finally:
        project.table.write_text(text)


def test_bases_that_the_genome_has_and_the_ledger_has_not_are_no_report(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    path = project.ledger(1000)
    made = Ledger.load(path)
    made.count[3] -= 1
    made.excluded["first base of its window"] += 1
    dataclasses.replace(made, positions=None, strata=None).save(path)
    assert run(["report", str(path), "--block", "1k"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and "511 bases were scored in the block" in err and "the genome has 512" in err


def seed_run(project: Project, tmp_path: Path, seed: int, **train: object) -> Path:
    """Another run of the project's config, its last evaluation by another model."""
    run_dir = Path(shutil.copytree(project.run, tmp_path / f"seed{seed}"))
    path = run_dir / "eval/step-001000/ledger.npz"
    ledger = Ledger.load(path)
    header = {**ledger.header, "checkpoint": f"of seed {seed}"}
    nats = {name: getattr(ledger, name) * (1 + seed / 1000) for name in ("nats_full_sum", "nats_acgt_sum")}
    dataclasses.replace(ledger, header=header, **nats).save(path)
    config = {"train": {"seed": seed, "steps": 1000, **train}, "optim": {"lr": 0.001}}
    (run_dir / "config.resolved.json").write_text(json.dumps(config))
    (run_dir / "metrics.jsonl").touch()
    return run_dir


def test_several_runs_of_one_config_show_the_spread_over_seeds(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(seed_run(project, tmp_path, seed)) for seed in (3, 1, 2)]
    assert run(["report", *runs, "--block", "1k", "--test", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in report["seeds"]["runs"]] == [3, 1, 2]
    bits = [row["after"]["value"] for row in report["seeds"]["runs"]]
    assert report["seeds"]["over_runs"][0]["mean"] == pytest.approx(sum(bits) / 3, rel=1e-12)
    assert bits[0] == report["main"]["acgt"]["after"]["value"] and bits[1] < bits[2] < bits[0]
    assert report["tests"][0]["rows"][0]["p"] < 1e-12
    assert run(["report", *runs, "--block", "1k"]) == 0
    assert "Over training seeds" in capsys.readouterr().out


def test_runs_that_are_no_seeds_of_one_config_are_refused(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = seed_run(project, tmp_path, 1), seed_run(project, tmp_path, 2, steps=999)
    assert run(["report", str(one), str(other), "--block", "1k"]) == 2
    assert "train.steps 1000 -> 999" in capsys.readouterr().err
    assert run(["report", str(one), str(one), "--block", "1k"]) == 2
    assert "are the same model" in capsys.readouterr().err
    assert run(["report", str(one), str(one), "--before", str(other)]) == 2
    assert "--before is for one ledger" in capsys.readouterr().err


def test_strict_fails_where_nothing_should_be_quoted(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(project.run), "--block", "1k", "--strict"]) == 0
    assert run(["report", str(project.run)]) == 0
    assert "NOT FOR QUOTING" in capsys.readouterr().out
    assert run(["report", str(project.run), "--strict"]) == 3
    out, err = capsys.readouterr()
    assert "Held-out loss" in out and "error: only 1 block of 65,536 bases" in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["EMPTY"], "holds no ledger.npz"),
        (["RUN", "--block", "1000"], "cannot be made from the ledger's blocks of 512"),
        (["RUN", "--block", "many"], "is not a size"),
        (["RUN", "--confidence", "2"], "confidence 2.0"),
        (["RUN", "--format", "html"], "html"),
        (["BROKEN"], "is not a genoctx-ledger file, or is cut short"),
    ],
)
def test_wrong_arguments_are_explained(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.npz").write_bytes(project.ledger(0).read_bytes()[:1000])
    places = {"RUN": project.run, "EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken.npz"}
    assert run(["report", *(str(places.get(arg, arg)) for arg in args)]) == 2
    out, err = capsys.readouterr()
    assert words in err and out == "" and "hint:" in err
