"""Ingests that die, at any moment and of any cause; and ingests that run at the same time."""

import errno
import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from genome_helpers import fasta

from genoctx.errors import UsageError
from genoctx.genome.staging import sweep
from genoctx.genome.store import GenomeStore, ingest

# stops where a test wants it, says so, and goes on when its standard input is closed
DRIVER = """
import sys
from importlib import import_module
from genoctx.errors import GenoctxError
from genoctx.genome.store import ingest

where, fasta, target, force = sys.argv[1:5]

def stop():
    print("here", flush=True)
    sys.stdin.read()

def stopping(function, before):
    def wrapped(*args, **kwargs):
        if before:
            stop()
        result = function(*args, **kwargs)
        if not before:
            stop()
        return result
    return wrapped

when, _, what = where.partition(" ")
progress = None
if what == "reading":
    progress = lambda n: stop()
else:
    name, _, attribute = what.rpartition(".")
    owner = import_module(name)
    setattr(owner, attribute, stopping(getattr(owner, attribute), when == "before"))
try:
    ingest(fasta, target, force=force == "force", progress=progress)
except GenoctxError as error:
    print(error.message)
    sys.exit(error.exit_code)
"""

MOMENTS = [
    "before reading",
    "before genoctx.genome.staging.refuse_taken",
    "after genoctx.genome.staging._new_lock",
    "before genoctx.genome.ingest.write_manifest",
    "after genoctx.genome.ingest.write_manifest",
    "before os.rename",
    "after os.rename",
    "before shutil.rmtree",
]


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def start(where, fasta, target, force=False):
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, where, str(fasta), str(target), "force" if force else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout.readline() == "here\n"
    return process


def finish(process):
    """Let a stopped ingest go on: every further stop is passed over, too."""
    out, _ = process.communicate()
    return process.returncode, out.replace("here\n", "")


def kill(process):
    process.kill()
    process.communicate()


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.parent.name != "s")


@pytest.fixture
def genome(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "old.fa").write_bytes(fasta({"a": "ACGT" * 500}))
    (folder / "new.fa").write_bytes(fasta({"b": "GATTACA" * 500, "c": "acgtn" * 100}))
    return folder


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rerun_after_a_kill_gives_the_store_and_no_debris(tmp_path, genome, moment, force):
    target = tmp_path / "out" / "s"
    if force:
        ingest(genome / "old.fa", target)
    kill(start(moment, genome / "new.fa", target, force))
    if target.exists():  # complete, or not there
        assert GenomeStore.open(target).contigs[0].name in "ab"
    store = ingest(genome / "new.fa", target, force=True)
    assert [contig.name for contig in store.contigs] == ["b", "c"]
    assert tree(tmp_path / "out") == ["s"]


def test_the_old_store_comes_back_when_the_new_one_died_in_its_place(tmp_path, genome):
    """Killed between the two renames, and then the rerun fails: nothing is lost."""
    target = tmp_path / "out" / "s"
    digest = ingest(genome / "old.fa", target).digest
    kill(start("after os.rename", genome / "new.fa", target, force=True))
    assert not target.exists()
    (genome / "bad.fa").write_bytes(b">a\n!\n")
    with pytest.raises(UsageError, match="exists already"):
        ingest(genome / "bad.fa", target)
    assert GenomeStore.open(target).digest == digest
    assert tree(tmp_path / "out") == ["s"]


