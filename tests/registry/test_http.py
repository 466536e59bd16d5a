"""Requests to a schema registry over HTTP: every malformed answer is an outage, and no error shows a secret."""

import asyncio
import base64
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from saga.contracts.foreign_values import SCHEMA_BYTES_MAX
from saga.errors import ConfigurationError, RegistryUnavailable
from saga.registry import http
from saga.registry.http import HttpRegistry
from saga.registry.port import RegisteredSchema, RegistryOptions, RegistryRefused
from tests.servers.certificates import Authority, Certificate
from tests.servers.listening import listening
from tests.servers.trusted_tls import impostor


@dataclass
class Answering:
    """A server that answers every request alike, and remembers them."""

    port: int = 0
    status: int = 200
    body: bytes = b"{}"
    more: bytes = b""
    """Further lines of the head."""
    requests: list[bytes] = field(default_factory=list)
    scheme: str = "http"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: ([0-9]+)", head)
        self.requests.append(head + await reader.readexactly(int(length[1]) if length else 0))
        writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: %d\r\n" % (self.status, len(self.body)))
        writer.write(b"Connection: close\r\n" + self.more + b"\r\n" + self.body)
        await writer.drain()

    def answers(self, status: int, body: object) -> None:
        self.status, self.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def registry(self, **options: str) -> HttpRegistry:
        address = f"{self.scheme}://127.0.0.1:{self.port}/apis/ccompat/v7/"
        return HttpRegistry(RegistryOptions(registry=address, **options))


@pytest.fixture
async def server() -> AsyncIterator[Answering]:
    answering = Answering()
    async with listening(answering.serve) as answering.port:
        yield answering


async def outage(registry: HttpRegistry) -> str:
    async with registry:
        with pytest.raises(RegistryUnavailable) as raised:
            await registry.schema(7)
    assert "\n" not in str(raised.value)
    assert registry.address in str(raised.value)
    return str(raised.value)


async def test_requests_are_below_the_address_and_names_are_escaped(server: Answering) -> None:
    async with server.registry() as registry:
        server.answers(200, {"schema": '"string"', "schemaType": "AVRO"})
        assert await registry.schema(7) == '"string"'
        server.answers(200, [2, 1])
        assert await registry.versions("sales-shop.Placed/é ?") == [1, 2]
        server.answers(200, {"id": 3, "schema": "{}"})
        assert await registry.version("sales", 2) == RegisteredSchema(3, "{}")
        server.answers(200, {"id": 4})
        assert await registry.register("sales", "{}") == 4
    lines = [request.split(b"\r\n")[0] for request in server.requests]
    assert lines == [
        b"GET /apis/ccompat/v7/schemas/ids/7 HTTP/1.1",
        b"GET /apis/ccompat/v7/subjects/sales-shop.Placed%2F%C3%A9%20%3F/versions HTTP/1.1",
        b"GET /apis/ccompat/v7/subjects/sales/versions/2 HTTP/1.1",
        b"POST /apis/ccompat/v7/subjects/sales/versions HTTP/1.1",
    ]
    assert server.requests[-1].endswith(b'{"schema": "{}"}')
    assert all(b"authorization" not in request.lower() for request in server.requests)


async def test_a_missing_schema_or_subject_is_no_outage(server: Answering) -> None:
    async with server.registry() as registry:
        server.answers(404, {"error_code": 40403, "message": "Schema not found"})
        assert await registry.schema(7) == ""
        server.answers(404, {"error_code": 40401, "message": "Subject not found"})
        assert await registry.versions("sales") == []


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, b"<html>no such page</html>", "its status is 404; see that SAGA_REGISTRY is the address of Confluent's"),
        (404, {"error_code": 404, "message": "HTTP 404"}, "its status is 404 (HTTP 404)"),
        (200, b"<html>welcome</html>", "its status is 200"),
        (200, [], "a schema was requested, and is not in it"),
        (200, {"schema": 7}, "a schema was requested, and is not in it"),
        (200, {"schema": ""}, "a schema was requested, and is not in it"),
        (200, b"[" * 100_000, "its status is 200"),
        (200, {"schema": "x" * (SCHEMA_BYTES_MAX + 1)}, "a schema has more than 1048576 bytes"),
        (200, b"x" * (http.ANSWER_BYTES_MAX + 1), "its answer has more than 2097152 bytes"),
        (302, b"", "its status is 302"),
        (401, {"error_code": 401, "message": "no"}, "does not let us in (status 401): see SAGA_REGISTRY_USER"),
        (403, b"", "does not let us in (status 403)"),
        (429, b"", "its status is 429"),
        (
            500,
            {"error_code": 50001, "message": "Error in the\n\x1b[2Jstore"},
            r"its status is 500 (Error in the\n\x1b[2Jstore)",
        ),
    ],
)
async def test_a_malformed_answer_is_an_outage(server: Answering, status: int, body: object, reason: str) -> None:
    server.more = b"Location: http://127.0.0.1:1/\r\n"
    server.answers(status, body)
    assert reason in await outage(server.registry())
    assert len(server.requests) == 1, "no redirect is followed"


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ({"id": -1}, "register"),
        ({"id": 1 << 31}, "register"),
        ({"id": "1"}, "register"),
        ({"id": True}, "register"),
        ([1, "2"], "versions"),
        ({}, "versions"),
        ({"id": 1}, "version"),
    ],
)
async def test_a_malformed_field_of_an_answer_is_an_outage(server: Answering, body: object, call: str) -> None:
    server.answers(200, body)
    async with server.registry() as registry:
        arguments: tuple[Any, ...] = {"register": ("s", "{}"), "versions": ("s",), "version": ("s", 1)}[call]
        with pytest.raises(RegistryUnavailable, match="no answer that makes sense"):
            await getattr(registry, call)(*arguments)


