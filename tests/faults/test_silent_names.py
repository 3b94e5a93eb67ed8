"""A name service that says nothing: calls end in time, and a server is found where it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A place of its own: a name service at 127.0.0.1 that is silent, and a file of names.
WRAPPED = """
set -eu
ip link set lo up
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount --bind "$1/nsswitch.conf" /etc/nsswitch.conf
shift
exec "$@"
"""
CHILD = """
import os, socket, sys, time
import infinistore
from server_process import ServerProcess
folder = sys.argv[1]
silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
silent.bind(("127.0.0.1", 53))

begun = time.monotonic()
try:
    infinistore.connect("infinistore://elsewhere.test", connect_timeout_s=0.5)
except infinistore.RequestTimeoutError as error:
    print("elsewhere:", error)
print("waited:", time.monotonic() - begun)

server = ServerProcess("--port=22399")
client = infinistore.connect("infinistore://server.test:22399", connect_timeout_s=1)
client.write_cache(b"x" * 4096, [("k", 0)], 4096)
client.sync()
with open(folder + "/hosts", "w") as hosts:
    hosts.write("127.0.0.1 localhost\\n")
server.kill()
server = ServerProcess("--port=22399")
for _ in range(100):  # the first of them hear that the old server is gone
    try:
        print("found again:", client.exists(["k"]) == [False])
        break
    except infinistore.LinkError:
        time.sleep(0.05)
assert silent.recv(512)  # somebody did ask
client.close()
server.kill()
"""


def test_a_silent_name_service_holds_no_call_and_a_server_is_found_where_it_was(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs root, unshare (util-linux) and ip (iproute2)")
    if subprocess.run(["unshare", "-mn", "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces of mounts and networks cannot be made here")
    folder = str(tmp_path)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost server.test\n")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:20 attempts:3\n")
    (tmp_path / "nsswitch.conf").write_text("hosts: files dns\n")
    done = subprocess.run(
        ["unshare", "-mn", "sh", "-c", WRAPPED, "sh", folder, sys.executable, "-c", CHILD, folder],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert done.returncode == 0, done.stderr
    assert "says nothing about host elsewhere.test" in said["elsewhere"]
    assert float(said["waited"]) < 15  # a lookup alone would wait 60 s
    assert said["found again"] == "True"