def test_a_kill_at_a_random_moment(tmp_path, genome):
    target = tmp_path / "out" / "s"
    (genome / "large.fa").write_bytes(fasta({f"c{n}": "ACGTTGCATA" * 30_000 for n in range(10)}))
    command = [
        sys.executable,
        "-m",
        "genoctx",
        "ingest",
        str(genome / "large.fa"),
        "-o",
        str(target),
        "--force",
    ]
    for seed in range(5):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment())
        time.sleep(random.Random(seed).uniform(0.1, 0.5))
        process.kill()
        process.wait()
    done = subprocess.run(command, capture_output=True, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    assert GenomeStore.open(target).bases == 3_000_000
    assert tree(tmp_path / "out") == ["s"]


# at the same time


def test_a_living_ingest_is_not_disturbed(tmp_path, genome):
    target = tmp_path / "out" / "s"
    slow = start("before reading", genome / "old.fa", target)
    store = ingest(genome / "new.fa", target)
    assert len(tree(tmp_path / "out")) == 5  # the store, and lock, folder and two files of the other
    code, out = finish(slow)
    assert (code, out) == (2, f"{target} exists already\n")
    assert tree(tmp_path / "out") == ["s"]
    assert GenomeStore.open(target).digest == store.digest


def test_the_last_one_with_force_wins(tmp_path, genome):
    target = tmp_path / "out" / "s"
    ingest(genome / "new.fa", target)
    slow = start("before genoctx.genome.staging.sync_folder", genome / "old.fa", target, force=True)
    ingest(genome / "new.fa", target, force=True)
    assert finish(slow)[0] == 0
    assert [contig.name for contig in GenomeStore.open(target).contigs] == ["a"]
    assert tree(tmp_path / "out") == ["s"]


def test_a_store_that_appears_between_the_renames_is_replaced(tmp_path, genome):
    target = tmp_path / "out" / "s"
    ingest(genome / "new.fa", target)
    slow = start("after os.rename", genome / "old.fa", target, force=True)
    ingest(genome / "new.fa", target)
    assert finish(slow)[0] == 0
    assert [contig.name for contig in GenomeStore.open(target).contigs] == ["a"]
    assert tree(tmp_path / "out") == ["s"]


def test_targets_with_similar_names(tmp_path, genome):
    slow = start("before reading", genome / "old.fa", tmp_path / "out" / "s.1")
    dead = start("before reading", genome / "old.fa", tmp_path / "out" / "s.2")
    kill(dead)
    ingest(genome / "new.fa", tmp_path / "out" / "s")
    assert len([name for name in os.listdir(tmp_path / "out") if name.startswith(".s.2.")]) == 2
    assert finish(slow) == (0, "")
    ingest(genome / "new.fa", tmp_path / "out" / "s.2")
    assert sorted(os.listdir(tmp_path / "out")) == ["s", "s.1", "s.2"]


def test_what_is_not_ours_stays(tmp_path):
    for name in (".s.0123abcd.partial.txt", ".s.0123ABCD.partial", ".s.x.partial", "s.0123abcd.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / ".s.0123abcd.partial").mkdir()
    sweep(tmp_path / "s")
    assert len(os.listdir(tmp_path)) == 4
    assert not (tmp_path / ".s.0123abcd.partial").exists()


def test_a_file_system_without_locks(tmp_path, genome, monkeypatch):
    """Nobody can tell whether what lies there is alive: it stays."""
    dead = start("before reading", genome / "old.fa", tmp_path / "out" / "s")
    kill(dead)
    left = tree(tmp_path / "out")

    def no_locks(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    ingest(genome / "new.fa", tmp_path / "out" / "s")
    assert tree(tmp_path / "out") == sorted([*left, "s"])


# the command line: Ctrl-C, killed workers, full disks


def pipes(folder, count):
    names = [folder / f"pipe{n}" for n in range(count)]
    for name in names:
        os.mkfifo(name)
    return names


def command(*args):
    return subprocess.Popen(
        [sys.executable, "-m", "genoctx", "ingest", *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def feed(pipe):
    """Open ``pipe``, which waits for its reader, and write the beginning of a genome."""
    file = pipe.open("wb", buffering=0)
    file.write(b">x\nACGT\n")
    return file


def ends(pipe):
    """Write until nobody reads."""
    with pytest.raises(BrokenPipeError):
        while True:
            pipe.write(b"ACGT" * 1000 + b"\n")


def wait_until_it_waits(process):
    """A signal that comes just before a blocking read is seen after it: Python cannot help that."""
    calm = 0
    while calm < 5:
        time.sleep(0.02)
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        calm = calm + 1 if state == "S" else 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c(tmp_path, jobs):
    names = pipes(tmp_path, jobs)
    process = command(*names, "-o", tmp_path / "out" / "s", "--jobs", jobs)
    files = [feed(name) for name in names]
    wait_until_it_waits(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, err) == (130, "interrupted\n")
    assert not (tmp_path / "out").exists()
    for file in files:
        ends(file)


def workers_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def test_a_killed_worker_ends_the_ingest(tmp_path):
    names = pipes(tmp_path, 2)
    process = command(*names, "-o", tmp_path / "out" / "s", "--jobs", 2)
    files = [feed(name) for name in names]
    os.kill(workers_of(process)[0], signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 1
    assert f"error: the process that read {names[0]} was killed by signal 9" in err
    assert "hint: if it was for memory, give fewer --jobs" in err
    assert not (tmp_path / "out").exists()
    for file in files:
        ends(file)


def test_workers_end_with_their_parent_and_hold_its_place_until_then(tmp_path, genome):
    names = pipes(tmp_path, 2)
    target = tmp_path / "out" / "s"
    process = command(*names, "-o", target, "--jobs", 2)
    files = [feed(name) for name in names]
    process.kill()
    process.communicate()
    ingest(genome / "old.fa", target)
    assert len(os.listdir(tmp_path / "out")) == 3  # the workers live: store, lock and folder
    for file in files:
        ends(file)
    (lock,) = (tmp_path / "out").glob(".*.lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # a dying process closes its pipe a moment before its lock
    ingest(genome / "old.fa", target, force=True)
    assert os.listdir(tmp_path / "out") == ["s"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_cannot_grow(tmp_path, jobs):
    """The limit on file sizes stands for a full disk: both are errors of write()."""
    paths = []
    for n in range(2):
        paths.append(tmp_path / f"{n}.fa")
        paths[-1].write_bytes(fasta({f"c{n}": "ACGT" * 100_000}))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "genoctx",
            "ingest",
            *map(str, paths),
            "-o",
            str(tmp_path / "s"),
            "--jobs",
            str(jobs),
        ],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )
    assert done.returncode == 1
    assert "codes.u8: File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["0.fa", "1.fa"]
