"""stderr is talk, stdout is data; bars never reach a log."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from genoctx.cli.console import Console
from genoctx.cli.layout import duration, number
from genoctx.cli.progress import Progress
from genoctx.errors import GenoctxError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pair(**options: object) -> tuple[Console, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Console(stdout=out, stderr=err, **options), out, err  # type: ignore[arg-type]


def test_talk_goes_to_stderr_and_brackets_stay() -> None:
    console, out, err = pair()
    console.info("contig [red]chr1[/red]")
    console.warn("careful")
    console.error(GenoctxError("broken", "mend"))
    assert err.getvalue() == "contig [red]chr1[/red]\nwarning: careful\nerror: broken\nhint: mend\n"
    assert out.getvalue() == ""


def test_quiet_keeps_warnings() -> None:
    console, _, err = pair(verbosity=-1)
    console.info("x")
    console.table("t", ["a"], [[1]])
    console.warn("careful")
    assert err.getvalue() == "warning: careful\n"


def test_info_of_a_higher_level_waits_for_v() -> None:
    console, _, err = pair()
    console.info("detail", level=1)
    console.verbosity = 1
    console.info("detail", level=1)
    assert err.getvalue() == "detail\n"


def test_json_mode_keeps_stdout_for_json() -> None:
    console, out, err = pair(json=True)
    console.print("words")
    console.table("t", ["a"], [[1]], stdout=True)
    console.emit({"path": Path("x"), "n": np.int64(3), "list": np.arange(2)})
    assert json.loads(out.getvalue()) == {"path": "x", "n": 3, "list": [0, 1]}
    assert "words" in err.getvalue()


def test_table_is_tsv_in_a_pipe_and_aligned_elsewhere() -> None:
    console, out, err = pair()
    console.table("", ["contig", "bases"], [["chr1", 1234567], ["chrX", None]], stdout=True)
    assert out.getvalue() == "#contig\tbases\nchr1\t1234567\nchrX\t.\n"
    console.table("sizes", ["contig", "bases"], [["chr1", 1234567]])
    assert err.getvalue().splitlines() == [
        "sizes",
        "contig      bases",
        "------  ---------",
        "chr1    1,234,567",
    ]


@pytest.mark.parametrize(
    ("color", "terminal", "no_color", "term", "coloured"),
    [
        ("auto", True, "", "xterm", True),
        ("auto", False, "", "xterm", False),
        ("auto", True, "1", "xterm", False),
        ("auto", True, "", "dumb", False),
        ("never", True, "", "xterm", False),
        ("always", False, "1", "xterm", True),
    ],
)
def test_colour_rules(
    color: str, terminal: bool, no_color: str, term: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    err = Terminal() if terminal else io.StringIO()
    Console(stderr=err, color=color).warn("careful")
    assert ("\x1b[" in err.getvalue()) is coloured
    assert "careful" in err.getvalue()


def timed(console: Console, clock: Clock, total: float | None = 40) -> Progress:
    return Progress(console, "sweep", total, "windows", live=False, lines=True, clock=clock)


def test_progress_in_a_log_is_one_line_per_interval() -> None:
    console, _, err = pair()
    clock = Clock()
    with timed(console, clock) as bar:
        for _ in range(24):
            clock.now += 1
            bar.advance()
        bar.update("loss 1.9")
    lines = err.getvalue().splitlines()
    assert lines[0] == "sweep: 10/40 windows (25%), 1 windows/s, ETA 0:30"
    assert lines[1] == "sweep: 20/40 windows (50%), 1 windows/s, ETA 0:20"
    assert lines[2] == "sweep: 24/40 windows (60%), 1 windows/s, ETA 0:16, loss 1.9, took 0:24"
    assert len(lines) == 3
    assert "\x1b" not in err.getvalue()
    assert "\r" not in err.getvalue()


def test_the_rate_of_a_resumed_job_counts_this_session_alone() -> None:
    console, _, _ = pair()
    clock = Clock()
    with timed(console, clock) as bar:
        bar.done = bar.begin = 20
        assert bar.line() == "sweep: 20/40 windows (50%)"
        clock.now += 20
        bar.advance(10)
        assert bar.line() == "sweep: 30/40 windows (75%), 0.5 windows/s, ETA 0:20"


def test_a_short_job_prints_no_progress() -> None:
    console, _, err = pair()
    clock = Clock()
    with timed(console, clock, None) as bar:
        clock.now += 5
        bar.advance(3)
    assert err.getvalue() == ""


@pytest.mark.parametrize("options", [{"progress": False}, {"verbosity": -1}])
def test_no_progress_and_quiet_say_nothing(options: dict[str, object]) -> None:
    console, _, err = pair(**options)
    with console.progress("sweep", 2, "windows") as bar:
        bar.advance(2)
    assert err.getvalue() == ""


def test_live_line_on_a_terminal_lets_warnings_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    console = Console(stderr=err)
    with console.progress("sweep [1]", 2, "windows") as bar:
        bar.advance()
        console.warn("careful")
        with console.progress("inner", 2, "chunks") as inner:
            inner.advance()
        bar.advance()
    assert "sweep [1]: 2/2 windows" in err.getvalue()
    assert "careful" in err.getvalue()
    assert "inner" not in err.getvalue()


def test_log_gets_everything_uncoloured(tmp_path: Path) -> None:
    console, _, err = pair(color="always", verbosity=-1)
    with console.log_to(tmp_path / "train.log"):
        console.info("step 1")
        console.warn("careful")
    console.info("after")
    assert (tmp_path / "train.log").read_text() == "step 1\nwarning: careful\n"
    assert "step 1" not in err.getvalue()


@pytest.mark.parametrize(
    ("error", "last"),
    [(GenoctxError("it broke", "mend"), "it broke"), (KeyboardInterrupt(), "KeyboardInterrupt")],
)
def test_the_log_says_how_it_ended(error: BaseException, last: str, tmp_path: Path) -> None:
    console, _, err = pair()
    with pytest.raises(type(error)), console.log_to(tmp_path / "train.log"):
        console.info("step 1")
        raise error
    assert (tmp_path / "train.log").read_text() == f"step 1\nended: {last}\n"
    assert err.getvalue() == "step 1\n", "the user hears of it where errors are explained"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (1.25, "1.25"),
        (12_345, "12.3k"),
        (1_048_576, "1.05M"),
        (3.1e9, "3.10G"),
        (313e9, "313G"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (42.4, "0:42"), (185, "3:05"), (7629, "2:07:09"), (93600, "1d 02:00:00")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
