"""Every command of the table: against nothing at all, against a server under load, and its JSON."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

import infinistore
from etcd_process import free_port
from infinistore.cli import COMMANDS, group, load, main
from infinistore.errors import ConnectError
from server_process import ServerProcess
from waiting import until

# How to ask a running server by each command; a new command needs a row.
WORDS: dict[str, tuple[str, ...]] = {
    "status": (),
    "top": ("--count", "1", "--interval", "0.1"),
    "explain": ("--key", "there", "--namespace", "load"),
    "namespaces": (),
    "tenants": (),
    "keys": ("count",),
    "purge": ("--namespace", "nobody's"),
    "verify": (),
    "cluster": (),
    "drain": (),
    "doctor": ("--quick",),
}
# Those that start something of their own, and are tested elsewhere.
OWN = {"serve", "router", "bench"}
ENDS = {"drain"}  # the server that it asks
# Nobody there is what they are asked about: not an error, but their answer.
ANSWERS_ANYWAY = {"doctor", "explain"}


def run(name: str, address: str, *more: str) -> Result:
    # The doctor looks at the ports that a server would take, which others may have here.
    ports = {"INFINISTORE_PORT": "0", "INFINISTORE_ADMIN_PORT": "0"}
    return CliRunner().invoke(group, [name, *WORDS[name], "--admin", address, *more], env=ports)


def test_no_command_is_left_out() -> None:
    assert {entry.name for entry in COMMANDS} == set(WORDS) | OWN


@pytest.mark.parametrize("name", [entry.name for entry in COMMANDS if entry.name not in OWN])
def test_every_command_has_json_the_token_and_the_address(name: str) -> None:
    command = load(next(entry for entry in COMMANDS if entry.name == name))
    if name == "keys":
        command = command.commands["count"]  # type: ignore[attr-defined]
    flags = {flag for option in command.params for flag in option.opts}
    assert {"--json", "--token-file", "--admin"} <= flags


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that never answers a connection: its queue is full."""
    waiting = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(address)
        yield f"127.0.0.1:{address[1]}"
        for each in waiting:
            each.close()


def check_nobody_there(name: str, address: str) -> None:
    for _ in range(3):  # other work on the machine must not count
        began = time.monotonic()
        result = run(name, address)
        seconds = time.monotonic() - began
        if seconds < 2:
            break
    if name in ANSWERS_ANYWAY:
        assert address in result.output
        assert result.exit_code == (0 if name == "doctor" else 1)
    else:
        assert isinstance(result.exception, ConnectError)
        assert "start one with `infinistore`" in str(result.exception)
    assert seconds < 2


@pytest.mark.parametrize("name", WORDS)
def test_with_nothing_at_all_it_says_so_at_once(name: str) -> None:
    check_nobody_there(name, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["bench", "--url", "infinistore://127.0.0.1:1"], 1, "no server answers at 127.0.0.1:1"),
        (["router"], 2, "give at least one --decode URL"),
        (["serve", "--pool", "much"], 2, "pool"),
        (["status", "--admin", "nonsense"], 2, "is not HOST:PORT"),
        (["statsu"], 2, "did you mean status?"),
    ],
)
def test_what_cannot_work_is_said_in_two_lines_with_its_status(
    words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    told = capsys.readouterr()
    assert ended.value.code == status
    assert said in told.err
    assert told.err.strip().count("\n") <= 1
    assert told.out == ""


@pytest.mark.parametrize("name", ["status", "explain"])
def test_with_an_address_that_does_not_answer_it_says_so_soon(name: str, silent: str) -> None:
    check_nobody_there(name, silent)


@pytest.fixture(scope="module")
def loaded(server: ServerProcess) -> Iterator[ServerProcess]:
    """A server that a client writes to and reads from all the time."""
    with load_on(server.url):
        yield server


@contextlib.contextmanager
def load_on(url: str) -> Iterator[None]:
    """Writes and reads, all the time, in the namespace "load"."""
    stop = threading.Event()
    failures: list[BaseException] = []
    client = infinistore.connect(url, namespace="load")
    source, target = memoryview(bytearray(1 << 20)), memoryview(bytearray(1 << 20))
    blocks = [(f"k{i}", i * 65536) for i in range(16)]

    def work() -> None:
        try:
            while not stop.is_set():
                client.write_cache(source, blocks, 65536, unit="bytes")
                client.sync()
                client.read_cache(target, blocks, 65536, unit="bytes")
                client.sync()
                client.match_prefix([key for key, _ in blocks] + ["none"])
        except BaseException as error:
            failures.append(error)

    client.write_cache(source, [("there", 0)], 65536, unit="bytes")
    client.sync()
    thread = threading.Thread(target=work)
    thread.start()
    yield
    stop.set()
    thread.join()
    client.close()
    assert not failures


@pytest.mark.parametrize("name", [name for name in WORDS if name not in ENDS])
def test_against_a_server_under_load_it_answers(name: str, loaded: ServerProcess) -> None:
    shown = run(name, loaded.admin_address)
    assert shown.exit_code == 0, (shown.output, shown.exception)
    told = run(name, loaded.admin_address, "--json")
    assert told.exit_code == 0, (told.output, told.exception)
    assert isinstance(json.loads(told.stdout), dict)


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[ServerProcess]]:
    """Both nodes of a cluster under load."""
    places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    url = "infinistore://" + ",".join(places)
    nodes: list[ServerProcess] = []
    try:
        for place in places:
            port = place.rpartition(":")[2]
            nodes.append(ServerProcess(f"--port={port}", f"--cluster={url}"))
        until(lambda: all(row["answers"] for row in nodes[0].admin("/cluster")["nodes"]))
        with load_on(url):
            yield nodes
    finally:
        for each in nodes:
            each.kill()


