"""The weights' digest: of bytes, remembered by inode, honest when files change."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from infinistore.connectors.vllm import weights
from infinistore.connectors.vllm.weights import AdapterDigests, UnknownWeights, digest_directory
from waiting import until


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of two shards."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "tokenizer_config.json").write_text("{}")
    (path / "a.safetensors").write_bytes(b"first shard")
    (path / "b.safetensors").write_bytes(b"second shard")
    return path


def settle(path: Path) -> None:
    """Makes a file old enough to be remembered."""
    for file in path.iterdir():
        os.utime(file, ns=(1, 1))


def test_the_same_bytes_elsewhere_have_the_same_digest(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert digest_directory(model, tmp_path / "c") == digest_directory(other, tmp_path / "c")


@pytest.mark.parametrize("name", ["config.json", "a.safetensors", "b.safetensors"])
def test_a_changed_byte_changes_it_under_the_same_name_and_size(
    model: Path, tmp_path: Path, name: str
) -> None:
    before = digest_directory(model, tmp_path / "cache")
    content = bytearray((model / name).read_bytes())
    content[-1] ^= 1
    (model / name).write_bytes(content)
    assert digest_directory(model, tmp_path / "cache") != before


def test_the_tokenizer_is_no_part_of_it(model: Path, tmp_path: Path) -> None:
    before = digest_directory(model, tmp_path / "cache")
    (model / "tokenizer_config.json").write_text("{1}")
    assert digest_directory(model, tmp_path / "cache") == before


def test_a_file_is_read_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_SETTLED_NS", -1)
    before = digest_directory(model, tmp_path / "cache")
    monkeypatch.setattr(weights, "_read", lambda file: pytest.fail(f"{file} was read again"))
    assert digest_directory(model, tmp_path / "cache") == before


def test_a_file_that_changed_a_moment_ago_is_not_remembered(model: Path, tmp_path: Path) -> None:
    digest_directory(model, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_costs_only_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_SETTLED_NS", -1)
    (tmp_path / "cache").write_text("a file where the directory should be")
    assert digest_directory(model, tmp_path / "cache")


def test_a_directory_without_weights_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(UnknownWeights, match="has no weights"):
        digest_directory(tmp_path)


def test_a_file_that_changes_under_the_reader_has_no_digest(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_change(file: Path) -> str:
        file.write_bytes(b"longer than it was before")
        return "0" * 64

    monkeypatch.setattr(weights, "_read", read_and_change)
    with pytest.raises(UnknownWeights, match="changed while it was read"):
        digest_directory(model, tmp_path / "cache")


def test_an_adapter_has_a_digest_soon_and_none_once_its_files_change(
    model: Path, tmp_path: Path
) -> None:
    adapters = AdapterDigests(tmp_path / "cache")
    assert adapters.find("x", 1, str(model)) is None
    until(lambda: adapters.find("x", 1, str(model)))
    assert adapters.find("x", 1, str(model)) == digest_directory(model, tmp_path / "cache")
    time.sleep(0.01)
    (model / "a.safetensors").write_bytes(b"other weights")
    # The engine may hold the old ones or the new ones.
    assert adapters.find("x", 1, str(model)) is None
    adapters.close()


def test_an_adapter_that_is_not_there_has_none(tmp_path: Path) -> None:
    adapters = AdapterDigests(tmp_path / "cache")
    adapters.find("x", 1, str(tmp_path / "nowhere"))
    until(lambda: not adapters.is_pending("x", 1, str(tmp_path / "nowhere")))
    assert adapters.find("x", 1, str(tmp_path / "nowhere")) is None
    adapters.close()
