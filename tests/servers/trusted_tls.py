"""A TLS server of this machine whose certificate an authority signed that the system trusts, and ours did not."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.certificates import Authority
from tests.servers.listening import listening


@dataclass(slots=True)
class Impostor:
    """An authority that the system trusts, in the place of a server."""

    port: int
    ours: Path
    """The certificate of our own authority."""
    of_the_system: Path
    heard: list[bytes] = field(default_factory=list)
    """Bytes from those who have taken it for the server."""


@asynccontextmanager
async def impostor(folder: Path) -> AsyncIterator[Impostor]:
    """It listens inside the block, in which the system trusts its authority."""
    ours, other = Authority(folder, "ours"), Authority(folder, "other")
    shown = other.issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.cert_file, shown.key_file)
    found = Impostor(0, ours.ca_file, other.ca_file)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.heard.append(await reader.read(24))

    before = os.environ.get("SSL_CERT_FILE")
    os.environ["SSL_CERT_FILE"] = str(other.ca_file)
    try:
        async with listening(hear, tls=context) as found.port:
            yield found
    finally:
        if before is None:
            del os.environ["SSL_CERT_FILE"]
        else:
            os.environ["SSL_CERT_FILE"] = before
