"""The command line's table: default command, help without imports, errors of one line."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from infinistore import cli
from infinistore.cli import COMMANDS, group, main, missing_module, with_default_command
from infinistore.errors import SetupError


@pytest.mark.parametrize(
    ("words", "full"),
    [
        ([], ["serve"]),
        (["--port=0"], ["serve", "--port=0"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["--version"], ["--version"]),
        (["status", "--json"], ["status", "--json"]),
        (["serve", "--help"], ["serve", "--help"]),
    ],
)
def test_flags_alone_mean_serve(words: list[str], full: list[str]) -> None:
    assert with_default_command(words) == full


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    for entry in COMMANDS:
        assert f"{entry.name} " in result.output
        assert entry.help in result.output


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_command_loads_and_explains_itself(entry: cli.Entry) -> None:
    result = CliRunner().invoke(group, [entry.name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom infinistore.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'vllm', 'numpy', 'aiohttp', 'rich', 'uvloop'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("word", "said"), [("statsu", "did you mean status"), ("xyz", "--help")])
def test_an_unknown_command_is_refused_with_a_hint(
    word: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def _run_raising(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    @click.command("failing")
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli, "load", lambda entry: failing)
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_an_error_of_ours_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run_raising(SetupError("no memory; buy some"), monkeypatch) == 1
    assert capsys.readouterr().err == "infinistore: error: no memory; buy some\n"


def test_a_missing_extra_is_one_line_with_its_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    assert _run_raising(error, monkeypatch) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "pip install 'infinistore[torch]'" in said


def test_missing_modules_are_told_apart() -> None:
    assert "pip install redis" in missing_module("redis.client")
    assert "reinstall" in missing_module("infinistore.cli.bench")
