"""Two ranks come to one decision, whatever happens to either of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from genoctx.run.ranks import Ranks

WORKER = Path(__file__).with_name("ranks_worker.py")


def results(folder: Path, *scenario: str) -> list[Any]:
    """What each of two ranks found."""
    command = [sys.executable, str(WORKER), str(folder)]
    ranks = [
        subprocess.Popen([*command, str(r), *scenario], stderr=subprocess.PIPE, text=True) for r in range(2)
    ]
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found; the second one is gone before the last case."""
    return results(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("place", "late"), [("opening", 1), ("leaving", 1), ("alone", 0)])
def test_a_rank_that_hangs_outside_of_the_work_is_named(place: str, late: int, tmp_path: Path) -> None:
    found = results(tmp_path, place)
    kind, message, hint, shared = found[1 - late]
    assert kind == "NoAnswer" and f"no sign of rank {late} of 2 for 2 s" in message, found
    assert "parallel.hang_seconds" in hint and not shared
    assert found[late][0] == "LostContact"


def test_an_error_of_one_is_an_error_of_all(found: list[dict[str, Any]]) -> None:
    for here in found:
        assert here["one fails"] == ["InputError", "store is broken", "mend it", True]
        for name in ("disk full", "once fails"):
            kind, message, hint, shared = here[name]
            assert (kind, message, shared) == (
                "GenoctxError",
                "no space left on the device while writing /disk/file",
                True,
            )
            assert "free some space" in hint


def test_values(found: list[dict[str, Any]]) -> None:
    assert [here["own"] for here in found] == [0, 1]
    for here in found:
        assert here["once"] == "of 0"
        assert here["any"] == [False, True, 1000]
        assert here["here"] == 2


def test_a_signal_of_one_stops_all(found: list[dict[str, Any]]) -> None:
    assert [here["stop"] for here in found] == [
        ["stopped", "the signal of another rank"],
        ["stopped", "SIGTERM"],
    ]


def test_watched_folder_comes_and_goes(found: list[dict[str, Any]]) -> None:
    assert [here["watched"] for here in found] == [True, True]
    assert [here["left"] for here in found] == [False, False]


def test_a_rank_that_is_gone_is_not_blamed_on_the_network(found: list[dict[str, Any]]) -> None:
    kind, message, hint, shared = found[0]["lost"]
    assert kind == "LostContact" and "another rank is gone" in message and not shared
    assert "the launcher names" in hint


def test_one_process_is_one_rank() -> None:
    alone = Ranks()
    assert alone.first and alone.size == 1 and alone.here == 1
    assert alone.once(lambda: 3) == alone.together(lambda: 3) == alone.most(3) == 3
    assert alone.any(True) and not alone.any(False)
