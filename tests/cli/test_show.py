"""``genoctx show``: presets and runs as text, as data, and by path alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from genoctx.cli import app
from genoctx.config import load_config
from genoctx.genome.store import GenomeStore, ingest
from genoctx.genome.windows import cut, write_table
from genoctx.run.metrics import MetricsLog
from genoctx.run.provenance import Inputs
from genoctx.run.rundir import RunDir


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    """A run of nano that took two steps and saved one checkpoint and one evaluation."""
    config = load_config(None, "nano", ["data.store=s", "data.windows=w"])
    inputs = Inputs(store="sha256:aa", windows="sha256:bb")
    with RunDir.create_or_resume(tmp_path / "first", config, source="", inputs=inputs) as run:
        with MetricsLog(run.metrics_path) as log:
            for step in (1, 2):
                log.append(
                    step=step,
                    bases=524288 * step,
                    loss_nats=1.3,
                    grad_norm=1.0,
                    lr=1e-3,
                    bases_per_s=1.0,
                    host_peak_bytes=1,
                )
        run.commit_checkpoint(run.new_checkpoint_dir(), 2)
        run.eval_path(2).mkdir(parents=True)
        (run.eval_path(2) / "summary.json").write_text('{"bits_per_base": 1.93, "windows": 4, "rows": []}')
        return run.path


def shown(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert app.run(["show", *args]) == 0
    return capsys.readouterr().out


def test_preset_is_its_commented_toml(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(["preset", "nano"], capsys)
    assert text.startswith("# nano: ")
    assert tomllib.loads(text)["model"]["hidden_size"] == 128
    assert shown(["nano"], capsys) == text


def test_presets_in_a_pipe_are_rows_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = shown(["presets"], capsys).splitlines()
    assert head.startswith("#preset\tparameters\t")
    sliced, whole = ["gpu1-lora-1m", "gpu1-lora-512k"], ["glm-5.3-flash", "gpu64", "gpu8"]
    assert [row.split("\t")[0] for row in rows] == ["micro", "nano", "small", *sliced, *whole]
    assert rows[-1].split("\t")[1] == "313326811966"


def test_run_as_data(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown([str(run_path), "--json"], capsys))
    assert found["what"] == "run"
    assert found["last"]["step"] == 2
    assert found["checkpoints"] == [2]
    assert found["latest_checkpoint"] == "step-000002"
    assert found["evaluations"] == [{"name": "step-000002", "summary": {"bits_per_base": 1.93, "windows": 4}}]
    assert found["config"]["model"]["hidden_size"] == 128
    assert found["provenance"]["inputs"]["store"] == "sha256:aa"


def test_run_for_people(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["show", "run", str(run_path)]) == 0
    out, err = capsys.readouterr()
    assert "2.83M parameters, step 2 of 100, 1.05M bases, 1.8755 bits/base" in err
    rows = dict(line.split("\t") for line in out.splitlines()[1:])
    assert rows["checkpoints"] == "2"
    assert rows["eval.step-000002.bits_per_base"] == "1.93"
    assert rows["optim.betas"] == "[0.9, 0.95]"
    assert rows["model.layer_types"] == "[8 entries]"


def test_run_before_its_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(None, "nano", ["data.store=s", "data.windows=w"])
    RunDir.create_or_resume(tmp_path / "a", config, source="", inputs=Inputs("x", "y")).close()
    assert app.run(["show", str(tmp_path / "a")]) == 0
    out, err = capsys.readouterr()
    assert "no step taken yet" in err
    assert "latest_checkpoint\t." in out


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two short contigs."""
    fasta = tmp_path / "g.fa"
    fasta.write_text(">a[1]\nACGTNNRAcg\n>b\nGGGG\n")
    ingest(fasta, tmp_path / "g")
    return tmp_path / "g"


def test_windows_are_counted_by_split_and_contig(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bed = tmp_path / "g.bed"
    table, _ = cut(GenomeStore.open(store), context=4, holdout="b")
    write_table(table, bed)
    assert app.run(["show", str(bed)]) == 0
    out, err = capsys.readouterr()
    assert f"store_digest: {GenomeStore.open(store).digest}" in err
    assert "holdout: 1 windows, 4 bases" in err
    assert out.splitlines() == [
        "#split\tcontig\twindows\tbases\tn_fraction",
        "holdout\tb\t1\t4\t0.0",
        "train\ta[1]\t2\t8\t0.25",
    ]
    found = json.loads(shown(["windows", str(bed), "--json"], capsys))
    assert found["header"]["context"] == 4
    assert [g["windows"] for g in found["groups"]] == [1, 2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "there is no nowhere"),
        (["preset"], "show preset: which one?"),
        (["shop", "x"], "cannot show 'shop'"),
        (["run", "."], "is not a run"),
        (["."], "is no store, window table or run"),
    ],
)
def test_what_cannot_be_shown_says_so(
    args: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(["show", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "hint: " in err
