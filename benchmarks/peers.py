"""Installs peers beside the environment, never into it: `python benchmarks/peers.py NAME...`.

build/peers/NAME    a peer's Python packages, and what was unpacked from packages of the system
build/peers/lib     the system's RDMA library, which Mooncake links even where only TCP is used
"""

from __future__ import annotations

import argparse
import ctypes
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "peers"


class PeerUnavailableError(RuntimeError):
    """The peer cannot be installed or run here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one peer is made of. `debian` is unpacked beside the Python packages."""

    python: tuple[str, ...]
    debian: tuple[str, ...] = ()


RECIPES = {
    "redis": Recipe(
        ("redis==8.1.0", "hiredis==3.5.0"),
        ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1"),
    ),
    "mooncake": Recipe(("mooncake-transfer-engine-non-cuda==0.3.13.post1", "msgpack==1.2.4")),
    "nixl": Recipe(("nixl-cu12==1.5.1",)),
}
# For peers that need a library, where the system does not have it.
LIBRARIES = {"mooncake": ("libibverbs.so.1", ("libibverbs1", "libnl-3-200", "libnl-route-3-200"))}


def install(name: str, folder: Path = FOLDER) -> Path:
    """Installs what is missing of the peer; its folder. Raises `PeerUnavailableError`."""
    recipe, site = RECIPES[name], folder / name
    done = site / "installed"
    wanted = "\n".join((*recipe.python, *recipe.debian))
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(site, ignore_errors=True)
        site.mkdir(parents=True)
        argv = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        _run([*argv, "--disable-pip-version-check", "--target", str(site), *recipe.python])
        unpack(recipe.debian, site, for_whom=name)
        done.write_text(wanted)
    if name in LIBRARIES:
        library, packages = LIBRARIES[name]
        if not _loads(library) and not any((folder / "lib").rglob(library)):
            unpack(packages, folder / "lib", for_whom=name)
    return site


def unpack(packages: tuple[str, ...], folder: Path, *, for_whom: str) -> None:
    """Unpacks Debian packages into `folder`. Raises `PeerUnavailableError`."""
    if not packages:
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise PeerUnavailableError(
            f"{for_whom} needs {', '.join(packages)} of Debian or Ubuntu, and there is no apt-get"
        )
    folder.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "--quiet", *packages], cwd=folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(folder)])
        package.unlink()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _run(argv: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerUnavailableError(f"{' '.join(argv)}: {done.stderr.strip()[-500:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="+", choices=sorted(RECIPES), metavar="NAME",
                        help=f"of {', '.join(RECIPES)}")  # fmt: skip
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: build/peers")
    given = parser.parse_args()
    failed = False
    for name in given.names:
        try:
            print(f"==> peer {name}: {install(name, given.folder)}")
        except PeerUnavailableError as error:
            failed = True
            print(f"error: peer {name}: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
