"""What a launcher on a cluster needs beside the cluster: who talks, who stops, who starts again. No Ray here."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from tiny_run import Data, Listener, bits, run

from genoctx.cli.console import Console
from genoctx.errors import GenoctxError, InputError, LostContact, StoppedOnRequest, UsageError
from genoctx.run import launch, remote_rank, stop
from genoctx.run.desk import Attempt, Desk
from genoctx.run.driver import drive
from genoctx.run.launch import Place, hand_over
from genoctx.run.loop import Outcome
from genoctx.run.relay import BEGIN, FAILED, Chatter, Message, Relay, Replay
from genoctx.run.remote_rank import Job, run_rank

DONE = Outcome(5, 10, Path("c"), resumed=False)
TURN = "; start 2 of the ranks goes on from the last checkpoint"


class Ticks:
    """A clock that goes on by a second a look."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def console() -> tuple[Console, io.StringIO]:
    stderr = io.StringIO()
    return Console(color="never", stderr=stderr), stderr


# relay and replay


def test_what_is_said_here_is_heard_there(tmp_path: Path) -> None:
    monitor, heard = console()
    replay = Replay(monitor)
    relay = Relay(lambda message: replay.play_all([message]))
    with relay.log_to(tmp_path / "log"):
        relay.info("one")
        relay.info("two", level=1)
        relay.warn("three")
    relay.info("four")
    assert heard.getvalue() == "one\nwarning: three\nfour\n"
    assert (tmp_path / "log").read_text() == "one\ntwo\nwarning: three\n"


def test_a_bar_arrives_with_its_counts() -> None:
    sent: list[Message] = []
    relay = Relay(sent.append, Ticks())
    with relay.progress("train", 40.0, "bases") as bar:
        bar.done = bar.begin = 10
        bar.advance(5)
        bar.update("step 1")
    states = [arguments for name, _, arguments in sent if name == "bar"]
    assert sent[0] == ("progress", 1, ("train", 40.0, "bases")) and sent[-1] == ("close", 1, ("",))
    assert states == [(15, 10, ""), (15, 10, "step 1"), (15, 10, "step 1")]

    class Heard(Listener):
        def progress(self, label: str, total: float | None, unit: str):  # type: ignore[no-untyped-def]
            self.context = super().progress(label, total, unit)
            return self.context

    heard = Heard()
    replay = Replay(heard)
    replay.play_all(sent[:-1])
    with heard.context as shown:
        assert (shown.done, shown.begin) == (15, 10)


def test_a_fast_loop_sends_little() -> None:
    sent: list[Message] = []
    with Relay(sent.append, lambda: 0.0).progress("train", None, "bases") as bar:
        for _ in range(1000):
            bar.advance()
    assert [message[0] for message in sent] == ["progress", "bar", "close"] and sent[1][2][0] == 1000


def test_the_error_that_ends_a_log_is_its_last_line(tmp_path: Path) -> None:
    monitor, heard = console()
    replay = Replay(monitor)
    relay = Relay(lambda message: replay.play_all([message]))
    with pytest.raises(InputError), relay.log_to(tmp_path / "log"):
        raise InputError("no such base")
    assert (tmp_path / "log").read_text() == "ended: no such base\n" and heard.getvalue() == ""


def test_ranks_that_are_lost_close_their_log_and_those_that_follow_say_why(tmp_path: Path) -> None:
    monitor, heard = console()
    replay = Replay(monitor)
    replay.play_all([(BEGIN, 1, ()), ("log_to", 1, (tmp_path / "log",)), ("info", 0, ("one", 0))])
    replay.play_all([(FAILED, 1, (GenoctxError("rank 1 died"),)), (BEGIN, 2, ())])
    replay.play_all([("log_to", 1, (tmp_path / "log",)), ("info", 0, ("two", 0)), ("close", 1, ("",))])
    assert (tmp_path / "log").read_text() == "one\nended: rank 1 died\ntwo\n"
    assert heard.getvalue() == f"one\nwarning: rank 1 died{TURN}\ntwo\n"


