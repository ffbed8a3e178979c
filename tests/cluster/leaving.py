"""A client that goes away as soon as it has asked."""

from __future__ import annotations

import socket
import struct


def send_and_leave(port: int, path: str, body: bytes, *, reset: bool = False) -> None:
    """Ask, and go away without the answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if reset:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
