"""Who hangs: judged by reports alone, and noticed by a real watchdog."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from genoctx.errors import GenoctxError
from genoctx.run.watchdog import Report, Seen, Watchdog, describe_hung, find_hung, packed


def seen(
    rank: int,
    *,
    silent: float = 0,
    still: float = 99,
    moves: int = 5,
    waiting: bool = True,
    patient: bool = False,
) -> Seen:
    report = Report(
        rank, "node", 100 + rank, moves=moves, waiting=waiting, patient=patient, where="step 3: w"
    )
    return Seen(report, silent, still)


def hung(*ranks: Seen) -> list[int]:
    return [s.report.rank for s in find_hung(ranks, 10)]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([seen(0, still=1), seen(1, still=1)], []),
        ([seen(0), seen(1, still=9)], []),  # rank 1 still works, and 0 waits for it
        ([seen(0), seen(1, waiting=False)], [1]),
        ([seen(0, waiting=False), seen(1), seen(2, waiting=False)], [0, 2]),
        ([seen(0), seen(1, silent=11)], [1]),
        ([seen(0, still=0), seen(1, silent=11, still=0)], [1]),
        ([seen(0), seen(1, waiting=False, patient=True)], []),  # writes a checkpoint
        ([seen(0), seen(1, silent=11, patient=True)], [1]),
        ([seen(0, moves=6), seen(1), seen(2, moves=6)], [1]),  # all wait, one is behind
        ([seen(0, waiting=False, moves=7), seen(1, waiting=False)], [1]),
        ([seen(0), seen(1)], [0, 1]),  # nobody is behind
    ],
)
def test_who_hangs(ranks: list[Seen], named: list[int]) -> None:
    assert hung(*ranks) == named


def test_what_is_said() -> None:
    stopped = seen(1, silent=11)
    stopped.report.layer, stopped.report.line = 7, "kda.py:40 (forward)"
    error = describe_hung([stopped], 4, 10, "do this")
    assert error.exit_code == 1
    assert (
        "no rank has moved for 10 s: rank 1 of 4 (process 101 on node) gives no sign of life" in error.message
    )
    assert "last seen in step 3: w, layer 7, at kda.py:40 (forward)" in error.message
    assert error.hint == "look at that machine; do this"
    assert "stands still" in describe_hung([seen(2)], 4, 10, "").message
    assert "all 2 ranks stand still" in describe_hung([seen(0), seen(1)], 2, 10, "").message


class Bite:
    def __init__(self) -> None:
        self.done = threading.Event()

    def __call__(self, error: GenoctxError, hung: Sequence[Report]) -> None:
        self.error, self.hung = error, [report.rank for report in hung]
        self.done.set()


def test_a_rank_that_stopped_is_noticed_by_one_that_did_not(tmp_path: Path) -> None:
    other = Report(
        1, "elsewhere", 4242, beat=3, moves=9, where="step 7: chr1:1-500, backward sweep", patient=False
    )
    (tmp_path / "rank-1.json").write_text(json.dumps(asdict(other)))
    bite = Bite()
    with Watchdog(tmp_path, 0, 2, 0.3, bite, "") as dog:
        dog.at("step 7: chr1:501-1000, backward sweep")
        dog.at_layer(2)
        assert bite.done.wait(60)
    assert bite.hung == [1]
    assert "process 4242 on elsewhere" in bite.error.message and "step 7: chr1:1-500" in bite.error.message
    mine = json.loads((tmp_path / "rank-0.json").read_text())
    assert (mine["where"], mine["layer"], mine["moves"]) == ("step 7: chr1:501-1000, backward sweep", 2, 2)
    assert mine["beat"] > 2 and not mine["waiting"]  # it waits, but in no collective


def test_a_rank_that_works_alone_is_not_taken_for_one_that_hangs(tmp_path: Path) -> None:
    """The others wait for the first one meanwhile; once its pulse stops it is the one that is named."""
    other = Report(0, "elsewhere", where="scoring", patient=False)
    bite = Bite()

    def alive(pulse: int) -> None:
        other.beat += 1
        other.pulse += pulse
        (tmp_path / "rank-0.json").write_text(json.dumps(asdict(other)))

    with Watchdog(tmp_path, 1, 2, 1.5, bite, "") as dog:
        dog.at("scoring")
        for _ in range(40):
            alive(1)
            assert not bite.done.wait(0.1), bite.error
        for _ in range(600):
            alive(0)
            if bite.done.wait(0.1):
                break
    assert bite.hung == [0]


@pytest.mark.parametrize("letter", ["a", "\u67d3", "\U0001f9ec", "\udcff", '"', "\n"])
def test_a_report_stays_one_whatever_a_window_is_called(letter: str) -> None:
    report = Report(1, host=60 * letter, where=f"step 3, window {300 * letter}", line=200 * letter)
    raw = packed(report)
    found = Report(**json.loads(raw))
    assert len(raw) == len(packed(Report(0))) and found.rank == 1 and found.where.startswith("step 3, ")
    assert (
        packed(Report(1, where="window chr5:1-9")).rstrip()
        == json.dumps(asdict(Report(1, where="window chr5:1-9")), ensure_ascii=False).encode()
    )
