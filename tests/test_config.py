"""Config: precedence, strictness, and errors that lead to the line."""

from __future__ import annotations

import ast
import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest

import genoctx.config as module
from genoctx.config import (
    SECTIONS,
    Config,
    config_from_dict,
    differing_keys,
    list_presets,
    load_config,
    preset_model,
    read_preset,
)
from genoctx.errors import ConfigError, UsageError
from genoctx.model.config import ModelConfig
from genoctx.model.count import count_active, count_parameters
from genoctx.sizes import format_size, parse_size

DATA = ["data.store=stores/g", "data.windows=g.bed"]


def nano(*overrides: str) -> Config:
    return load_config(None, "nano", [*DATA, *overrides])


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


# precedence and origins


def test_set_beats_file_beats_preset(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "nano"\n[optim]\nlr = 2.0\nclip_norm = 2.0\n')
    config = load_config(path, None, [*DATA, "optim.clip_norm=3.0", "optim.clip_norm=4.0"])
    assert (config.optim.lr, config.optim.clip_norm, config.train.steps) == (2.0, 4.0, 100)
    origin = {key: where for key, _, where in config.explain()}
    assert origin["optim.lr"] == f"{path}:3"
    assert origin["optim.clip_norm"] == "--set"
    assert origin["train.steps"] == "preset nano"
    assert origin["model.intermediate_size"] == "default"


def test_preset_argument_beats_the_files_own(tmp_path: Path) -> None:
    path = write(tmp_path, 'preset = "nano"\n')
    assert load_config(path, "micro", DATA).model == preset_model("micro")


def test_paths_count_from_the_file_and_in_set_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "configs"
    folder.mkdir()
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    path = write(folder, 'preset = "nano"\n[data]\nstore = "../stores/g"\nwindows = "/w/g.bed"\n')
    config = load_config(path, None, ["train.init=ckpt"])
    assert config.data.store == tmp_path / "stores/g"
    assert config.data.windows == Path("/w/g.bed")
    assert config.train.init == here / "ckpt"


# values


def test_sizes_lists_and_whole_floats() -> None:
    config = nano("stream.chunk=16k", "train.context='512k'", "optim.betas=[0.8, 0.9]", "optim.lr=1")
    assert (config.stream.chunk, config.train.context) == (16384, 524288)
    assert config.optim.betas == (0.8, 0.9)
    assert isinstance(config.optim.lr, float)


def test_pad_token_minus_one_is_none_and_absent_fits_the_vocabulary(tmp_path: Path) -> None:
    assert nano().model.pad_token_id is None
    assert load_config(write(tmp_path, "[model]\nvocab_size = 16\n"), None, DATA).model.pad_token_id is None
    assert load_config(None, "glm-5.3-flash", DATA).model.pad_token_id == 154820


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[optim]\nlrate = 1\n", "unknown key optim.lrate (run.toml:2)", "did you mean optim.lr?"),
        ("[optm]\nlr = 1\n", "unknown section [optm] (run.toml:2)", "did you mean [optim]?"),
        ("lr = 1\n", "unknown key lr (run.toml:1)", "did you mean optim.lr?"),
        ("optim.lr = 1.0\noptim.stepz = 1\n", "key optim.stepz (run.toml:2)", "did you mean train.steps?"),
        ("[train]\nzzz = 1\n", "unknown key train.zzz (run.toml:2)", "keys of [train]: steps, "),
        ("\n[optim]\n\nlr = 'x'\n", "optim.lr = 'x' (run.toml:4) should be a valid number", ""),
        ("[stream]\nchunk = 0\n", "stream.chunk = 0 (run.toml:2) should be greater than or equal to 1", ""),
        ("[stream]\nchunk = '4q'\n", "stream.chunk = '4q' (run.toml:2): '4q' is not a size", "4k, 512k, 1M"),
        ("[stream]\ndtype = 'fp8'\n", "should be 'float32', 'bfloat16' or 'float64'", ""),
        ("[train]\nsteps = true\n", "train.steps = True (run.toml:2) should be a valid integer", ""),
        ("[optim]\nlr = nan\n", "optim.lr = nan (run.toml:2) should be a finite number", ""),
        ("[optim]\nbetas = [0.9, 1.0]\n", "at position 1 should be less than 1", ""),
        ("[train]\nbatch = 2\n", "train.batch 2 exceeds the 1 windows of a step", "train.windows_per_step"),
        ("[model]\nvocab_size = 16\npad_token_id = 16\n", "not a token of a vocabulary of 16", "-1"),
        ("[lora]\nrnak = 8\n", "unknown key lora.rnak (run.toml:2)", "did you mean lora.rank?"),
        ("[lora]\ntargets = 'q_proj'\n", "lora.targets = 'q_proj' (run.toml:2) should be a valid tuple", ""),
        ("[train]\ntrainble = []\n", "unknown key train.trainble (run.toml:2)", "did you mean train.trainable?"),
        ("[optim\n", "(at line 1, column 7)", "TOML"),
        ('preset = "nan"\n', "no preset called 'nan'", "did you mean nano?"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_with_its_line(
    text: str, message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(Path("run.toml"), None, DATA)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lr", "is not KEY=VALUE"),
        ("optim.lrr=1", "unknown key optim.lrr (--set)"),
        ("=1", "is not KEY=VALUE"),
    ],
)
def test_a_bad_override_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        nano(override)


def test_missing_data_says_which_key() -> None:
    with pytest.raises(ConfigError, match=r"data\.store is missing") as caught:
        load_config(None, "nano")
    assert "--set data.store=" in caught.value.hint


def test_missing_file_with_a_presets_name_points_to_the_preset() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(Path("nano.toml"), None, DATA)
    assert "--preset nano" in caught.value.hint


# resolved config and digest


@pytest.mark.parametrize("name", list_presets())
def test_resolved_config_round_trips(name: str) -> None:
    config = load_config(None, name, [*DATA, "model.pad_token_id=-1"])
    assert config_from_dict(json.loads(json.dumps(config.to_dict()))) == config


FREE = [
    "data.store=elsewhere",
    "stream.chunk=64",
    "stream.threads=3",
    "checkpoint.keep=9",
    "eval.limit=3",
    "train.init=x",
]


@pytest.mark.parametrize("override", FREE)
def test_digest_ignores_what_does_not_determine_the_result(override: str) -> None:
    assert nano(override).digest == nano().digest
    assert differing_keys(nano().to_dict(), nano(override).to_dict()) == []


@pytest.mark.parametrize(
    "override", ["optim.lr=0.5", "train.seed=1", "model.swiglu_limit=9.0", "loss.balance=0.5"]
)
def test_digest_follows_what_does(override: str) -> None:
    assert nano(override).digest != nano().digest
    (change,) = differing_keys(nano().to_dict(), nano(override).to_dict())
    key, _, value = override.partition("=")
    assert change.startswith(f"{key} ")
    assert change.endswith(f"-> {value}")


@pytest.mark.parametrize("override", ["lora.rank=8", "train.freeze=['layers.0']", "train.trainable=['norm']"])
def test_what_is_trained_is_part_of_it_but_not_what_says_nothing(override: str) -> None:
    assert nano(override).digest != nano().digest
    key = override.partition("=")[0]
    assert any(
        text.startswith(f"{key} ") for text in differing_keys(nano().to_dict(), nano(override).to_dict())
    )
    older = nano().to_dict()
    for later in ("lora", "homes", "parallel"):
        del older[later]
    del older["train"]["trainable"], older["train"]["freeze"]
    assert differing_keys(older, nano("lora.alpha=7.0").to_dict()) == []


def test_moments_do_not_come_along_with_adapters() -> None:
    with pytest.raises(ConfigError, match="does not go with lora"):
        nano("lora.rank=4", "train.init=x", "train.init_moments=true")


def test_digest_is_stable() -> None:
    """A changed digest strands every run directory there is: change it on purpose only."""
    tiny = ModelConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, pad_token_id=None)
    config = Config(data=nano().data, model=tiny)
    assert config.digest == "bd438e080bee8374"


