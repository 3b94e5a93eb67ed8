"""Certificates for tests: an authority, and what it vouches for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HAS_OPENSSL = shutil.which("openssl") is not None
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"


def _openssl(command: str) -> None:
    subprocess.run(["openssl", *command.split()], check=True, capture_output=True, timeout=30)


class Authority:
    """Signs in `folder`; its own certificate is `chain`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.chain, self._key = folder / f"{name}.pem", folder / f"{name}.key"
        _openssl(f"req -x509 {_KEY} -days 2 -subj /CN={name} -out {self.chain} -keyout {self._key}")

    def sign(
        self, name: str, *, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2
    ) -> tuple[Path, Path]:
        """A certificate of `names` and its key; one of a negative number of days has expired."""
        chain, key, wish = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        _openssl(
            f"req {_KEY} -subj /CN={name} -addext subjectAltName={names} -out {wish} -keyout {key}"
        )
        _openssl(
            f"x509 -req -in {wish} -CA {self.chain} -CAkey {self._key} -CAcreateserial "
            f"-days {days} -copy_extensions copy -out {chain}"
        )
        return chain, key


def flags_of(pair: tuple[Path, Path]) -> tuple[str, str]:
    """By which a server speaks TLS with it."""
    return f"--tls-cert-file={pair[0]}", f"--tls-key-file={pair[1]}"
