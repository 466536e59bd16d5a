"""Folder of keys, which all services and clients share: keys that wrap, one wrapped secret for each subject, and a book
of what people did with them.

    keys/2026-11-23T10-00-00Z.key     wraps secrets; the last by name wraps new ones
    keys/subjects/3f/3f09....json     wrapped secret of one subject, or the mark that it was forgotten
    keys/book.jsonl                   who made, wrapped anew, forgot or revealed what, when and why

A secret is made once, by whoever seals first for its subject; it is never replaced but by the mark of its erasure, and
by itself, wrapped with a newer key. A file that is absent is no erasure: it may come back, and who needs it waits.
"""

import asyncio
import base64
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from saga.clock import Clock, iso
from saga.errors import ConfigurationError, KeyMissing, KeysUnavailable
from saga.sealing.keys import SECRET_BYTES, SubjectKey, name_of_subject, unwrapped, wrapped
from saga.sealing.port import KeyState
from saga.sealing.text import Unopened

CACHE_S: Final = 60.0
"""Seconds that a process goes on with a key that it has read: so long after an erasure it may still open."""
CACHE_MAX: Final = 10_000
"""Keys that a process keeps, at most."""
ENDING: Final = ".key"


class KeyFolder:
    """Keys of a folder: see `saga.sealing.port.Keys`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self._known: dict[str, tuple[float, SubjectKey | None]] = {}

    def check(self) -> None:
        """Raises `ConfigurationError` for a folder with which nothing can be sealed."""
        try:
            newest = max(self._wrapping())
            self._wrapping_key(newest)
        except (KeysUnavailable, ValueError) as why:
            said = str(why) if isinstance(why, KeysUnavailable) else f"there is no key in {self.folder}"
            raise ConfigurationError("nothing was started:", [f"SAGA_KEYS: {said}; make one: saga keys new"]) from why

    async def of_subject(self, subject: str) -> SubjectKey | None:
        return await self._cached(name_of_subject(subject), make=True)

    async def named(self, name: str) -> SubjectKey | None:
        return await self._cached(name, make=False)

    async def _cached(self, name: str, *, make: bool) -> SubjectKey | None:
        now_s = self._clock.monotonic_s()
        until_s, key = self._known.get(name, (now_s, None))
        if until_s <= now_s:
            key = await asyncio.to_thread(self._made if make else self._read, name)
            self._known.pop(name, None)
            while len(self._known) >= CACHE_MAX:
                del self._known[next(iter(self._known))]
            self._known[name] = now_s + CACHE_S, key
        return key

    # ------------------------------------------------------------ secrets of subjects

    def _made(self, name: str) -> SubjectKey | None:
        with suppress(FileNotFoundError):
            return self._key_in(name)
        newest = max(self._wrapping(), default=None)
        if newest is None:
            raise KeysUnavailable(f"there is no key in {self.folder}: make one, saga keys new")
        self._write(name, self._wrapped(name, secrets.token_bytes(SECRET_BYTES), newest), replaces=False)
        return self._read(name)

    def _read(self, name: str) -> SubjectKey | None:
        try:
            return self._key_in(name)
        except FileNotFoundError:
            is_empty = not self._wrapping()
            raise (KeysUnavailable if is_empty else KeyMissing)(
                f"{self._place(name)} is not there, and no mark of an erasure: see whether this is the folder that all "
                "services share, and restore what it lacks"
                + ("" if is_empty else "; if nothing is missing, the text was never sealed with a key of this folder")
            ) from None

    def _key_in(self, name: str) -> SubjectKey | None:
        """Raises `FileNotFoundError` if there is neither a secret nor a mark, and `KeysUnavailable`."""
        content = self._content(name)
        return None if "erased" in content else SubjectKey(name, self._secret(name, content))

    def _content(self, name: str) -> dict[str, Any]:
        try:
            content = msgspec.json.decode(self._place(name).read_bytes())
        except FileNotFoundError:
            raise
        except (OSError, msgspec.DecodeError) as why:
            raise KeysUnavailable(f"{self._place(name)} cannot be read: {why}") from why
        if not isinstance(content, dict) or not content.keys() & {"erased", "wrapped"}:
            raise KeysUnavailable(f"{self._place(name)} is no key of a subject: restore it")
        return content

    def _secret(self, name: str, content: Mapping[str, Any]) -> bytes:
        by = str(content.get("by"))
        try:
            return unwrapped(base64.b64decode(str(content["wrapped"])), name, self._wrapping_key(by))
        except (Unopened, ValueError) as why:
            raise KeysUnavailable(
                f"{self._place(name)} cannot be opened with {by}: one of them was changed; restore it"
            ) from why

    def _wrapped(self, name: str, secret: bytes, by: str) -> dict[str, str]:
        content = wrapped(secret, name, self._wrapping_key(by), secrets.token_bytes(32))
        return {"by": by, "wrapped": base64.b64encode(content).decode()}

    # ------------------------------------------------------------ keys that wrap

    def _wrapping(self) -> list[str]:
        """Names of the keys that wrap. Raises `KeysUnavailable`."""
        try:
            return [path.name for path in self.folder.iterdir() if path.suffix == ENDING]
        except OSError as why:
            raise KeysUnavailable(f"the folder of keys {self.folder} cannot be read: {why.strerror}") from why

    def _wrapping_key(self, name: str) -> bytes:
        place = self.folder / Path(name).name
        try:
            key = base64.b64decode(place.read_bytes().strip(), validate=True)
        except OSError as why:
            raise KeysUnavailable(
                f"the key {place} cannot be read: {why.strerror}; everyone needs it until saga keys rewrap has wrapped "
                "with a newer one"
            ) from why
        except ValueError:
            key = b""
        if len(key) != SECRET_BYTES:
            raise KeysUnavailable(f"{place} is no key: it has to hold {SECRET_BYTES} bytes as base64; restore it")
        return key

    # ------------------------------------------------------------ what people do

    def new(self, who: str, why: str) -> str:
        """Make a key that wraps: from now on new secrets are wrapped with it. Returns its name."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as trouble:
            raise KeysUnavailable(f"the folder of keys {self.folder} cannot be made: {trouble.strerror}") from trouble
        name = f"{iso(self._clock.now_ms()).replace(':', '-')}{ENDING}"
        if (newest := max(self._wrapping(), default="")) >= name:
            raise KeysUnavailable(f"{newest} is as new: look at this machine's clock, or ask again")
        self._put(self.folder / name, base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n", replaces=False)
        self.note("new", name, who, why)
        return name

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest key. Returns how many there were to be wrapped, and the keys that nothing
        needs any more."""
        newest, count = max(self._wrapping(), default=""), 0
        for name in list(self._subjects()):
            content = self._content(name)
            if "erased" not in content and content.get("by") != newest:
                with self._alone():  # or the mark of an erasure meanwhile would be replaced
                    content = self._content(name)
                    if "erased" not in content:
                        self._write(name, self._wrapped(name, self._secret(name, content), newest), replaces=True)
                        count += 1
        self.note("rewrap", newest, who, why)
        return count, sorted(set(self._wrapping()) - {newest})

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Remove the secret of a subject for good. Returns whether there was one."""
        name = name_of_subject(subject)
        with self._alone():
            try:
                content = self._content(name)
            except FileNotFoundError:
                content = {"erased": True}
            mark = {"erased": iso(self._clock.now_ms()), "who": who, "why": why}
            self._write(name, mark, replaces=True)
        self._known.pop(name, None)
        self.note("forget", name, who, why)
        return "erased" not in content

    def note(self, did: str, what: str, who: str, why: str) -> None:
        """Write a line into the book: durable when this returns."""
        line = {"time": iso(self._clock.now_ms()), "did": did, "what": what, "who": who, "why": why}
        try:
            book = os.open(self.folder / "book.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(book, msgspec.json.encode(line) + b"\n")
                os.fsync(book)
            finally:
                os.close(book)
        except OSError as trouble:
            raise KeysUnavailable(f"the book of {self.folder} cannot be written: {trouble.strerror}") from trouble

    def book(self) -> list[dict[str, str]]:
        """Lines of the book, oldest first. Raises `KeysUnavailable`."""
        try:
            return [msgspec.json.decode(line) for line in (self.folder / "book.jsonl").read_bytes().splitlines()]
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as why:
            raise KeysUnavailable(f"the book of {self.folder} cannot be read: {why}") from why

    def state(self) -> KeyState:
        """Look at all keys. Raises `KeysUnavailable` if there is no folder."""
        used, subjects, erased, troubles = set[str](), 0, 0, list[str]()
        for name in self._subjects():
            try:
                content = self._content(name)
                if "erased" in content:
                    erased += 1
                    continue
                used.add(str(content.get("by")))
                self._secret(name, content)
                subjects += 1
            except FileNotFoundError:  # it is being wrapped anew
                continue
            except KeysUnavailable as why:
                troubles.append(str(why))
        older = sorted(self._wrapping())[:-1]
        places = [place for place in (self.folder, self.folder / "subjects") if place.exists()]
        unwritable = next((str(place) for place in places if not os.access(place, os.W_OK | os.X_OK)), "")
        return KeyState(subjects, erased, troubles, [name for name in older if name not in used], unwritable)

    # ------------------------------------------------------------ files

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the one lock of those who replace secrets."""
        try:
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as why:
            raise KeysUnavailable(f"the folder of keys {self.folder} cannot be written: {why.strerror}") from why
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _place(self, name: str) -> Path:
        return self.folder / "subjects" / name[:2] / f"{name}.json"

    def _subjects(self) -> Iterator[str]:
        return (path.stem for path in sorted((self.folder / "subjects").glob("??/*.json")))

    def _write(self, name: str, content: Mapping[str, str], *, replaces: bool) -> None:
        self._put(self._place(name), msgspec.json.encode(content), replaces=replaces)

    def _put(self, place: Path, content: bytes, *, replaces: bool) -> None:
        """Write a file as a whole and durably; without `replaces` one that is there already stays."""
        beside = place.parent / f".{place.name}.{secrets.token_hex(8)}"
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                if replaces:
                    os.replace(beside, place)
                else:
                    with suppress(FileExistsError):
                        os.link(beside, place)
            finally:
                beside.unlink(missing_ok=True)
            folder = os.open(place.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as why:
            raise KeysUnavailable(f"{place} cannot be written: {why.strerror}") from why