async def test_a_listed_but_missing_version_is_an_outage(server: Answering) -> None:
    server.answers(404, {"error_code": 40402})
    async with server.registry() as registry:
        with pytest.raises(RegistryUnavailable, match="version 3 of 'sales' was listed, and is not there"):
            await registry.version("sales", 3)
        with pytest.raises(RegistryUnavailable, match="a schema was to be registered as 'sales'"):
            await registry.register("sales", "{}")


@pytest.mark.parametrize("status", [409, 422])
async def test_a_schema_rejected_by_the_registry_raises_its_reason(server: Answering, status: int) -> None:
    server.answers(status, {"error_code": status, "message": "Incompatible\nschema"})
    async with server.registry() as registry:
        with pytest.raises(RegistryRefused, match=r"^Incompatible\\nschema$"):
            await registry.register("sales", "{}")
        with pytest.raises(RegistryUnavailable, match=rf"its status is {status} \(Incompatible\\nschema\)"):
            await registry.schema(7)


async def test_a_refused_connection_and_a_silent_registry_are_outages(
    server: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "ANSWER_S_MAX", 0.1)
    assert "cannot be used: ClientConnectorError" in await outage(
        HttpRegistry(RegistryOptions(registry="http://127.0.0.1:1"))
    )

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(silent) as port:
        message = await outage(HttpRegistry(RegistryOptions(registry=f"http://127.0.0.1:{port}")))
    assert "cannot be used: " in message
    assert "Timeout" in message


async def test_a_truncated_answer_is_an_outage(server: Answering) -> None:
    server.answers(200, b'{"schema"')
    server.more = b"Content-Length: 99\r\n"
    assert "cannot be used" in await outage(server.registry())


async def test_the_password_file_is_read_for_each_request_and_its_text_is_in_no_error(
    server: Answering, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    options = {"registry_user": "ada", "registry_password_file": str(file)}
    async with server.registry(**options) as registry:
        server.answers(200, [])
        await registry.versions("sales")
        file.write_text("second\n")
        await registry.versions("sales")
        for request, password in zip(server.requests, (b"first", b"second"), strict=True):
            assert b"Authorization: Basic " + base64.b64encode(b"ada:" + password) in request
        server.answers(401, b"second")
        with pytest.raises(RegistryUnavailable) as raised:
            await registry.versions("sales")
        assert "second" not in str(raised.value)
        file.unlink()
        with pytest.raises(RegistryUnavailable, match="cannot be used: ValueError: FileNotFoundError"):
            await registry.versions("sales")


# -------------------------------------------------------------------- TLS


@asynccontextmanager
async def over_tls(folder: Path) -> AsyncIterator[tuple[Answering, Path]]:
    """A server with a certificate of our own authority, whose file comes with it; it wants one of its clients, too."""
    authority = Authority(folder, "ours")
    shown, client = authority.issue("server"), authority.issue("client")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.cert_file, shown.key_file)
    context.load_verify_locations(authority.ca_file)
    context.verify_mode = ssl.CERT_REQUIRED
    answering = Answering(scheme="https", body=b"[1]")
    async with listening(answering.serve, tls=context) as answering.port:
        (folder / "client.pem").write_text(client.together().read_text())
        yield answering, authority.ca_file


async def test_a_registry_with_a_private_authority_is_trusted_by_its_file(tmp_path: Path) -> None:
    async with over_tls(tmp_path / "tls") as (server, ca_file):
        client = str(ca_file.with_name("client.pem"))
        ours = {"registry_cert_file": client, "registry_key_file": client}
        async with server.registry(registry_ca_file=str(ca_file), **ours) as registry:
            assert await registry.versions("sales") == [1]
        assert "CERTIFICATE_VERIFY_FAILED" in await outage(server.registry(**ours))
        other = Authority(tmp_path / "other", "other")
        assert "CERTIFICATE_VERIFY_FAILED" in await outage(server.registry(registry_ca_file=str(other.ca_file), **ours))
        assert len(server.requests) == 1


async def test_an_encrypted_client_key_is_opened_with_its_password(tmp_path: Path) -> None:
    async with over_tls(tmp_path / "tls") as (server, ca_file):
        cert_file = ca_file.with_name("ours-client.pem")
        encrypted = Certificate(cert_file, cert_file.with_suffix(".key")).encrypted("alohomora")
        shown = {"registry_cert_file": str(encrypted.cert_file), "registry_key_file": str(encrypted.key_file)}
        (tmp_path / "password").write_text("alohomora\n")
        opens = {"registry_key_password_file": str(tmp_path / "password")}
        async with server.registry(registry_ca_file=str(ca_file), **shown, **opens) as registry:
            assert await registry.versions("sales") == [1]
        with pytest.raises(ConfigurationError, match="password in SAGA_REGISTRY_KEY_PASSWORD_FILE"):
            async with server.registry(registry_ca_file=str(ca_file), **shown):
                pass


async def test_with_a_private_authority_system_authorities_are_not_trusted(tmp_path: Path) -> None:
    async with impostor(tmp_path / "tls") as found:
        options = RegistryOptions(registry=f"https://127.0.0.1:{found.port}", registry_ca_file=str(found.ours))
        assert "CERTIFICATE_VERIFY_FAILED" in await outage(HttpRegistry(options))
        assert not any(found.heard)


async def test_an_unusable_certificate_file_is_reported_before_the_first_request(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none")
    registry = HttpRegistry(RegistryOptions(registry="https://h", registry_ca_file=str(tmp_path / "ca.pem")))
    with pytest.raises(
        ConfigurationError, match=r"the certificates for the schema registry cannot be used:\n.*ca\.pem"
    ):
        async with registry:
            pass
