"""A client process: one client, its callers, and the orders that come on standard input."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import os
import random
import signal
import socket
import stat
import sys
import threading
from pathlib import Path

from chaos.board import Board, Slot
from chaos.caller import BULK_BYTES, BULK_NUMBERS, Caller, Role
from chaos.calls import Calls, code_of, connect
from chaos.checker import Checker, Finding
from chaos.content import BULK, Key, content
from chaos.reports import Reporter
from infinistore.errors import Code, InfiniStoreError

CALLERS = 2  # of one client process
_REST_S = 0.01
_PAUSE_S_MAX = 0.015  # between two steps: two CPUs serve everybody


class ClientProcess:
    """Everything in it ends when its standard input does."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._board = Board(Path(arguments.board))
        self._reporter = Reporter()
        self._ends = threading.Event()

    def run(self) -> None:
        faulthandler.register(signal.SIGUSR2)  # the harness asks so what a hung call does
        threading.Thread(target=self._obey, daemon=True).start()
        asyncio.run(self._work())
        self._reporter.flush()

    def _obey(self) -> None:
        for line in sys.stdin:
            order = line.strip()
            if order == "fork":
                _fork_holder(self._reporter)
            elif order == "sever":
                self._reporter.say("severed", sockets=_sever())
        self._ends.set()

    async def _work(self) -> None:
        arguments = self._arguments
        slot = self._board.slot(arguments.slot)
        calls = await self._connect(slot)
        if calls is None:
            return
        self._reporter.say("ready")
        if arguments.role == "bulk":
            await self._write_bulk(calls, slot)
        elif arguments.style == "awaited":
            await asyncio.gather(*(self._call(calls, number) for number in range(CALLERS)))
        else:
            threads = [
                threading.Thread(target=lambda n=number: asyncio.run(self._call(calls, n)))
                for number in range(CALLERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
        slot.begin("close")
        await calls.close()
        slot.end(is_good=True)

    async def _connect(self, slot: Slot) -> Calls | None:
        arguments = self._arguments
        checker = Checker(is_far=arguments.far)
        while not self._ends.is_set():
            slot.begin("connect")
            try:
                calls = await connect(arguments.style, arguments.url, arguments.transport)
            except InfiniStoreError as error:
                slot.end(is_good=False)
                self._reporter.count("connect", code_of(error).name.lower())
                if finding := checker.outcome(code_of(error), None, "connect"):
                    self._reporter.find(Finding(finding.kind, f"{finding.what} {error}"))
                await asyncio.sleep(0.02)
            else:
                slot.end(is_good=True)
                return calls
        return None

    async def _call(self, calls: Calls, number: int) -> None:
        arguments = self._arguments
        slot = self._board.slot(arguments.slot + number)
        role = Role(
            arguments.serial,
            number,
            arguments.far,
            arguments.style == "awaited",
            arguments.in_cluster,
        )
        chance = random.Random(f"{arguments.seed} {arguments.serial} {number}")
        caller = Caller(calls, role, slot, self._reporter, chance)
        while not self._ends.is_set():
            if self._board.is_rest_asked:
                if not slot.rests:
                    await caller.rest()
                    slot.rest(True)
                await asyncio.sleep(_REST_S)
                continue
            slot.rest(False)
            await caller.step()
            await asyncio.sleep(chance.uniform(0, _PAUSE_S_MAX))

    async def _write_bulk(self, calls: Calls, slot: Slot) -> None:
        """Large values, one after the other: most of the time a copy is under way."""
        keys = [Key(BULK, BULK_BYTES, number) for number in range(BULK_NUMBERS)]
        values = [content(key) for key in keys]
        checker = Checker(is_far=False)
        turn = 0
        while not self._ends.is_set():
            slot.rest(self._board.is_rest_asked)
            if slot.rests:
                await asyncio.sleep(_REST_S)
                continue
            turn += 1
            key, value = keys[turn % BULK_NUMBERS], values[turn % BULK_NUMBERS]
            slot.begin("write")
            outcomes = await calls.write(value, [(key.name, 0)], key.size, on_exists="replace")
            is_good = outcomes[0] not in (Code.DISCONNECTED, Code.TIMEOUT, Code.DRAINING)
            slot.end(is_good=is_good)
            self._reporter.count("write", outcomes[0].name.lower())
            if finding := checker.outcome(outcomes[0], key, "write"):
                self._reporter.find(finding)
            await asyncio.sleep(0.003 if is_good else 0.02)


def _fork_holder(reporter: Reporter) -> None:
    """A child that only holds our descriptors: by the C library's fork(), Python is not told."""
    library = ctypes.PyDLL(None)
    child = library.fork()
    if child == 0:
        while True:
            library.pause()
    reporter.say("forked", pid=child)


def _sever() -> int:
    """Ends every unix connection of this process, which lives on; how many there were."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd <= 2:
            continue
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.family == socket.AF_UNIX and found.getpeername():
                    found.shutdown(socket.SHUT_RDWR)
                    count += 1
        except OSError:  # closed meanwhile, or not connected
            continue
    return count


def parse_arguments(texts: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--transport", required=True)
    parser.add_argument("--style", choices=("blocking", "awaited"), required=True)
    parser.add_argument("--role", choices=("mixed", "bulk"), default="mixed")
    parser.add_argument("--far", action="store_true")
    parser.add_argument("--in-cluster", action="store_true")
    parser.add_argument("--board", required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--serial", type=int, required=True)
    parser.add_argument("--seed", required=True)
    return parser.parse_args(texts)


if __name__ == "__main__":
    ClientProcess(parse_arguments()).run()
