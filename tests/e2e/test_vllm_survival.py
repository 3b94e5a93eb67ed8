"""Whatever becomes of its store, a vLLM says what a plain one says, and no request fails.

One engine lives through all of it. Its store is behind a proxy, so that the next test's server,
with or without shared memory, is found at the same address.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from survival_rig import VALUE_BYTES, Rig, ask_and_begin, lease_all, stage_all
from vllm_engine import EngineProcess

import infinistore
from figures import RecordFigure
from pool_damage import damage_pool
from proxy import Proxy
from server_process import ServerProcess
from waiting import freeze, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

Start = Callable[..., ServerProcess]
MODES = pytest.mark.parametrize("mode", ["async", "layerwise"])
TRANSPORTS = pytest.mark.parametrize("transport", ["tcp", "shm"])

LONGEST = 7  # the prompt of 577 tokens
LOADS = ("blocks_loaded", "blocks_load_failed", "blocks_load_corrupt")
SILENCE_S = 5.0


@pytest.fixture(scope="module")
def rig(
    model: Callable[[str], Path],
    plain: Callable[[str], list[list[int]]],
    prompts: list[list[int]],
) -> Iterator[Rig]:
    said = plain("tiny-llama")
    first = ServerProcess()  # over shared memory the link has one channel, and so ever after
    try:
        with (
            Proxy(first.address) as proxy,
            EngineProcess(model("tiny-llama"), proxy.url) as engine,
        ):
            engine.call("watch", tells=False)
            first.kill()
            yield Rig(engine, proxy, prompts, said)
    finally:
        first.kill()


def shown(counted: dict[str, int], *names: str) -> str:
    return ", ".join(f"{name} {counted[name]}" for name in names)


@TRANSPORTS
@MODES
def test_a_store_that_is_killed_in_the_middle_of_a_load(
    rig: Rig, start_server: Start, mode: str, transport: str, record_figure: RecordFigure
) -> None:
    server = rig.begin(start_server, mode, transport)
    port = server.address.rpartition(":")[2]
    for chosen in ([LONGEST], rig.all)[transport == "shm" :]:  # one request, then nine at once
        if transport == "tcp":
            rig.proxy.hold_data(8 * VALUE_BYTES + 1000)
            rig.send(chosen)
            assert rig.proxy.held.wait(30), "the load did not come so far"
            server.kill()
            rig.proxy.cut()
        else:
            ask_and_begin(rig, chosen, partial(freeze, server.pid))
            server.kill()
        counted = rig.take(chosen)
        record_figure(
            f"killed in the middle of a load, {mode}, {transport}, {len(chosen)} requests",
            f"tokens equal; {shown(counted, *LOADS)}",
            "equal, and what did not load is counted",
            ok=counted["blocks_load_failed"] > 0,
        )
        # Without any store: lookups are refused, saves are lost, then skipped.
        assert rig.engine.call("reset")
        counted = rig.run(rig.all)
        assert counted["blocks_loaded"] == counted["blocks_saved"] == 0
        assert counted["lookups_failed"] > 0
        server = rig.serve(start_server, transport, f"--port={port}")
        rig.recover()
        keys = server.stats()["keys"]
        record_figure(
            f"restarted empty on the same port, {mode}, {transport}",
            f"{keys} keys in it, every whole block is hit again, without a restart of vLLM",
            "hits come back",
            ok=keys > 0,
        )


@pytest.mark.parametrize(("fill", "transport"), [(lease_all, "tcp"), (stage_all, "shm")])
@MODES
def test_a_store_that_is_full_of_what_others_hold(
    rig: Rig,
    start_server: Start,
    mode: str,
    fill: Callable[[ServerProcess, infinistore.Client], int],
    transport: str,
    record_figure: RecordFigure,
) -> None:
    server = rig.begin(start_server, mode, transport, "--pool=8MiB", "--evict-start=1")
    # The leases of a step's loads end two steps later, and a purge leaves what is leased.
    rig.run([0])
    server.admin("/purge", method="POST")
    with infinistore.connect(server.url, namespace="others") as other:
        count = fill(server, other)
        rig.engine.call("durations")
        counted = rig.run(rig.all)
        stall_s = max(rig.engine.call("durations")["wait_for_save"])
        state = fill.__name__.partition("_")[0] + "d"
        record_figure(
            f"full of {state} values, {mode}, {transport}",
            f"{count} of 64 KiB in 8 MiB; tokens equal; "
            f"{shown(counted, 'blocks_saved', 'blocks_save_failed', 'blocks_save_skipped')}; "
            f"a step waits up to {1000 * stall_s:.0f} ms for its saves",
            "equal, none saved, each counted",
            ok=counted["blocks_saved"] == 0 and counted["blocks_save_failed"] > 0,
        )
    rig.recover()


@TRANSPORTS
@MODES
def test_one_block_that_is_damaged(
    rig: Rig, start_server: Start, mode: str, transport: str, record_figure: RecordFigure
) -> None:
    server = rig.begin(start_server, mode, transport)
    block = rig.engine.call("block", prompt=rig.prompts[LONGEST], index=3)
    content = bytearray(block["bytes"])
    with infinistore.connect(server.url, namespace=block["namespace"], transport="tcp") as other:
        other.read_cache(content, [(block["key"].encode(), 0)], block["bytes"])
        other.sync()
    damage_pool(server.pid, bytes(content[:64]))
    counted = rig.run([LONGEST])
    record_figure(
        f"one damaged block of 18, {mode}, {transport}",
        f"tokens equal; {shown(counted, *LOADS, 'blocks_saved', 'blocks_save_present')}",
        "equal, 1 corrupt, 17 loaded, and it is saved again",
        ok=(counted["blocks_load_failed"], counted["blocks_load_corrupt"]) == (1, 1)
        and counted["blocks_loaded"] == 17
        and counted["blocks_saved"] > 0,
    )
    assert server.stats()["corrupt"] == 1
    assert rig.engine.call("reset")
    counted = rig.run([LONGEST])
    assert (counted["blocks_loaded"], counted["blocks_load_failed"]) == (18, 0)


@MODES
def test_one_byte_that_is_damaged_on_its_way(
    rig: Rig, start_server: Start, mode: str, record_figure: RecordFigure
) -> None:
    server = rig.begin(start_server, mode, "tcp")
    rig.proxy.flip_data(8 * VALUE_BYTES + 1000)
    counted = rig.run(rig.all)
    assert rig.proxy.flipped.is_set()
    record_figure(
        f"one byte flipped on its way, {mode}, tcp",
        f"tokens equal; {shown(counted, *LOADS)}",
        "equal, 1 corrupt",
        ok=(counted["blocks_load_failed"], counted["blocks_load_corrupt"]) == (1, 1),
    )
    until(lambda: server.stats()["false_alarms"] == 1)  # the server's own bytes are right
    assert server.stats()["corrupt"] == 0
    rig.recover()


@pytest.mark.parametrize(
    ("fault", "transport"), [("delayed", "tcp"), ("swallowed", "tcp"), ("stopped", "shm")]
)
@MODES
def test_a_store_that_does_not_answer(
    rig: Rig,
    start_server: Start,
    mode: str,
    fault: str,
    transport: str,
    record_figure: RecordFigure,
) -> None:
    server = rig.begin(start_server, mode, transport)
    rig.engine.call("configure", lookup_timeout_s=0.25)
    faults: dict[str, Callable[[], object]] = {
        "delayed": lambda: rig.proxy.delay(SILENCE_S),
        "swallowed": rig.proxy.swallow,
        "stopped": partial(freeze, server.pid),
    }
    rig.engine.call("durations")
    try:
        # Once in the middle of loads, and once from the first question on.
        ask_and_begin(rig, rig.all, faults[fault])
        first = rig.take(rig.all)
        under_load = rig.engine.call("durations")
        assert rig.engine.call("reset")
        second = rig.run(rig.all)
        before_it = rig.engine.call("durations")
    finally:
        os.kill(server.pid, signal.SIGCONT)
        rig.proxy.forward()
    # The first step of the loads takes as long as this test does to begin the fault.
    load_s, save_s = (max(under_load[hook]) for hook in ("wait_for_layer_load", "wait_for_save"))
    step_s = max(before_it["step"])
    record_figure(
        f"a store that is {fault}, {mode}, {transport}",
        f"tokens equal; {shown(first, 'blocks_load_failed')}, {shown(second, 'lookups_failed')}, "
        f"{shown(second, 'blocks_save_skipped')}",
        "equal while it is silent, and counted",
        ok=first["blocks_load_failed"] > 0 and second["lookups_failed"] > 0,
    )
    record_figure(
        f"steps meanwhile, {fault}, {mode}, {transport}",
        f"up to {1000 * load_s:.0f} ms for loads, {1000 * save_s:.0f} ms for saves; "
        f"the longest without loads {1000 * step_s:.0f} ms",
        "none waits for answers that come after 5 s",
        ok=max(load_s, save_s, step_s) < SILENCE_S,
    )
    rig.recover()
