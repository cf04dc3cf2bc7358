"""metrics.jsonl: appended, cut back on resume, readable after a crash."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from genoctx.errors import InputError
from genoctx.run.metrics import MetricsLog, read_metrics


def add(log: MetricsLog, step: int, loss: float = 1.3) -> None:
    log.append(
        step=step,
        bases=1000 * step,
        loss_nats=loss,
        grad_norm=0.5,
        lr=1e-3,
        bases_per_s=10.0,
        host_peak_bytes=1 << 30,
        offload_wait_s=0.25,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        for step in (1, 2, 3):
            add(log, step)
    return path


def steps(path: Path) -> list[int]:
    return [line["step"] for line in read_metrics(path)]


def test_a_line_has_every_key(path: Path) -> None:
    line = json.loads(path.read_text().splitlines()[0])
    assert line["schema"] == 1
    assert line["loss_bits"] == pytest.approx(1.3 / math.log(2), rel=1e-15)
    assert {"t", "step", "bases", "loss_nats", "grad_norm", "lr", "bases_per_s", "host_peak_bytes"} <= set(
        line
    )
    assert line["offload_wait_s"] == 0.25


def test_lines_are_there_before_close(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    add(log, 1)
    assert steps(log.path) == [1]
    log.close()


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        add(log, 1, math.nan)
    (line,) = read_metrics(log.path)
    assert line["loss_nats"] is None
    assert line["loss_bits"] is None


def test_resume_drops_what_came_after_the_checkpoint(path: Path) -> None:
    with MetricsLog(path, after_step=2) as log:
        assert steps(path) == [1, 2]
        add(log, 3)
    assert steps(path) == [1, 2, 3]


def test_a_run_without_checkpoint_starts_over(path: Path) -> None:
    MetricsLog(path).close()
    assert path.read_text() == ""


def test_kept_lines_keep_their_bytes(path: Path) -> None:
    before = path.read_text().splitlines()[:2]
    MetricsLog(path, after_step=2).close()
    assert path.read_text().splitlines() == before


@pytest.mark.parametrize("torn", ['{"schema": 1, "step": 4, "los', '{"schema": 1, "step": 2}'])
def test_torn_last_line_is_dropped(path: Path, torn: str) -> None:
    with path.open("a") as file:
        file.write(torn)
    assert steps(path) == [1, 2, 3]
    MetricsLog(path, after_step=3).close()
    assert path.read_text().endswith("}\n")
    assert steps(path) == [1, 2, 3]


def test_damage_in_the_middle_is_an_error_with_its_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "garbage", lines[2], ""]))
    with pytest.raises(InputError, match=r"metrics\.jsonl:2"):
        read_metrics(path)


def test_no_file_is_no_lines(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []
