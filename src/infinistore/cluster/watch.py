"""What a client does in the background: finds nodes, connects, probes, and reads their notes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from infinistore.client.address import SCHEME
from infinistore.client.native import NativeClient
from infinistore.client.sync import Client
from infinistore.cluster.fleet import Fleet
from infinistore.cluster.member import Member
from infinistore.cluster.view import (
    NOTE_KEY,
    NOTE_PAGE_BYTES,
    Note,
    ViewSource,
    decode_note,
    merge,
    note_bytes,
)
from infinistore.errors import Code, InfiniStoreError

logger = logging.getLogger(__name__)

# For so long copies of a node that is gone are read where they are: others take over meanwhile.
ORPHANED_S = 15.0
_INTERVAL_S = 0.5
_INTERVAL_MIN_S = 0.05
_ANSWER_S = 0.5
_NODES_READ_PER_S = 128  # a client of more nodes reads each one's note less often
_REFUSED_PAUSE_S = 30.0
_DIALS_MAX = 16


class Watch:
    """One thread, from the first call on; started and closed by the cluster that it serves."""

    def __init__(
        self,
        source: ViewSource,
        fleet: Fleet,
        dial: Callable[[str], NativeClient],
        dial_notes: Callable[[str], Client],
        namespace: str = "default",
        scheme: str = SCHEME,
    ) -> None:
        self.devices: set[int] = set()  # which each connection is prepared for
        self.kept: dict[int, int] = {}  # memory that each connection keeps: address -> size
        self.tells_completions = False  # of connections, from their beginning on
        self.stop = threading.Event()
        self._source = source
        self._fleet = fleet
        self._dial = dial
        self._dial_notes = dial_notes
        self._scheme = scheme
        self._notes: dict[str, Note] = {}
        self._seen_s: dict[str, float] = {}  # when each node was in the view
        self._past: dict[str, tuple[Note, float]] = {}  # of incarnations before, and since when
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._namespace = namespace
        self._tells_replacing = False

    def connect(self) -> None:
        """Dials all nodes at once. Raises the first failure if none of them can be reached."""
        self._look()
        members = self._fleet.members()
        with ThreadPoolExecutor(min(_DIALS_MAX, max(1, len(members)))) as dials:
            failures = [failure for failure in dials.map(self._open, members) if failure]
        refusal = next((failure for failure in failures if not failure.retryable), None)
        if refusal is not None or len(failures) == len(members):
            self._source.close()
            raise refusal or failures[0]

    def start(self) -> None:
        """Begins to watch, if it has not."""
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self.stop.is_set():
                    self._thread = threading.Thread(
                        target=self._run, name="infinistore-cluster", daemon=True
                    )
                    self._thread.start()

    def close(self) -> None:
        """Ends the thread, and the source."""
        self.stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()
        self._source.close()

    def _run(self) -> None:
        pause_s = 0.0
        while not self.stop.wait(pause_s):
            try:
                self.look()
            except Exception:
                logger.exception("a look at the cluster failed")
            pause_s = self._pause_s(time.monotonic())

    def _pause_s(self, now_s: float) -> float:
        due = [m.breaker.retry_at_s - now_s for m in self._fleet.members() if not m.is_up()]
        return max(_INTERVAL_MIN_S, min(_INTERVAL_S, *due)) if due else _INTERVAL_S

    # ---- one look ----

    def look(self) -> None:
        """One look at everything: who is there, who answers, what they say."""
        self._look()
        now_s = time.monotonic()
        members = self._fleet.members()
        due = [member for member in members if not member.is_up()]
        # A dial may wait as long as its timeout: one that fails is enough for one look.
        for member in [m for m in due if m.native is None and m.breaker.retry_at_s <= now_s]:
            if self.stop.is_set() or self._open(member) is not None:
                break
        self._probe([m for m in due if m.native is not None and m.breaker.is_due(now_s)])
        # That its note does not come is a suspicion: a loaded machine may be late once.
        self._probe(self._read_notes([m for m in members if m.is_up() and m.notes_at_s <= now_s]))
        self._look()

    def refresh(self) -> None:
        """Goes by who is there at this moment. For any thread; waits for nobody."""
        self._look()

    def prepare_replacing(self) -> None:
        """Before values are replaced: nodes that are cut off meanwhile will hear of it.

        Raises `LinkError` if the registry does not answer, the first time.
        """
        if not self._tells_replacing:
            self._source.tell_replacing(self._namespace)
            self._tells_replacing = True
        self.refresh()

    def _look(self) -> None:
        with self._looking:
            self._look_locked()

    def _look_locked(self) -> None:
        view = self._source.current()
        now_s = time.monotonic()
        self._seen_s |= {node.name: now_s for node in view.nodes}
        for name in [n for n, at_s in self._seen_s.items() if now_s - at_s > ORPHANED_S]:
            del self._seen_s[name]
            self._notes.pop(name, None)
        for name in [n for n, (_, at_s) in self._past.items() if now_s - at_s > ORPHANED_S]:
            del self._past[name]
        past = [note for note, _ in self._past.values()]
        self._fleet.show(merge(view, self._notes, past), now_s)

    def _open(self, member: Member) -> InfiniStoreError | None:
        try:
            native = self._dial(self._scheme + member.node.address)
        except InfiniStoreError as error:
            self._fleet.probed(member, None)
            return error
        for device in list(self.devices):
            native.prepare(device)
        for address, size in list(self.kept.items()):
            native.keep(address, size)
        if self.tells_completions:
            native.completion_fd()
        member.native = native
        self._fleet.probed(member, native.server()["incarnation"])
        return None

    def _probe(self, members: Sequence[Member]) -> None:
        calls = [(m, m.native, m.native.stats()) for m in members if m.native is not None]
        end_s = time.monotonic() + _ANSWER_S
        for member, native, call in calls:
            is_there = call.wait(max(0.0, end_s - time.monotonic())) and call.failure[0] == Code.OK
            if not is_there:
                call.cancel()
            self._fleet.probed(member, native.server()["incarnation"] if is_there else None)

    # ---- notes ----

    def _read_notes(self, members: Sequence[Member]) -> list[Member]:
        """Reads the members' notes; those of whom none came, nor a word that there is none."""
        silent = []
        reads = []
        for member in members:
            page = bytearray(NOTE_PAGE_BYTES)
            notes = self._notes_of(member)
            if notes is not None:
                batch = notes.read_cache(page, [(NOTE_KEY, 0)], NOTE_PAGE_BYTES)
                reads.append((member, notes, page, batch, time.monotonic()))
            elif member.notes_at_s <= time.monotonic():
                silent.append(member)
        pause_s = max(_INTERVAL_S, len(members) / _NODES_READ_PER_S)
        for member, notes, page, batch, sent_at_s in reads:
            member.notes_at_s = sent_at_s + pause_s * 0.9
            try:
                code = batch.wait(_ANSWER_S)[0]
            except InfiniStoreError:
                code = Code.TIMEOUT
            if code in (Code.DISCONNECTED, Code.TIMEOUT):
                silent.append(member)
            else:
                self._take_note(member, notes, page if code == Code.OK else None)
        return silent

    def _notes_of(self, member: Member) -> Client | None:
        if member.notes is None:
            try:
                member.notes = self._dial_notes(self._scheme + member.node.address)
            except InfiniStoreError as error:
                if error.retryable:  # it is gone, or about to go
                    return None
                logger.warning("no notes of node %s: %s", member.node.name, error)
                member.notes_at_s = time.monotonic() + _REFUSED_PAUSE_S
        return member.notes

    def _take_note(self, member: Member, notes: Client, page: bytearray | None) -> None:
        if page is None:
            self._replace_note(member.node.name, None)
            return
        try:
            size = note_bytes(bytes(page))
            value = page
            if size > len(page):
                value = bytearray(size)
                batch = notes.read_cache(value, [(NOTE_KEY, 0)], size, value_bytes=size)
                if not batch.wait(_ANSWER_S).all_ok:
                    self._notes.pop(member.node.name, None)
                    return  # rewritten meanwhile, most likely
            note = decode_note(bytes(value))
        except InfiniStoreError as error:
            logger.warning("the note of node %s is of no use: %s", member.node.name, error)
            self._notes.pop(member.node.name, None)
            return
        self._replace_note(member.node.name, note)

    def _replace_note(self, name: str, note: Note | None) -> None:
        before = self._notes.pop(name, None)
        is_gone = before is not None and (note is None or note.incarnation != before.incarnation)
        if before is not None and is_gone and before.copies:
            self._past[name] = (before, time.monotonic())
        if note is not None:
            self._notes[name] = note
            if name in self._past and self._past[name][0].incarnation == note.incarnation:
                del self._past[name]  # it had only been lost for a moment
