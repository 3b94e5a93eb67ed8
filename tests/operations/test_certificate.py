"""HTTPS on the admin port: certificates that are trusted, not trusted, changed and broken."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server_process import ServerProcess
from waiting import until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here")


def make(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, which signed itself, and its key."""
    chain, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += f" -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -out {chain} -keyout {key}"
    subprocess.run(command.split(), check=True, capture_output=True, timeout=30)
    return chain, key


def put(pair: tuple[Path, Path], folder: Path) -> list[str]:
    """As the files that the server reads, each replaced in one step; the flags that name them."""
    flags = []
    for source, flag in zip(pair, ("--tls-cert-file", "--tls-key-file"), strict=True):
        target = folder / flag.removeprefix("--")
        shutil.copy(source, f"{target}.new")
        os.replace(f"{target}.new", target)
        flags.append(f"{flag}={target}")
    return flags


def shown(server: ServerProcess) -> str:
    """The fingerprint of what a new connection is greeted with."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = server.admin_address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return hashlib.sha256(secured.getpeercert(binary_form=True) or b"").hexdigest()


def fingerprint(chain: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(chain.read_text())).hexdigest()


def status(address: str, trusted: Path | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "infinistore", "status", "--json", f"--admin={address}"]
    environment = os.environ | ({"SSL_CERT_FILE": str(trusted)} if trusted else {})
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)


def test_the_command_line_asks_over_https(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    chain, key = make(tmp_path, "first")
    server = start_server(*put((chain, key), tmp_path))
    address = f"https://{server.admin_address}"
    assert status(address, chain).returncode == 0
    stranger = status(address, None)
    assert stranger.returncode == 1
    assert "is not trusted" in stranger.stderr
    assert "SSL_CERT_FILE" in stranger.stderr
    plain = status(server.admin_address, chain)
    assert plain.returncode == 1
    assert "capacity_bytes" not in plain.stdout
    assert server.stop() == 0


def test_a_new_certificate_is_taken_and_a_broken_one_is_not(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    first, second = make(tmp_path, "first"), make(tmp_path, "second")
    server = start_server(*put(first, tmp_path))
    assert shown(server) == fingerprint(first[0])
    put(second, tmp_path)
    until(lambda: shown(server) == fingerprint(second[0]))
    put((first[0], second[1]), tmp_path)  # no pair
    until(lambda: "the old one stays" in server.log())
    assert shown(server) == fingerprint(second[0])
    put(first, tmp_path)
    until(lambda: shown(server) == fingerprint(first[0]))


def test_https_to_a_server_that_does_not_speak_it(server: ServerProcess) -> None:
    ended = status(f"https://{server.admin_address}", None)
    assert ended.returncode == 1
    assert "does not speak HTTPS" in ended.stderr


@pytest.mark.parametrize("given", ["no pair", "one", "missing"])
def test_a_start_names_what_is_wrong(tmp_path: Path, given: str) -> None:
    first, second = make(tmp_path, "first"), make(tmp_path, "second")
    pair = (first[0], second[1]) if given == "no pair" else first
    flags = put(pair, tmp_path)
    if given == "missing":
        (tmp_path / "tls-key-file").unlink()
    command = [sys.executable, "-m", "infinistore.server", "--port=0", "--admin-port=0"]
    command += flags[:1] if given == "one" else flags
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "tls_key_file" in ended.stderr
    assert "Traceback" not in ended.stderr
