"""The unix socket: claimed once, given back, never robbed, and cleaned up after kill -9."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infinistore.errors import SetupError
from infinistore.server.unix_socket import SocketClaim, default_path, prepare_folder, sweep

# Claims a socket, binds it, says so, and waits to be killed.
OWNER = """
import socket, sys
from pathlib import Path
from infinistore.server.unix_socket import SocketClaim
claim = SocketClaim(Path(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); listener.listen()
print("owned", flush=True); sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "1.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"owned\n"
    yield process
    process.kill()
    process.communicate()


def test_a_live_owner_is_not_robbed(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "1.sock"
    with pytest.raises(SetupError, match="belongs to a running server"):
        SocketClaim(path)
    assert sweep(tmp_path) == []
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_a_dead_owners_socket_is_reclaimed(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    owner.wait()
    path = tmp_path / "1.sock"
    assert path.is_socket()
    claim = SocketClaim(path)
    assert not path.exists()
    claim.release()
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_what_the_dead_left(tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    owner.kill()
    owner.wait()
    (tmp_path / "other.txt").touch()
    assert sweep(tmp_path) == [tmp_path / "1.sock"]
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_a_release_leaves_nothing_and_may_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "1.sock"
    claim = SocketClaim(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    claim.release()
    claim.release()
    assert list(tmp_path.iterdir()) == []
    SocketClaim(path).release()


def test_a_strangers_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "1.sock"
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(path))
        stranger.listen()
        with pytest.raises(SetupError, match="in use"):
            SocketClaim(path)
        assert path.is_socket()
    SocketClaim(path).release()  # and the failed claim holds no lock


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(SetupError, match="no socket"):
        SocketClaim(path)
    assert path.read_text() == "data"


@pytest.mark.parametrize(("name", "word"), [("x" * 108, "shorter"), ("no/such/1.sock", "missing")])
def test_an_impossible_path_is_refused(tmp_path: Path, name: str, word: str) -> None:
    with pytest.raises(SetupError, match=word):
        SocketClaim(tmp_path / name)


def test_our_folder_is_private_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "infinistore"
    prepare_folder(folder)
    prepare_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(SetupError, match="mode 0700"):
        prepare_folder(folder)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(SetupError, match="mode 0700"):
        prepare_folder(link)
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="--unix-socket none"):
        prepare_folder(tmp_path / "file" / "folder")


def test_the_default_path_follows_the_port(tmp_path: Path) -> None:
    assert default_path(5, {"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "infinistore/5.sock"
    assert str(default_path(5, {})) == f"/tmp/infinistore-{os.getuid()}/5.sock"
    assert default_path(0, {}).name == f"pid-{os.getpid()}.sock"
