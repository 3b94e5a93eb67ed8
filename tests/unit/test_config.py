"""Settings: one declaration, four sources, errors that name value, source and remedy."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest

from infinistore.config import (
    GIB,
    ClientConfig,
    ServerConfig,
    is_loopback,
    load,
    read_token,
    settings,
)
from infinistore.errors import ConfigError

CONFIGS = [ServerConfig, ClientConfig]


@pytest.mark.parametrize("config", CONFIGS)
def test_every_default_is_in_its_own_range(config: type[ServerConfig | ClientConfig]) -> None:
    assert dataclasses.asdict(load(config, environ={})) == dataclasses.asdict(config())


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_has_a_sentence_and_a_unique_name(
    config: type[ServerConfig | ClientConfig],
) -> None:
    names = [setting.name for setting in settings(config)]
    assert len(set(names)) == len(names)
    for setting in settings(config):
        assert setting.help.endswith("."), setting.field
        assert isinstance(setting.default, setting.kind), setting.field
        if setting.kind in (int, float):
            assert setting.low is not None, f"{setting.field} has no lower bound"
            assert setting.high is not None, f"{setting.field} has no upper bound"


@pytest.mark.parametrize("config", CONFIGS)
def test_every_setting_is_read_from_flag_environment_and_file(
    config: type[ServerConfig | ClientConfig], tmp_path: Path
) -> None:
    for setting in settings(config):
        if setting.choices:
            other: object = next(c for c in setting.choices if c != setting.default)
        elif setting.kind is bool:
            other = not setting.default
        elif setting.kind is str:
            other = "other"
        else:
            assert setting.low is not None
            other = setting.kind(setting.low)
            if other == setting.default:
                other = setting.kind(setting.low + 1)
        if setting.field == "evict_start":
            other = 0.99  # the lowest would contradict evict_stop
        text = str(other).lower() if isinstance(other, bool) else str(other)
        written = text if isinstance(other, (bool, int, float)) else f'"{other}"'
        file = tmp_path / "settings.toml"
        file.write_text(f"[{config.TABLE}]\n{setting.name} = {written}\n")
        for loaded in (
            load(config, {setting.field: text}, environ={}),
            load(config, environ={setting.variable: text}),
            load(config, environ={}, file=str(file)),
        ):
            assert getattr(loaded, setting.field) == other, setting.field


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[server]\nport = 1\nworkers = 1\npool = "1GiB"\n[client]\nchannels = 4\n')
    environ = {"INFINISTORE_PORT": "2", "INFINISTORE_WORKERS": "2"}
    config = load(ServerConfig, {"port": 3, "host": None}, environ=environ, file=str(file))
    assert (config.port, config.workers, config.pool_bytes) == (3, 2, GIB)
    assert config.host == "127.0.0.1"
    assert load(ClientConfig, environ={"INFINISTORE_CONFIG": str(file)}).channels == 4


def test_names_drop_the_unit_and_texts_carry_it() -> None:
    by_field = {setting.field: setting for setting in settings(ServerConfig)}
    pool, drain = by_field["pool_bytes"], by_field["drain_timeout_s"]
    assert (pool.flag, pool.variable, pool.name) == ("--pool", "INFINISTORE_POOL", "pool")
    assert (drain.flag, drain.name) == ("--drain-timeout", "drain_timeout")
    config = load(ServerConfig, {"pool_bytes": "64MiB", "drain_timeout_s": "250ms"}, environ={})
    assert (config.pool_bytes, config.drain_timeout_s) == (64 * 2**20, 0.25)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "70000"}, ["port = 70000", "--port", "0 to 65535"]),
        ({"port": "many"}, ["port = 'many'", "whole number"]),
        ({"port": 1.5}, ["port = 1.5", "whole number"]),
        ({"port": True}, ["port = True", "whole number"]),
        ({"pool_bytes": "1 gibibyte"}, ["pool = '1 gibibyte'", "64KiB"]),
        ({"pool_bytes": "65TiB"}, ["pool = 65TiB", "0B to 64TiB"]),
        ({"evict_start": "nan"}, ["evict_start = nan", "0.01 to 1.0"]),
        ({"evict_start": 0.5}, ["evict_stop = 0.9", "below evict_start = 0.5"]),
        ({"log_level": "chatty"}, ["log_level = 'chatty'", "debug, info, warning, error"]),
        ({"insecure": "maybe"}, ["insecure = 'maybe'", "true or false"]),
        ({"host": 5}, ["host = 5", "a text"]),
        ({"host": "a\0b"}, ["host", "zero byte"]),
        ({"stage_timeout_s": "inf"}, ["stage_timeout = 'inf'", "500ms"]),
        ({"stage_timeout_s": float("inf")}, ["stage_timeout = infs", "24h"]),
    ],
)
def test_an_error_names_the_value_and_the_remedy(
    flags: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ServerConfig, flags, environ={})
    for word in words:
        assert word in str(caught.value)


def test_an_error_names_the_variable_or_the_file_it_came_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="INFINISTORE_PORT"):
        load(ServerConfig, environ={"INFINISTORE_PORT": "x"})
    file = tmp_path / "settings.toml"
    file.write_text("[server]\nport = -1\n")
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        load(ServerConfig, environ={}, file=str(file))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[server]\nprot = 1\n", "did you mean port"),
        ("port = 1\n", "outside the tables"),
        ("server = 1\n", "must be a table"),
        ("[server\n", "not valid TOML"),
        ("[server]\nport = [1]\n", "whole number"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.toml") as caught:
        load(ServerConfig, environ={}, file=str(file))
    assert word in str(caught.value)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot read the settings file /nowhere"):
        load(ServerConfig, environ={}, file="/nowhere")


def test_a_constructor_checks_as_the_loader_does() -> None:
    with pytest.raises(ConfigError, match="channels = 0"):
        ClientConfig(channels=0)
    assert ClientConfig(connect_timeout_s=2).connect_timeout_s == 2.0


def test_kubernetes_service_link_is_not_our_port() -> None:
    environ = {"INFINISTORE_PORT": "tcp://10.0.0.7:22345", "INFINISTORE_WORKERS": ""}
    config = load(ServerConfig, environ=environ)
    assert (config.port, config.workers) == (22345, 0)


def test_a_token_is_never_shown() -> None:
    for config in (ServerConfig(token="s3cret"), ClientConfig(token="s3cret")):
        assert "s3cret" not in repr(config)
    with pytest.raises(ConfigError) as caught:
        load(ServerConfig, {"token": "s3\0cret"}, environ={})
    assert "cret" not in str(caught.value)


def test_a_token_comes_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    file.chmod(0o600)
    assert read_token(ServerConfig(token_file=str(file))) == "s3cret"
    assert read_token(ServerConfig(token="other")) == "other"
    file.chmod(0o622)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(ServerConfig(token_file=str(file)))
    file.chmod(0o600)
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        read_token(ServerConfig(token_file=str(file)))
    with pytest.raises(ConfigError, match="cannot read token_file"):
        read_token(ServerConfig(token_file=str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="512 bytes"):
        read_token(ServerConfig(token="\u00e9" * 257))
    with pytest.raises(ConfigError, match="keep one"):
        ServerConfig(token="a", token_file="b")


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False)],
)
def test_is_loopback(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_the_settings_page_says_what_the_declaration_says() -> None:
    root = Path(__file__).parents[2]
    page = runpy.run_path(str(root / "scripts/settings_page.py"))["page"]()
    assert (root / "docs/settings.md").read_text() == page
