"""HTTP client for Confluent's schema registry interface. It is the only module that uses aiohttp as a client."""

import base64
import json
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from saga.contracts.foreign_values import SCHEMA_BYTES_MAX, inline_references
from saga.errors import ConfigurationError, RegistryUnavailable
from saga.registry.port import ID_MAX, RegisteredSchema, RegistryOptions, RegistryRefused, SchemaIncomplete
from saga.support.printable import printable, quote_text, shorten
from saga.support.settings import load_certificate, path_of, read_secret, secret_reader

ANSWER_S_MAX = 10.0
"""Longest wait for an answer, in seconds."""
ANSWER_BYTES_MAX = 2 * SCHEMA_BYTES_MAX
SAID_BYTES_MAX = 300
NONE_THERE = (40401, 40402, 40403)
"""Error codes with which a registry reports a missing subject, version or schema. A server that answers 404 without
such a code is not a registry."""
REFERENCES_MAX = 100
"""Largest number of schemas to which a schema may refer, directly or indirectly."""


class HttpRegistry:
    """Schema registry at an address. See `saga.registry.port.SchemaRegistry` for the promises."""

    def __init__(self, options: RegistryOptions) -> None:
        self.address = options.registry.rstrip("/")
        self._user = options.registry_user
        self._password: Callable[[], str] | None = secret_reader(
            options.registry_password, options.registry_password_file
        )
        self._options = options
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
            connector=aiohttp.TCPConnector(ssl=_context(self._options)),
            auto_decompress=True,
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def schema(self, id_: int) -> str:
        answer = await self._ask("GET", f"/schemas/ids/{id_}")
        return "" if answer is None else await self._whole(answer, f"the schema with id {id_}")

    async def versions(self, subject: str) -> Sequence[int]:
        answer = await self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions")
        if answer is not None and not (isinstance(answer, list) and all(type(each) is int for each in answer)):
            raise self._invalid_answer("a list of versions was requested")
        return sorted(answer or ())

    async def version(self, subject: str, number: int) -> RegisteredSchema:
        answer = await self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{number}")
        if answer is None:
            raise self._invalid_answer(f"version {number} of {subject!r} was listed, and is not there")
        return RegisteredSchema(self._id(answer), await self._whole(answer, f"version {number} of {subject!r}"))

    async def register(self, subject: str, schema: str) -> int:
        answer = await self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})
        if answer is None:
            raise self._invalid_answer(f"a schema was to be registered as {subject!r}")
        return self._id(answer)

    async def _whole(self, answer: Any, what: str) -> str:
        """Return the text of a schema with the schemas to which it refers inlined. Raises `SchemaIncomplete` if one is
        missing."""
        text, found = self._text(answer, "schema"), dict[str, str]()
        open_ = _references(answer)
        while open_:
            name, subject, number = open_.pop()
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                raise SchemaIncomplete(f"{what} refers to more than {REFERENCES_MAX} others: have its sender use fewer")
            # No subject contains half of a surrogate pair, which JSON can express and an address cannot.
            is_text = not any("\ud800" <= char <= "\udfff" for char in subject)
            # A softly deleted version is needed, too, because the log may hold values of the schema that refers to it.
            path = f"/subjects/{quote(subject, safe='', errors='replace')}/versions/{number}?deleted=true"
            part = await self._ask("GET", path) if is_text else None
            if part is None:
                raise SchemaIncomplete(
                    f"{what} refers to {quote_text(name)}, version {number} of {quote_text(subject)}, which the "
                    "registry at "
                    f"{self.address} does not have: have its sender register it there"
                )
            found[name] = self._text(part, "schema")
            open_ += _references(part)
        return inline_references(text, found.values()) if found else text

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        """Send a request, and return the registry's answer, decoded from JSON; `None` if what was requested does not
        exist.

        Raises `RegistryUnavailable`, and `RegistryRefused` if the registry refuses to register a schema.
        """
        assert self._session is not None, "only called inside the block"
        try:
            # Redirects are not followed, because the password would be sent to their target.
            async with self._session.request(
                method, self.address + path, json=body, headers=self._headers(), allow_redirects=False
            ) as answer:
                status, text = answer.status, await answer.content.read(ANSWER_BYTES_MAX + 1)
                while len(text) <= ANSWER_BYTES_MAX and not answer.content.at_eof():
                    text += await answer.content.read(ANSWER_BYTES_MAX + 1 - len(text))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as why:
            detail = shorten(printable(f"{type(why).__name__}: {why}"), SAID_BYTES_MAX)
            raise RegistryUnavailable(f"the schema registry at {self.address} cannot be used: {detail}") from why
        return self._parse_answer(method, status, text)

    def _parse_answer(self, method: str, status: int, text: bytes) -> Any:
        if len(text) > ANSWER_BYTES_MAX:
            raise self._invalid_answer(f"its answer has more than {ANSWER_BYTES_MAX} bytes")
        try:
            answer = json.loads(text) if text else None
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and answer is not None:
            return answer
        code = answer.get("error_code") if isinstance(answer, dict) else None
        detail = shorten(printable(str(answer.get("message") if isinstance(answer, dict) else "")), SAID_BYTES_MAX)
        if status == 404 and code in NONE_THERE:
            return None
        if status in (401, 403):
            raise RegistryUnavailable(
                f"the schema registry at {self.address} does not let us in (status {status}): see SAGA_REGISTRY_USER "
                "and its password, and what that user may do there"
            )
        if method == "POST" and status in (409, 422) and code is not None:
            raise RegistryRefused(detail)
        raise self._invalid_answer(f"its status is {status}{f' ({detail})' if detail else ''}")

    def _invalid_answer(self, what: str) -> RegistryUnavailable:
        return RegistryUnavailable(
            f"the schema registry at {self.address} gives no answer that makes sense: {what}; see that SAGA_REGISTRY "
            "is the address of Confluent's interface, with its path"
        )

    def _text(self, answer: Any, name: str) -> str:
        if not isinstance(answer, dict) or not isinstance(answer.get(name), str) or not answer[name]:
            raise self._invalid_answer("a schema was requested, and is not in it")
        if len(answer[name]) > SCHEMA_BYTES_MAX:
            raise self._invalid_answer(f"a schema has more than {SCHEMA_BYTES_MAX} bytes")
        text: str = answer[name]
        return text

    def _id(self, answer: Any) -> int:
        id_ = answer.get("id") if isinstance(answer, dict) else None
        if type(id_) is not int or not 0 <= id_ <= ID_MAX:
            raise self._invalid_answer("the id of a schema was requested, and is not in it")
        return id_

    def _headers(self) -> dict[str, str]:
        """Return the headers with the current user and password.

        Raises `ValueError` if the password cannot be read, which is reported as an outage.
        """
        if not self._user:
            return {}
        shown = f"{self._user}:{'' if self._password is None else read_secret(self._password)}"
        return {"Authorization": f"Basic {base64.b64encode(shown.encode()).decode()}"}


