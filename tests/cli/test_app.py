"""The command line as a shell sees it: exit codes, what is on stdout, what is on stderr."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from genoctx import __version__
from genoctx.cli import app, show
from genoctx.cli.verbs import GLOBAL_PANEL, VERBS, Verb
from genoctx.errors import CheckFailed, GenoctxError, StoppedOnRequest, WouldNotFit

Raiser = Callable[[BaseException], None]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def show_raises(monkeypatch: pytest.MonkeyPatch) -> Raiser:
    """Makes ``genoctx show X`` raise a given exception."""

    def install(error: BaseException) -> None:
        def fake(what: str) -> None:
            raise error

        monkeypatch.setattr(show, "show", fake)

    return install


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["typer", "numpy"])
@pytest.mark.parametrize("swallowed", [False, True])
def test_ctrl_c_while_a_module_is_imported_is_one_word(
    module: str, swallowed: bool, tmp_path: Path, genomes: Path
) -> None:
    """Whatever error the half-imported module then ends in."""
    body = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    os.getpid()\n"
    body += (
        "finally:\n    raise AttributeError('no attribute matrix')\n" if swallowed else "finally:\n    'x'\n"
    )
    (tmp_path / f"{module}.py").write_text(body)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "genoctx",
            "ingest",
            str(genomes / "lambda_phage.fa.gz"),
            "-o",
            str(tmp_path / "s"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'kernels'}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_never_imports_torch(verb: str) -> None:
    args = [verb, "--help"] if verb else ["--help"]
    code = (
        "import sys; from genoctx.cli.app import run; "
        f"code = run({args!r}); "
        "heavy = {'torch', 'numpy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = in_new_process(code)
    assert done.returncode == 0, done.stderr
    assert "Usage: genoctx" in done.stdout


def test_top_help_has_the_three_panels(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run([]) == 0
    out = capsys.readouterr().out
    for word in ("Data", "Model", "Check", *VERBS):
        assert word in out


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda v: v.name)
def test_verb_has_few_flags_and_a_docstring(verb: Verb) -> None:
    root = app.build_command()
    with root.make_context("genoctx", ["--no-progress", verb.name]) as ctx:
        command = root.get_command(ctx, verb.name)
    own = [p for p in command.params if getattr(p, "rich_help_panel", None) != GLOBAL_PANEL]
    flags = [p for p in own if p.param_type_name == "option" and p.name != "help"]
    assert len(flags) <= 12
    assert command.help
    assert all(p.help for p in own if p.name != "help"), "every argument and flag says what it is"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["-V"]) == 0
    assert capsys.readouterr().out == f"genoctx {__version__}\n"
    for args in (["--version", "--json"], ["--json", "-V"], ["ingest", "-V", "--json"]):
        assert app.run(args) == 0
        assert json.loads(capsys.readouterr().out) == {"version": __version__}


@pytest.mark.parametrize("args", [["--json", "show", "presets"], ["show", "presets", "--json"]])
def test_global_options_work_on_both_sides_of_the_verb(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(args) == 0
    found = json.loads(capsys.readouterr().out)
    assert {p["name"] for p in found["presets"]} >= {"nano", "small", "glm-5.3-flash"}


def test_a_verb_without_options_leaves_the_console_in_its_defaults() -> None:
    assert app.run(["-q", "--json", "show", "presets"]) == 0
    assert app.run(["show", "presets"]) == 0
    console = app.get_console()
    assert (console.json, console.verbosity, console.color, console.show_progress) == (False, 0, "auto", True)


@pytest.mark.parametrize(("flag", "verbosity"), [("-q", -1), ("-v", 1), ("-vv", 2), ("-vvv", 2)])
def test_verbosity(flag: str, verbosity: int) -> None:
    assert app.run(["show", "presets", flag]) == 0
    assert app.get_console().verbosity == verbosity


@pytest.mark.parametrize(
    ("args", "message", "guess"),
    [
        (["trian"], "No such command", "'train'"),
        (["show", "presets", "--jsno"], "No such option: --jsno", "'--json'"),
        (["show", "preset", "nanoo"], "no preset called 'nanoo'", "nano"),
    ],
)
def test_typos_get_a_suggestion(
    args: list[str], message: str, guess: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {message}" in err
    assert f"hint: did you mean {guess}?" in err


def test_a_value_that_is_no_choice_lists_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["convert", "a", "b", "--to", "xx"]) == 2
    assert "error: Invalid value for '--to': 'xx' is not one of 'hf', 'genoctx'" in capsys.readouterr().err


def test_a_name_that_the_locale_cannot_spell_is_escaped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from genoctx.cli import app; app.set_up_console().print('chr\\xe9')"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("chr\\xe9\n", "")


def test_missing_argument_points_to_the_verbs_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["show"]) == 2
    err = capsys.readouterr().err
    assert "error: Missing argument 'WHAT'." in err
    assert "genoctx show --help" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GenoctxError("it broke", "mend it"), 1),
        (CheckFailed("it broke", "mend it"), 3),
        (WouldNotFit("it broke", "mend it"), 4),
        (StoppedOnRequest("it broke", "mend it"), 75),
    ],
)
def test_our_errors_carry_their_code(
    error: GenoctxError, code: int, show_raises: Raiser, capsys: pytest.CaptureFixture[str]
) -> None:
    show_raises(error)
    assert app.run(["show", "x", "--json"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: it broke\nhint: mend it\n"


def test_interrupt(show_raises: Raiser, capsys: pytest.CaptureFixture[str]) -> None:
    show_raises(KeyboardInterrupt())
    assert app.run(["show", "x"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_verb_may_choose_its_exit_code(show_raises: Raiser) -> None:
    show_raises(typer.Exit(3))
    assert app.run(["show", "x"]) == 3


def test_unexpected_error_leaves_a_log(
    show_raises: Raiser, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    show_raises(ZeroDivisionError("by zero\nsecond line"))
    assert app.run(["show", "x"]) == 1
    err = capsys.readouterr().err
    (log,) = tmp_path.iterdir()
    assert err.splitlines() == [
        "error: unexpected ZeroDivisionError: by zero",
        f"hint: the traceback is in {log}; -vv prints it here",
    ]
    assert "Traceback" in log.read_text()


def test_vv_prints_the_traceback(show_raises: Raiser, capsys: pytest.CaptureFixture[str]) -> None:
    show_raises(ZeroDivisionError("by zero"))
    assert app.run(["show", "x", "-vv"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_full_disk_is_named(show_raises: Raiser, capsys: pytest.CaptureFixture[str]) -> None:
    show_raises(OSError(errno.ENOSPC, "No space left on device", "runs/a/x"))
    assert app.run(["show", "x"]) == 1
    err = capsys.readouterr().err
    assert "no space left on the device while writing runs/a/x" in err
    assert "Traceback" not in err


def test_unreadable_file_is_named(show_raises: Raiser, capsys: pytest.CaptureFixture[str]) -> None:
    show_raises(PermissionError(errno.EACCES, "Permission denied", "secret.fa"))
    assert app.run(["show", "x"]) == 1
    assert "error: secret.fa: Permission denied" in capsys.readouterr().err


def test_closed_pipe_is_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "genoctx", "show", "preset", "nano"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == app.EXIT_CLOSED_PIPE


def test_brackets_in_help_stay(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fake(what: str) -> None:
        """Shows the [data] section."""

    monkeypatch.setattr(show, "show", fake)
    assert app.run(["show", "--help"]) == 0
    assert "[data] section" in capsys.readouterr().out


def test_completion_lists_verbs() -> None:
    env = {**os.environ, "_GENOCTX_COMPLETE": "complete_bash", "COMP_WORDS": "genoctx sh", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "genoctx"], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["show"]


@pytest.mark.parametrize("verb", VERBS.values(), ids=lambda v: v.name)
def test_the_registry_names_real_functions(verb: Verb) -> None:
    module = importlib.import_module(f"genoctx.cli.{verb.name}")
    assert callable(getattr(module, verb.function))


@pytest.mark.parametrize("verb", VERBS)
def test_the_manual_lists_every_flag_and_no_other(verb: str) -> None:
    """docs/cli.md has a section per verb; the flags named in it are those the verb has."""
    sections = re.split(r"^## ", (ROOT / "docs/cli.md").read_text(), flags=re.MULTILINE)
    manual = {title: body for title, _, body in (s.partition("\n") for s in sections)}
    root = app.build_command()
    with root.make_context("genoctx", ["--no-progress", verb]) as ctx:
        command = root.get_command(ctx, verb)
    own = [p for p in command.params if getattr(p, "rich_help_panel", None) != GLOBAL_PANEL]
    flags = {opt for p in own for opt in [*p.opts, *p.secondary_opts] if opt.startswith("-")}
    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", manual[verb]))
    assert {f for f in flags if f.startswith("--")} - {"--help"} <= named
    assert named <= flags
