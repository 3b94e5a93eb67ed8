"""A client of RDMA that is other people's code below: the package ibverbs, and frames by hand."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

import numpy as np

import wire_client as wire
from wire_client import WireClient

ATTACH, ATTACHED, MOVING = 22, 23, 24
FILL_EXPOSED, GET_EXPOSED = 2, 4
ENDPOINT = struct.Struct("<IIHBBI16s")
PSN = 0x123456
ROCE_V2 = 2


class Peer:
    """Memory shown to the server, at `memory`, and a connection with a queue pair."""

    def __init__(self, ib: Any, address: str, size: int, space: bytes = b"") -> None:
        self.ib = ib
        self.wire = WireClient(address, space=space)
        self.memory = np.zeros(size, np.uint8)
        self._context = ib.get_device_list()[0].open()
        self._pd = self._context.alloc_pd()
        access = (
            ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ
        )
        self._mr = self._pd.reg_mr(self.memory.ctypes.data, size, access)
        self._cq = self._context.create_cq(16)
        init = ib.QPInitAttr(send_cq=self._cq, recv_cq=self._cq, qp_type=ib.QPType.RC)
        self._qp = self._pd.create_qp(init)
        host = self.wire.socket.getsockname()[0]
        self._attach(host, access)

    def _attach(self, host: str, access: Any) -> None:
        port = self._context.query_port(1)
        wanted = bytes(10) + b"\xff\xff" + socket.inet_aton(host)
        index = next(
            i for i in range(port.gid_tbl_len)
            if bytes(self._context.query_gid(1, i).raw) == wanted
        )  # fmt: skip
        own = ENDPOINT.pack(self._qp.qp_num, PSN, port.lid, int(port.active_mtu), 2, 4, wanted)
        answer = self.wire.call(ATTACH, struct.pack("<I", 1) + own)
        assert answer.opcode == ATTACHED, answer
        number, psn, lid, mtu, _, _, gid = ENDPOINT.unpack(answer.body[4:])
        remote = self.ib.QPInfo(qp_num=number, psn=psn, lid=lid, gid=gid, port=1, mtu=mtu)
        self.ib.connect_rc(self._qp, remote, port=1, sgid_index=index, access=access, local_psn=PSN)

    def exposure(self, places: list[int], size: int, key: int | None = None) -> bytes:
        """Of items that lie at these offsets of the memory, a segment each."""
        base = self.memory.ctypes.data
        window = struct.pack(
            "<QQI", base, self.memory.nbytes, self._mr.rkey if key is None else key
        )
        items = struct.pack("<QI", size, 1) * len(places)
        addresses = struct.pack(f"<{len(places)}Q", *(base + place for place in places))
        tail = window + items + addresses
        return struct.pack("<IIII", 16 + len(tail), 1, len(places), len(places)) + tail

    def put(self, keys: list[bytes], places: list[int], size: int) -> list[int]:
        """The server READs our memory; the outcomes of RESULT."""
        request = self.wire.request(wire.PUT, wire.put(keys, size))
        granted = self._receive()
        assert (granted.opcode, granted.request_id) == (wire.GRANT, request)
        sums = [wire.checksum(self.memory[place : place + size].tobytes()) for place in places]
        body = struct.pack(f"<I{len(sums)}Q", len(sums), *sums)
        exposed = self.exposure(places, size) + body
        self.wire.send(wire.frame(wire.FILL, request, exposed, flags=FILL_EXPOSED))
        result = self._receive()
        assert result.opcode == wire.RESULT, result
        return result.outcomes

    def get(self, keys: list[bytes], places: list[int], size: int) -> wire.Frame:
        """The server WRITEs our memory, and answers DATA."""
        body = self.exposure(places, size) + wire.get(keys, size)
        self.wire.request(wire.GET, body, flags=GET_EXPOSED)
        return self._receive()

    def get_into_nowhere(self, key: bytes, size: int) -> tuple[int, str]:
        """Exposes memory under a key that is of none; the error that comes."""
        body = self.exposure([0], size, key=self._mr.rkey ^ 0x5A5A00) + wire.get([key], size)
        self.wire.request(wire.GET, body, flags=GET_EXPOSED)
        answer = self._receive()
        assert answer.opcode == wire.ERROR, answer
        return answer.error

    def _receive(self) -> wire.Frame:
        while (answer := self.wire.receive()).opcode == MOVING:
            pass
        return answer

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each in (self._qp, self._cq, self._mr, self._pd, self._context):
            each.close()
        self.wire.close()