def _references(answer: Any) -> list[tuple[str, str, int]]:
    """Return the schemas to which a schema refers, each as name, subject and version."""
    found = []
    references = answer.get("references")
    for each in references if isinstance(references, list) else ():
        if isinstance(each, dict):
            name, subject, number = each.get("name"), each.get("subject"), each.get("version")
            if isinstance(name, str) and isinstance(subject, str) and type(number) is int:
                found.append((name, subject, number))
    return found


def _context(options: RegistryOptions) -> ssl.SSLContext:
    """Return a TLS context. If a CA file is configured, the system's certificate authorities are not trusted. Raises
    `ConfigurationError`."""
    ca, cert, key = map(path_of, (options.registry_ca_file, options.registry_cert_file, options.registry_key_file))
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            context.load_verify_locations(ca)
        if cert is not None:
            password = secret_reader("", options.registry_key_password_file)
            load_certificate(context, cert, key, password, "SAGA_REGISTRY_KEY_PASSWORD_FILE")
    except (OSError, ValueError) as why:  # an SSLError is an OSError, too
        files: list[Path] = [file for file in (ca, cert, key) if file is not None]
        raise ConfigurationError(
            "the certificates for the schema registry cannot be used:", [f"{', '.join(map(str, files))}: {why}"]
        ) from why
    return context