def test_what_a_library_prints_is_talk_for_those_who_ask() -> None:
    for verbosity, heard in ((0, ""), (2, "(raylet) gone\n")):
        monitor, stderr = console()
        monitor.verbosity = verbosity
        with contextlib.redirect_stdout(Chatter(monitor)):
            print("\x1b[33m(raylet)\x1b[0m gone")
        assert stderr.getvalue() == heard


# desk


def test_only_the_latest_attempt_is_heard() -> None:
    desk = Desk(fresh=False)
    assert desk.begin() == Attempt(1, fresh=False)
    desk.send(1, ("info", 0, ("one", 0)))
    desk.failed(GenoctxError("gone"))
    desk.failed(GenoctxError("gone, too"))  # another rank noticed
    desk.send(1, ("info", 0, ("late", 0)))
    assert [m[0] for m in desk.take()] == [BEGIN, "info", FAILED]
    desk.begin()
    desk.send(1, ("info", 0, ("later still", 0)))
    assert desk.take() == [(BEGIN, 2, ())]


def test_a_run_is_cleared_once() -> None:
    desk = Desk(fresh=True)
    assert desk.begin() == Attempt(1, fresh=True)
    desk.failed(GenoctxError("died before it had the run directory"))
    assert desk.begin() == Attempt(2, fresh=True)
    desk.send(2, ("log_to", 1, (Path("log"),)))
    desk.failed(GenoctxError("died in its first step"))
    assert desk.begin() == Attempt(3, fresh=False)


def test_after_its_end_no_attempt_begins() -> None:
    desk = Desk(fresh=False)
    desk.begin()
    desk.end(InputError("first"))
    desk.end(InputError("second"))
    assert desk.begin() is None and str(desk.ending()) == "first"


def test_who_can_be_asked_to_stop() -> None:
    desk = Desk(fresh=False)
    assert not desk.ask("SIGTERM")
    desk.begin()
    assert desk.ask("SIGINT") and desk.asked() == "SIGTERM"
    desk.failed(GenoctxError("gone"))
    assert not desk.ask("SIGINT")


# drive


def test_the_driver_hands_out_what_comes_of_the_ranks() -> None:
    listener, desk = Listener(), Desk(fresh=False)

    def work() -> Outcome:
        desk.begin()
        desk.send(1, ("info", 0, ("hello", 0)))
        return DONE

    assert drive(desk, work, listener) == DONE and listener.lines == ["hello"]


def test_the_error_of_the_ranks_goes_before_what_the_cluster_makes_of_it() -> None:
    desk = Desk(fresh=False)

    def end() -> None:
        desk.begin()
        desk.failed(GenoctxError("rank 1 died"))
        raise GenoctxError("the cluster gave up")

    with pytest.raises(GenoctxError, match="rank 1 died"):
        drive(desk, end, Listener())
    desk.end(InputError("no such base"))
    with pytest.raises(InputError, match="no such base"):
        drive(desk, lambda: None, Listener())
    with pytest.raises(GenoctxError, match="the cluster gave up"):
        drive(Desk(fresh=False), end, Listener())


class Ranks:
    """They work until somebody asks them to stop."""

    def __init__(self, act: bool) -> None:
        self.desk, self.act = Desk(fresh=False), act

    def work(self) -> None:
        self.desk.begin()
        if self.act:
            os.kill(os.getpid(), signal.SIGTERM)
        while not (reason := self.desk.asked()):
            time.sleep(0.01)
        self.desk.end(StoppedOnRequest(f"stopped by {reason}"))


@pytest.mark.parametrize(("limit", "reason"), [(0.0, "SIGTERM"), (0.05, "the time limit")])
def test_a_request_to_stop_reaches_the_ranks(limit: float, reason: str) -> None:
    ranks, before = Ranks(act=not limit), signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoppedOnRequest, match=reason):
        drive(ranks.desk, ranks.work, Listener(), limit)
    assert signal.getsignal(signal.SIGTERM) is before


