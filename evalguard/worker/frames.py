"""Frames: how one message travels through a pipe.

A frame is the magic bytes ``EVGF``, the protocol version (16 bits), the payload's length in
bytes (32 bits, both big-endian), and the payload: one JSON object. The payload is UTF-8 in which
a lone surrogate, which a Python string may hold, is written like any other code point; NaN and
infinity are written as Python's ``json`` writes them. There is no pickle: nothing that is read
can run code.
"""

from __future__ import annotations

import json
import struct

from evalguard.core.settings import Value
from evalguard.errors import WorkerError

RawMessage = dict[str, Value]

MAGIC = b"EVGF"
FRAME_VERSION = 1
MAX_PAYLOAD = 256 * 2**20
_HEADER = struct.Struct(">4sHI")
_MOST_SHOWN = 80


def to_frame(message: RawMessage) -> bytes:
    """Return the bytes of one frame.

    Raises:
        WorkerError: if the payload is larger than ``MAX_PAYLOAD``.
    """
    payload = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )
    if len(payload) > MAX_PAYLOAD:
        raise WorkerError(
            f"a message of {len(payload):,} bytes is larger than the {MAX_PAYLOAD:,} bytes "
            "that may travel between evalguard and a worker at once",
            hint="ask for fewer documents at once",
        )
    return _HEADER.pack(MAGIC, FRAME_VERSION, len(payload)) + payload


class FrameParser:
    """Cuts a stream of bytes, which may arrive in any pieces, into messages.

    What is wrong with a stream is said as a predicate of its sender ("sent ...").
    """

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[RawMessage]:
        """Take more bytes; return the messages that they complete.

        Raises:
            WorkerError: if the bytes are no frame of this protocol version, announce more than
                ``MAX_PAYLOAD`` bytes, or hold anything but a JSON object.
        """
        self._buffer += data
        messages = []
        while (size := self._announced()) is not None and len(self._buffer) >= size:
            payload = bytes(self._buffer[_HEADER.size : size])
            del self._buffer[:size]
            messages.append(_from_payload(payload))
        return messages

    @property
    def remainder(self) -> str:
        """What of an unfinished frame has arrived, in words; "" between two frames."""
        if not self._buffer:
            return ""
        size = self._announced()
        return f"{len(self._buffer):,} of {'?' if size is None else format(size, ',')} bytes"

    def _announced(self) -> int | None:
        """Return the size of the frame at the head of the buffer; None before its header."""
        head = bytes(self._buffer[: len(MAGIC)])
        if not MAGIC.startswith(head):
            raise WorkerError(f"sent what is not a frame: {bytes(self._buffer[:_MOST_SHOWN])!r}")
        if len(self._buffer) < _HEADER.size:
            return None
        _, version, length = _HEADER.unpack_from(self._buffer)
        if version != FRAME_VERSION:
            raise WorkerError(f"speaks protocol {version}, this evalguard speaks {FRAME_VERSION}")
        if length > MAX_PAYLOAD:
            raise WorkerError(
                f"announced a frame of {length:,} bytes; at most {MAX_PAYLOAD:,} are allowed"
            )
        return _HEADER.size + int(length)


def _from_payload(payload: bytes) -> RawMessage:
    try:
        message = json.loads(payload.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise WorkerError(
            f"sent a frame that is not JSON ({error}): {payload[:_MOST_SHOWN]!r}"
        ) from error
    if not isinstance(message, dict):
        raise WorkerError(f"sent a frame that is not a JSON object: {payload[:_MOST_SHOWN]!r}")
    return message