@pytest.mark.parametrize("name", [*(name for name in WORDS if name not in ENDS), *sorted(ENDS)])
def test_against_a_cluster_under_load_it_answers(name: str, nodes: list[ServerProcess]) -> None:
    address, other = nodes[0].admin_address, nodes[1]
    # On one host the nodes' admin ports differ.
    more = (f"--node={other.address}={other.admin_address}",) if name == "explain" else ()
    told = run(name, address, *more, "--json")
    assert told.exit_code == 0, (told.output, told.exception)
    assert isinstance(json.loads(told.stdout), dict)
    if name not in ENDS:
        shown = run(name, address, *more)
        assert shown.exit_code == 0, (shown.output, shown.exception)


def test_top_sees_the_load(loaded: ServerProcess) -> None:
    told = json.loads(run("top", loaded.admin_address, "--json", "--what-if").stdout)
    frame = told["frame"]
    assert frame["requests_s"] > 0
    assert frame["sent_bytes_s"] > 0
    assert frame["hit_rate"] > 0.9
    assert frame["misses_new"] > 0
    assert frame["used_bytes"] >= 17 * 65536
    assert "load" in [each["namespace"] for each in told["namespaces"]]
    assert told["hottest"][0]["namespace"] == "load"
    assert told["hottest"][0]["bytes_per_s"] > 0
    rates = [point["hit_rate"] for point in told["what_if"]["points"]]
    assert rates == sorted(rates)
    assert rates[-1] > 0.8
    shown = run("top", loaded.admin_address, "--what-if").output
    assert "64MiB" in shown
    assert "now" in shown


def test_namespaces_are_listed_with_what_they_hold(
    loaded: ServerProcess, connect: Callable[..., infinistore.Client]
) -> None:
    told = json.loads(run("namespaces", loaded.admin_address, "--json").stdout)
    mine = next(each for each in told["namespaces"] if each["namespace"] == "load")
    assert (mine["keys"], mine["bytes"]) == (17, 17 * 65536)
    assert mine["hits"] > 0
    assert mine["misses"] > 0
    assert mine["idle_s"] < 60
    for index in range(3):
        connect(namespace=f"other-{index}").match_prefix(["key"])
    shown = run("namespaces", loaded.admin_address, "--limit", "1")
    assert "smaller ones" in shown.output
    assert "load" in shown.output


def test_metrics_have_namespaces_and_causes(loaded: ServerProcess) -> None:
    text = loaded.admin("/metrics")
    assert 'infinistore_namespace_keys{namespace="load"} 17\n' in text
    assert 'infinistore_misses_by_cause_total{cause="new"}' in text
    stats = loaded.stats()
    causes = [stats[f"misses_{cause}"] for cause in ("new", "evicted", "erased")]
    assert sum(causes) == stats["misses"]