def test_while_no_ranks_are_running_a_stop_is_the_end() -> None:
    over = threading.Event()
    try:
        with pytest.raises(StoppedOnRequest, match="while no ranks were running"):
            drive(Desk(fresh=False), lambda: over.wait() and None, Listener(), 0.05)
    finally:
        over.set()


# a rank in a thread of a worker


@pytest.fixture
def job(phage: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job for one rank, whose process keeps nothing of it."""
    for module, name in ((launch, "_receivers"), (stop, "_asked")):
        monkeypatch.setattr(module, name, [])
    monkeypatch.setattr(remote_rank, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = phage.config(tmp_path, "train.steps=3", "eval.at_start=false", "eval.at_end=false")
    return Job(config, "# mine\n", tmp_path / "a", ("genoctx", "train"), "1")


def as_worker(job: Job, desk: Desk) -> Outcome | BaseException | None:
    """What ``run_rank`` returns or raises in a thread that is not the main one."""
    found: list[Outcome | BaseException | None] = []

    def work() -> None:
        try:
            found.append(run_rank(Place(0, 1, 0, "ray"), 1, job, desk))
        except BaseException as error:
            found.append(error)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_a_worker_trains_as_a_process_does(job: Job, tmp_path: Path) -> None:
    desk, listener = Desk(fresh=False), Listener()
    outcome = as_worker(job, desk)
    assert isinstance(outcome, Outcome) and outcome.step == 3
    Replay(listener).play_all(desk.take())
    assert "done: step 3" in listener.text and not listener.text.count("start 2")
    assert '"argv": [\n' in (tmp_path / "a/provenance.json").read_text() and sys.argv == ["genoctx", "train"]
    run(job.config, tmp_path / "b")
    assert bits(tmp_path / "a", 3) == bits(tmp_path / "b", 3)


def test_a_stop_that_the_driver_asks_for_saves(job: Job) -> None:
    desk = Desk(fresh=False)
    desk.ask("SIGTERM")
    assert as_worker(job, desk) is None
    ending = desk.ending()
    assert isinstance(ending, StoppedOnRequest) and "stopped by SIGTERM after step" in ending.message
    assert (job.out / "LATEST").exists()


def test_a_worker_of_a_run_that_is_over_does_nothing(job: Job) -> None:
    desk = Desk(fresh=False)
    desk.end(InputError("over"))
    assert as_worker(job, desk) is None and not job.out.exists()


def test_an_error_of_this_rank_ends_the_run(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device", "slab")

    monkeypatch.setattr(remote_rank, "train_rank", full)
    desk = Desk(fresh=False)
    assert isinstance(as_worker(job, desk), OSError)
    assert "no space left on the device while writing slab" in str(desk.ending()) and desk.begin() is None


def test_a_rank_that_lost_the_others_may_be_started_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*arguments: object, **named: object) -> None:
        hand_over(0, GenoctxError("rank 1 hangs"))  # a watchdog
        raise LostContact("another rank is gone")

    monkeypatch.setattr(remote_rank, "train_rank", lost)
    desk = Desk(fresh=False)
    assert isinstance(as_worker(job, desk), LostContact)
    assert desk.ending() is None and [str(m[2][0]) for m in desk.take() if m[0] == FAILED] == ["rank 1 hangs"]
    assert desk.begin() == Attempt(2, fresh=False)


def test_the_first_rank_waits_for_the_one_before_it(tmp_path: Path) -> None:
    remote_rank._wait_for_lock(tmp_path, 60)  # nobody has been here
    holder = (tmp_path / ".lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    remote_rank._wait_for_lock(tmp_path, 0)
    threading.Timer(0.3, holder.close).start()
    remote_rank._wait_for_lock(tmp_path, 60)
    assert holder.closed


def test_without_the_extra_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "genoctx.run.ray_train", raising=False)
    with pytest.raises(UsageError, match="ray is not installed") as caught:
        importlib.import_module("genoctx.run.ray_train")
    assert caught.value.hint == "install it: pip install 'genoctx[ray]'"
