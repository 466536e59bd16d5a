"""Exits with 0 if Kafka says which requests it knows: that it accepts a connection only says that its port is taken."""

import socket
import struct
import sys

API_VERSIONS = 18
KAFKA = ("kafka", 9092)


def answers() -> bool:
    """True if it answers, now."""
    request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    with socket.create_connection(KAFKA, timeout=2) as connection:
        connection.settimeout(2)
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.recv(10)
    return len(answer) == 10 and answer[8:] == b"\0\0"


if __name__ == "__main__":
    sys.exit(not answers())
