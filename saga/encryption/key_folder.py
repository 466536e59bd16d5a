"""Folder of keys, which all services and clients share. It contains wrapping keys, one wrapped secret for each subject,
and an audit log.

    keys/2026-11-23T10-00-00Z.key     a wrapping key; the last by name wraps new secrets
    keys/subjects/3f/3f09....json     the wrapped secret of one subject, or the mark that it was erased
    keys/made/3f                      the names of all secrets that were ever created
    keys/book.jsonl                   the audit log: who created, rewrapped, forgot or revealed what, when and why

A secret is created once, by the first process that encrypts a value of its subject. The secret itself never changes.
Its file is only replaced with the same secret, wrapped with a newer key, or with a mark that the secret was erased. A
missing file does not mean that the secret was erased, because the file may be restored. Operations that need it wait.

Wrapping keys change while services run. A new secret becomes visible while the lock of the folder is held, and only if
its wrapping key is still the newest. So if the holder of the lock finds an older wrapping key that no secret uses, no
secret will ever use that key.
"""

import asyncio
import base64
import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from saga.encryption.keys import SECRET_BYTES, SubjectKey, subject_key_name, unwrap_secret, wrap_secret
from saga.encryption.port import KeyState
from saga.encryption.sensitive_fields import DecryptionFailed
from saga.errors import ConfigurationError, KeyMissing, KeysUnavailable
from saga.support.clock import Clock, iso
from saga.support.printable import count_noun

CACHE_S: Final = 60.0
"""Time in seconds for which a process caches a key. After an erasure, the process may still decrypt for this long."""
CACHE_MAX: Final = 10_000
"""Maximum number of keys that a process caches."""
ENDING: Final = ".key"
MAKE_ONE: Final = ": make one, saga keys new"
LOCK_RETRY_S: Final = 0.01
"""Pause in seconds between two attempts to lock the folder."""
LOCK_ATTEMPTS_MAX: Final = 1000
"""Maximum number of attempts to lock the folder. After them, an error says that another process does not release it."""

