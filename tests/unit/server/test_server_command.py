"""The server's command line: every setting a flag, the original's flags as aliases."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from infinistore.config import GIB, ServerConfig, settings
from infinistore.errors import ConfigError
from infinistore.server.command import ALIASES, command, read


def parse(*words: str) -> tuple[ServerConfig, list[str]]:
    flags = dict(command.make_context("serve", list(words)).params)
    file = flags.pop("file")
    return read(flags, file)


def test_every_setting_is_a_flag_in_the_help() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    for setting in settings(ServerConfig):
        assert setting.flag in result.output, setting.flag
    assert "--dev-name" not in result.output  # the original's are taken, not advertised


def test_flags_are_read() -> None:
    config, remarks = parse(
        "--port=0", "--pool", "1GiB", "--insecure", "--evict-stop=0.5", "--drain-timeout", "2s"
    )
    assert (config.port, config.pool_bytes, config.insecure) == (0, GIB, True)
    assert (config.evict_stop, config.drain_timeout_s) == (0.5, 2.0)
    assert remarks == []
    assert parse("--no-insecure")[0].insecure is False


def test_the_originals_command_line_starts_a_server() -> None:
    """As its best known operator starts it, and with every flag that it had."""
    config, remarks = parse(
        "--service-port=12345", "--manage-port=8088", "--link-type=Ethernet",
        "--hint-gid-index=7", "--prealloc-size=20", "--dev-name=mlx5_1", "--ib-port=1",
        "--host=0.0.0.0", "--log-level=warning", "--auto-increase", "--minimal-allocate-size=64",
        "--evict-interval=5", "--evict-min-threshold=0.6", "--evict-max-threshold=0.8",
        "--enable-periodic-evict",
    )  # fmt: skip
    assert (config.port, config.admin_port, config.pool_bytes) == (12345, 8088, 20 * GIB)
    assert (config.evict_stop, config.evict_start) == (0.6, 0.8)
    assert (config.housekeeping_interval_s, config.host) == (5.0, "0.0.0.0")
    assert len(remarks) == 1
    ignored = {alias.flag for alias in ALIASES if not alias.field}
    assert all(flag in remarks[0] for flag in ignored)


def test_our_own_flag_wins_over_an_alias() -> None:
    assert parse("--service-port=1", "--port=2")[0].port == 2


@pytest.mark.parametrize("words", [["--prealloc-size=1.5"], ["--prealloc-size=x"]])
def test_a_bad_alias_value_is_refused_by_name(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="--prealloc-size"):
        parse(*words)


def test_a_token_on_the_command_line_is_remarked_upon_and_not_repeated() -> None:
    config, remarks = parse("--token=s3cret")
    assert config.token == "s3cret"
    assert "INFINISTORE_TOKEN" in remarks[0]
    assert "s3cret" not in remarks[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port=70000"], "port = 70000 (from --port)"),
        (["--config=/nowhere.toml"], "/nowhere.toml"),
        (["--prot=1"], "--prot"),
        (["--log-level=loud"], "'loud' is not one of"),
        (["--host=0.0.0.0", "--port=0"], "--insecure"),
    ],
)
def test_a_bad_command_line_is_one_error_and_status_2(words: list[str], said: str) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output