# presets


def spelled_out(name: str) -> dict[str, set[str]]:
    """The keys of a preset and of those it builds on, by section."""
    import tomllib

    raw = tomllib.loads(read_preset(name))
    below = spelled_out(raw.pop("preset")) if "preset" in raw else {}
    return {section: set(raw.get(section, ())) | below.get(section, set()) for section in SECTIONS}


@pytest.mark.parametrize("name", list_presets())
def test_presets_spell_out_every_key_that_matters(name: str) -> None:
    found = spelled_out(name)
    optional = {"layer_types", "mlp_layer_types", "intermediate_size", "init", "folder"}
    for section, kind in SECTIONS.items():
        if section != "data":
            assert {f.name for f in fields(kind)} - optional <= found[section], section


def test_a_preset_builds_on_another_and_each_value_says_which() -> None:
    config = load_config(None, "gpu1-lora-1m", DATA)
    origin = {key: where for key, _, where in config.explain()}
    assert origin["homes.carries"] == "preset gpu1-lora-1m"
    assert origin["lora.rank"] == "preset gpu1-lora-512k"
    assert origin["optim.betas"] == "preset glm-5.3-flash"
    assert (config.lora.rank, config.model.dsa_layers, config.model.hidden_size) == (16, (3, 7), 4096)


def test_published_shape_and_its_count() -> None:
    model = preset_model("glm-5.3-flash")
    assert model == ModelConfig()
    assert count_parameters(model) == 313_326_811_966  # spec section 1.2
    assert round(count_active(model) / 1e9, 2) == 17.38


def test_small_is_about_100m() -> None:
    assert 90e6 < count_parameters(preset_model("small")) < 110e6


def test_nano_and_micro_have_the_layers_they_promise() -> None:
    assert preset_model("nano").dsa_layers == (3, 7)
    assert preset_model("nano").moe_layers == tuple(range(8))
    assert preset_model("micro").dsa_layers == (3,)
    assert preset_model("micro").moe_layers == (1, 2, 3)


def test_every_field_is_documented() -> None:
    tree = ast.parse(inspect.getsource(module))
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Config") and node.name != "Config":
            for item, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(item, ast.AnnAssign):
                    assert isinstance(after, ast.Expr), (
                        f"{node.name}.{ast.unparse(item.target)} has no docstring"
                    )


# sizes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("4k", 4096),
        ("512K", 524288),
        ("1.5M", 3 << 19),
        ("1000000bp", 10**6),
        ("2 Mb", 2 * 10**6),
        (7, 7),
    ],
)
def test_parse_size(text: str | int, value: int) -> None:
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "k", "4q", "-4k", "0.3", "1e6", "9" * 400, "2000000G"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_format_size() -> None:
    assert [format_size(n) for n in (0, 1000, 4096, 1 << 20, (1 << 20) + 1)] == [
        "0",
        "1,000",
        "4k",
        "1M",
        "1,048,577",
    ]