_UNREADABLE = (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of a JSON file that cannot be read."""


class KeyFolder:
    """Provider and management of keys in a folder. See `Keys` and `KeyRing` in `saga.encryption.port`."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self._known: dict[str, tuple[float, SubjectKey | None]] = {}
        self._made_names = MadeNames(folder / "made")

    def check(self) -> None:
        """Raise `ConfigurationError` if nothing can be encrypted, because the folder has no usable wrapping key."""
        try:
            self._wrapping_key(self._newest())
        except KeysUnavailable as why:
            reason = str(why).removesuffix(MAKE_ONE)
            raise ConfigurationError("nothing was started:", [f"SAGA_KEYS: {reason}; make one: saga keys new"]) from why

    async def get_or_create_key(self, subject: str) -> SubjectKey | None:
        return await self._get_cached(subject_key_name(subject), make=True)

    async def get_key(self, name: str) -> SubjectKey | None:
        return await self._get_cached(name, make=False)

    async def _get_cached(self, name: str, *, make: bool) -> SubjectKey | None:
        now_s = self._clock.monotonic_s()
        until_s, key = self._known.get(name, (now_s, None))
        if until_s <= now_s:
            key = await asyncio.to_thread(self._get_or_create if make else self._read, name)
            self._known.pop(name, None)
            while len(self._known) >= CACHE_MAX:
                del self._known[next(iter(self._known))]
            self._known[name] = now_s + CACHE_S, key
        return key

    # ------------------------------------------------------------ secrets of subjects

    def _get_or_create(self, name: str) -> SubjectKey | None:
        with suppress(FileNotFoundError):
            return self._load_key(name)
        with self._translate_errors(self._made_names.file_of(name), "read"):
            was_made = name in self._made_names
        secret = secrets.token_bytes(SECRET_BYTES)
        while not was_made:
            newest = self._newest()
            try:
                was_made = self._write(name, self._wrap(name, secret, newest), replaces=False)
            except KeysUnavailable:
                if newest == self._newest():
                    raise
        return self._read(name)

    def _read(self, name: str) -> SubjectKey | None:
        try:
            return self._load_key(name)
        except FileNotFoundError:
            is_empty = not self._list_wrapping_keys()
            raise (KeysUnavailable if is_empty else KeyMissing)(
                f"{self._place(name)} is not there, and no mark of an erasure: see whether this is the folder that all "
                "services share, and restore what it lacks"
                + (
                    ""
                    if is_empty
                    else "; if nothing is missing, the text was never encrypted with a key of this folder"
                )
            ) from None

    def _load_key(self, name: str) -> SubjectKey | None:
        """Return a key; `None` if its subject was forgotten.

        Raises `FileNotFoundError` if there is neither a secret nor the mark of an erasure, and `KeysUnavailable` if the
        secret cannot be read or unwrapped.
        """
        content = self._load_content(name)
        while "erased" not in content:
            try:
                return SubjectKey(name, self._secret(name, content))
            except KeysUnavailable:
                before, content = content, self._load_content(name)
                if content == before:  # otherwise it was rewrapped meanwhile, and the older key was removed
                    raise
        return None

    def _load_content(self, name: str) -> dict[str, Any]:
        try:
            content = msgspec.json.decode(self._place(name).read_bytes())
        except FileNotFoundError:
            raise
        except _UNREADABLE as why:
            raise KeysUnavailable(f"{self._place(name)} cannot be read: {why}") from why
        if not isinstance(content, dict) or not content.keys() & {"erased", "wrapped"}:
            raise KeysUnavailable(f"{self._place(name)} is no key of a subject: restore it")
        return content

    def _secret(self, name: str, content: Mapping[str, Any]) -> bytes:
        by = str(content.get("by"))
        try:
            return unwrap_secret(base64.b64decode(str(content["wrapped"])), name, self._wrapping_key(by))
        except (DecryptionFailed, ValueError) as why:
            raise KeysUnavailable(
                f"{self._place(name)} cannot be opened with {by}: one of them was changed; restore it"
            ) from why

    def _wrap(self, name: str, secret: bytes, by: str) -> dict[str, str]:
        content = wrap_secret(secret, name, self._wrapping_key(by), secrets.token_bytes(32))
        return {"by": by, "wrapped": base64.b64encode(content).decode()}

    # ------------------------------------------------------------ keys that wrap

    def _newest(self) -> str:
        """Return the name of the key that wraps new secrets. Raises `KeysUnavailable` if there is none, or if the
        folder cannot be read."""
        if names := self._list_wrapping_keys():
            return max(names)
        raise KeysUnavailable(f"there is no key in {self.folder}{MAKE_ONE}")

    def _list_wrapping_keys(self) -> list[str]:
        """Return the names of the wrapping keys. Raises `KeysUnavailable` if the folder cannot be read."""
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

    # ------------------------------------------------------------ for operators

    def create_wrapping_key(self, who: str, why: str) -> str:
        """Create a wrapping key, and return its name. All new secrets are wrapped with it from now on."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as trouble:
            raise KeysUnavailable(f"the folder of keys {self.folder} cannot be made: {trouble.strerror}") from trouble
        with self._hold_lock():
            name = self._newer_name(max(self._list_wrapping_keys(), default=""))
            with self._write_beside(
                self.folder / name, base64.b64encode(secrets.token_bytes(SECRET_BYTES)) + b"\n"
            ) as file:
                os.link(file, self.folder / name)
        self.append_audit_line("new", name, who, why)
        return name

    def _newer_name(self, newest: str) -> str:
        """Return a name for a new key that sorts last.

        If a clock was ahead when the newest key was created, the name begins with the name of that key.
        """
        now = iso(self._clock.now_ms()).replace(":", "-")
        name = f"{now}{ENDING}"
        if name > newest:
            return name
        stem = newest.removesuffix(ENDING)
        name = f"{stem.partition('_')[0]}_{now}{ENDING}"
        return name if name > newest else f"{stem}_{now}{ENDING}"

    def rewrap(self, who: str, why: str) -> tuple[int, list[str]]:
        """Wrap all secrets with the newest wrapping key. Return the number of secrets that had another one, and the
        wrapping keys that are no longer needed.

        Raises `KeysUnavailable` if a secret is damaged or missing. All others are wrapped again nevertheless.
        """
        count, damaged = 0, dict[str, KeysUnavailable]()
        with self._translate_errors(self.folder, "wrapped"):
            while found := [
                name
                for name in self._subjects()
                if name not in damaged and self._unless_damaged(self._has_older, name, damaged)
            ]:
                for name in found:
                    with self._hold_lock():  # otherwise the mark of a concurrent erasure would be replaced
                        count += self._unless_damaged(self._wrap_again, name, damaged)
            self.append_audit_line("rewrap", self._newest(), who, why)
            with self._hold_lock():  # under the lock no key or secret is created, so this second search is complete
                for copy in self.folder.glob(f".*{ENDING}.*"):  # left by a process that was killed
                    copy.unlink(missing_ok=True)
                names = list(self._subjects())
                self._made_names.add_all(names)
                count += sum(self._unless_damaged(self._wrap_again, name, damaged) for name in names)
                if damaged:
                    name, trouble = next(iter(damaged.items()))
                    raise KeysUnavailable(
                        f"{count_noun(count, 'secret')} wrapped again, and not {self._place(name)}, so it is not known "
                        f"which keys are still needed: {trouble}"
                    ) from trouble
                return count, self._find_unneeded()

    def _unless_damaged(self, act: Callable[[str], bool], name: str, damaged: dict[str, KeysUnavailable]) -> bool:
        """Return the result of `act` for a secret. If the secret cannot be read, add it to `damaged`, and return
        False."""
        try:
            return act(name)
        except KeysUnavailable as why:
            damaged[name] = why
            return False

    def _has_older(self, name: str) -> bool:
        return self._is_older(self._load_content(name))

    def _is_older(self, content: Mapping[str, Any]) -> bool:
        """Return whether the content of a subject's file is a secret that is wrapped with another key than the
        newest."""
        return "erased" not in content and content.get("by") != self._newest()

    def _wrap_again(self, name: str) -> bool:
        """Wrap a secret with the newest key, unless it already is. Return whether it was wrapped again. The lock must
        be held."""
        content = self._load_content(name)
        if not self._is_older(content):
            return False
        return self._write(name, self._wrap(name, self._secret(name, content), self._newest()), replaces=True)

    def _find_unneeded(self) -> list[str]:
        """Return the wrapping keys that no secret uses or will use. The lock must be held.

        Raises `KeysUnavailable` if a secret is missing or cannot be read, because a backup copy of it may be wrapped
        with any of the keys.
        """
        for trouble in self._find_lost():
            raise KeysUnavailable(f"it is not known which keys are still needed: {trouble}")
        with self._translate_errors(self.folder, "read"):
            used = {self._load_content(name).get("by") for name in self._subjects()}
        return sorted(set(self._list_wrapping_keys()) - used - {self._newest()})

    def _find_lost(self) -> Iterator[str]:
        """Yield a problem for each secret that was created and whose file is missing."""
        with self._translate_errors(self.folder / "made", "read"):
            made = self._made_names.all()  # read before the secrets: one that is created meanwhile is not lost
        for name in sorted(made - set(self._subjects())):
            yield (
                f"{self._place(name)} is lost, a secret or the mark of an erasure: restore it; if there is no copy of "
                f"it, what was encrypted with it cannot be read any more: then take its line out of "
                f"{self._made_names.file_of(name)}"
            )

    def forget(self, subject: str, who: str, why: str) -> bool:
        """Erase the secret of a subject for good, even a damaged one. Return whether it had one."""
        name = subject_key_name(subject)
        with self._hold_lock():
            place = self._place(name)
            with self._translate_errors(place, "removed"):
                had_secret = name in self._made_names
                for copy in place.parent.glob(f".{place.name}.*"):  # left by a process that was killed while it wrote
                    copy.unlink(missing_ok=True)
            with suppress(FileNotFoundError):
                had_secret = self._has_secret(name)
            mark = {"erased": iso(self._clock.now_ms()), "who": who, "why": why}
            self._write(name, mark, replaces=True)
        self._known.pop(name, None)
        self.append_audit_line("forget", name, who, why)
        return had_secret

    def _has_secret(self, name: str) -> bool:
        """Return whether a subject's file has a secret and no mark of an erasure. A damaged file counts as a secret,
        because a copy of it may be whole. Raises `FileNotFoundError`."""
        try:
            return "erased" not in self._load_content(name)
        except KeysUnavailable:
            return True

    def append_audit_line(self, did: str, what: str, who: str, why: str) -> None:
        """Append a line to the audit log. The line is durable when this returns."""
        line = {"time": iso(self._clock.now_ms()), "did": did, "what": what, "who": who, "why": why}
        try:
            with self._hold_lock():
                append_whole(self.folder / "book.jsonl", msgspec.json.encode(line) + b"\n", is_durable=True)
        except OSError as trouble:
            raise KeysUnavailable(f"the audit log of {self.folder} cannot be written: {trouble.strerror}") from trouble

    def read_audit_log(self) -> list[dict[str, str]]:
        """Return the lines of the audit log, oldest first. Raises `KeysUnavailable` if the log cannot be read."""
        try:
            return [msgspec.json.decode(line) for line in (self.folder / "book.jsonl").read_bytes().splitlines()]
        except FileNotFoundError:
            return []
        except _UNREADABLE as why:
            raise KeysUnavailable(f"the audit log of {self.folder} cannot be read: {why}") from why

    def summarize(self) -> KeyState:
        """Read all keys and return a summary. Raises `KeysUnavailable` if the folder is missing or cannot be read."""
        subjects, erased, troubles = 0, 0, list(self._find_lost())
        for name in self._subjects():
            try:
                content = self._load_content(name)
                if "erased" in content:
                    erased += 1
                    continue
                self._secret(name, content)
                subjects += 1
            except FileNotFoundError:  # removed at this moment
                continue
            except KeysUnavailable as why:
                troubles.append(str(why))
        places = [place for place in map(self.folder.joinpath, ("", "subjects", "made")) if place.exists()]
        unwritable = next((str(place) for place in places if not os.access(place, os.W_OK | os.X_OK)), "")
        unneeded = list[str]()
        if not troubles and not unwritable:
            with self._hold_lock():
                unneeded = self._find_unneeded()
        return KeyState(subjects, erased, troubles, unneeded, unwritable)

    # ------------------------------------------------------------ files

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Hold the folder's lock within the block. Every change of keys and secrets needs the lock."""
        try:
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as why:
            raise KeysUnavailable(f"the folder of keys {self.folder} cannot be written: {why.strerror}") from why
        try:
            self._wait_for(lock)
            yield
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        """Take the lock. Raises `KeysUnavailable` if its holder, which may be frozen, does not release it in time."""
        pause = threading.Event()
        for _ in range(LOCK_ATTEMPTS_MAX):
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pause.wait(LOCK_RETRY_S)
            except OSError as why:
                raise KeysUnavailable(f"{self.folder / '.lock'} cannot be locked: {why.strerror}") from why
        raise KeysUnavailable(
            f"another process has had {self.folder / '.lock'} for {LOCK_ATTEMPTS_MAX * LOCK_RETRY_S:.0f} seconds: "
            "ask again; if it does not end, see which process it is (fuser, lsof)"
        )

    @contextmanager
    def _translate_errors(self, place: Path, what: str) -> Iterator[None]:
        """Convert an `OSError` inside the block to `KeysUnavailable`. `what`: what was to be done with `place`."""
        try:
            yield
        except OSError as why:
            raise KeysUnavailable(f"{place} cannot be {what}: {why.strerror}") from why

    def _place(self, name: str) -> Path:
        return self.folder / "subjects" / name[:2] / f"{name}.json"

    def _subjects(self) -> Iterator[str]:
        return (path.stem for path in sorted((self.folder / "subjects").glob("??/*.json")))

    def _write(self, name: str, content: Mapping[str, str], *, replaces: bool) -> bool:
        """Write a secret, or the mark of an erasure.

        With `replaces`, existing content is replaced, and the lock must be held. Without it, existing content stays; if
        the secret's wrapping key is no longer the newest, nothing is written, and the result is `False`. In all other
        cases the result is `True`.
        """
        place = self._place(name)
        with self._write_beside(place, msgspec.json.encode(content)) as file:
            if replaces:
                os.replace(file, place)
            else:
                with self._hold_lock():
                    if content["by"] != self._newest():
                        return False
                    with suppress(FileExistsError):
                        os.link(file, place)
        lock = nullcontext() if replaces else self._hold_lock()
        with self._translate_errors(self._made_names.file_of(name), "written"), lock:
            self._made_names.add(name)
        return True

    @contextmanager
    def _write_beside(self, place: Path, content: bytes) -> Iterator[Path]:
        """Write a file durably under a temporary name in the folder of `place`, and yield its path. The caller moves
        the file to `place` inside the block. Raises `KeysUnavailable` if it cannot be written."""
        beside = place.parent / f".{place.name}.{secrets.token_hex(8)}"
        with self._translate_errors(place, "written"):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                yield beside
            finally:
                beside.unlink(missing_ok=True)
            folder = os.open(place.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


# -------------------------------------------------------------------- names of created secrets


class MadeNames:
    """The names of all secrets that were ever created, in files. All methods raise `OSError` if a file cannot be read
    or written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def file_of(self, name: str) -> Path:
        """Return the file whose list contains a name, if the name was added."""
        return self._folder / name[:2]

    def __contains__(self, name: str) -> bool:
        try:
            return name in self.file_of(name).read_text().split()
        except FileNotFoundError:
            return False

    def add(self, name: str) -> None:
        """Add a name; adding it again is harmless. The lock of the folder of keys must be held."""
        self._folder.mkdir(parents=True, exist_ok=True)
        append_whole(self.file_of(name), f"{name}\n".encode())

    def add_all(self, names: Iterable[str]) -> None:
        """Add the names that are not listed yet. The lock of the folder of keys must be held."""
        for name in sorted(set(names) - self.all()):
            self.add(name)

    def all(self) -> set[str]:
        """Return all names."""
        if not self._folder.exists():
            return set()
        return {name for path in self._folder.iterdir() for name in path.read_text().split()}


def append_whole(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Append to a file, all or nothing: a full disk may take only a part, which is removed again. Raises `OSError`.

    The lock of the folder of keys must be held, because what another process appended meanwhile would be removed, too.
    """
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(file).st_size
        try:
            while content:
                content = content[os.write(file, content) :]
        except OSError:
            os.ftruncate(file, size)
            raise
        if is_durable:
            os.fsync(file)
    finally:
        os.close(file)
