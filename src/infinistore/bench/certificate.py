"""A certificate of 127.0.0.1 for the server of one run, made by the command `openssl`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from infinistore.errors import SetupError

TIMEOUT_S = 60


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """The certificate, which vouches for itself, and its key. Raises `SetupError`."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += f" -subj /CN=bench -addext subjectAltName=IP:127.0.0.1 -out {chain} -keyout {key}"
    try:
        subprocess.run(command.split(), check=True, capture_output=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(
            f"no certificate for the server of the benchmark ({error}); install openssl, or give "
            "--url infinistores://HOST:PORT"
        ) from error
    return chain, key
