"""The connector's client: made in the background, so that no engine waits for a store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from infinistore.connectors.vllm.counters import Warner
from infinistore.connectors.vllm.epochs import namespace_in
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import InfiniStoreError

if TYPE_CHECKING:
    from infinistore import Client

logger = logging.getLogger("vllm." + __name__)  # so that it shows in vLLM's log

_RETRY_S = 2.0
_MOVE_WAIT_S = 1.0  # for a connection in a new epoch; later it is made behind


def connect(settings: ConnectorSettings, namespace: str) -> Client:
    """One client for one side of the connector."""
    import infinistore

    options: dict[str, Any] = {}
    if settings.token:
        options["token"] = settings.token
    if settings.replicas > 1:  # which one server refuses, with its reason
        options["replicas"] = settings.replicas
    return infinistore.connect(
        settings.url, namespace=namespace, transport=settings.transport, **options
    )


class StoreLink:
    """Holds the client of one side; None until the store was reached once.

    Threads: `client`, `drop` and `close` belong to the side's thread; a thread of ours connects.
    """

    def __init__(self, settings: ConnectorSettings, namespace: Callable[[], str]) -> None:
        self._settings = settings
        self._find_namespace = namespace
        self._base: str | None = None  # the namespace but for the epoch, once it is known
        self._epoch = settings.weights_epoch
        self._lock = threading.Lock()
        self._client: Client | None = None
        self.only_reads = False  # as the settings or the token have it: nothing is saved
        self._device: int | None = None  # the GPU that copies to and from the store's memory
        self._closing = threading.Event()
        self._tried = threading.Event()  # the first attempt has succeeded or failed
        self._warner = Warner(logger)
        self._start()

    @property
    def client(self) -> Client | None:
        """The client, which reconnects by itself after its first connection."""
        return self._client

    @property
    def namespace(self) -> str | None:
        """Where the blocks are, once it is known."""
        return None if self._base is None else namespace_in(self._base, self._epoch)

    def wait_tried(self, timeout_s: float) -> bool:
        """Waits for the first attempt while the engine starts; whether it succeeded."""
        self._tried.wait(timeout_s)
        return self._client is not None

    def prepare_device(self, device: int) -> None:
        """Lets a GPU reach the store's memory before it is first needed; of later clients, too."""
        with self._lock:
            self._device = device
            client = self._client
        if client is not None:
            self._prepare(client, device)

    def _prepare(self, client: Client, device: int) -> None:
        try:
            client.prepare_device(device)
        except InfiniStoreError as error:
            self._warner.warn("GPU %d cannot use the store's memory directly: %s", device, error)

    def drop(self) -> None:
        """Closes the client and makes a new one: when `close` returns no copy of it goes on."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
            self._start()

    def move(self, epoch: str) -> None:
        """Goes on in the namespace of another epoch; when it returns no copy in the old goes on."""
        with self._lock:
            self._epoch = epoch
            client, self._client = self._client, None
        if client is not None:
            client.close()
            self._tried.clear()
            self._start()
            self._tried.wait(_MOVE_WAIT_S)

    def close(self) -> None:
        """Ends the link for good."""
        self._closing.set()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _start(self) -> None:
        threading.Thread(target=self._run, name="infinistore-link", daemon=True).start()

    def _run(self) -> None:
        try:
            base = self._base or self._find_namespace()
        except Exception:
            logger.exception("no namespace, so nothing is saved or loaded")
            self._tried.set()
            return
        self._base = base
        while not self._closing.is_set():
            epoch = self._epoch
            namespace = namespace_in(base, epoch)
            logger.info("namespace %s at %s", namespace, self._settings.url)
            try:
                client = connect(self._settings, namespace)
            except InfiniStoreError as error:
                self._tried.set()
                self._warner.warn("no store at %s: %s", self._settings.url, error)
                self._closing.wait(_RETRY_S)
                continue
            except Exception:  # nothing of ours may end the engine
                logger.exception("cannot use the store at %s", self._settings.url)
                self._tried.set()
                return
            if self._adopt(client, epoch):
                return

    def _adopt(self, client: Client, epoch: str) -> bool:
        """False: the epoch is over, and its client closed."""
        prepared = self._device
        if prepared is not None:
            self._prepare(client, prepared)
        if client.server["read_only"] and not self.only_reads:
            logger.info("this client only reads: blocks are loaded, and none is saved")
        self.only_reads = client.server["read_only"]
        with self._lock:
            is_over = self._epoch != epoch
            is_wanted = not self._closing.is_set() and not is_over
            if is_wanted:
                self._client = client
                self._tried.set()
            device = self._device
        if not is_wanted:
            client.close()
        elif device is not None and device != prepared:  # said meanwhile
            self._prepare(client, device)
        return not is_over
