"""Folder of keys: one secret for each subject, concurrent first requests, wrapping keys that change during use, and
erasure."""

import asyncio
import base64
import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from saga.encryption.key_folder import CACHE_MAX, CACHE_S, KeyFolder
from saga.encryption.keys import SubjectKey, subject_key_name
from saga.encryption.sensitive_fields import DecryptionFailed, find_key_names, is_encrypted, key_name_of
from saga.errors import ConfigurationError, KeyMissing, KeysUnavailable
from saga.support.clock import SystemClock


class Calendar(SystemClock):
    """Clock that stands still until it is put forward."""

    def __init__(self) -> None:
        self.at_s = 1_800_000_000.0

    def now_ms(self) -> int:
        return int(self.at_s * 1000)

    def monotonic_s(self) -> float:
        return self.at_s


@pytest.fixture
def clock() -> Calendar:
    return Calendar()


@pytest.fixture
def keys(tmp_path: Path, clock: Calendar) -> KeyFolder:
    keys = KeyFolder(tmp_path / "keys", clock)
    keys.create_wrapping_key("ada", "the first one")
    return keys


def another(keys: KeyFolder, clock: Calendar) -> KeyFolder:
    """The folder as another process sees it, which has read nothing yet."""
    return KeyFolder(keys.folder, clock)


def secret_of(keys: KeyFolder, subject: str) -> Path:
    name = subject_key_name(subject)
    return keys.folder / "subjects" / name[:2] / f"{name}.json"


async def sealed(keys: KeyFolder, subject: str, text: str = "4242") -> str:
    key = await keys.get_or_create_key(subject)
    assert key is not None
    return key.encrypt(text.encode(), "here")


async def opened(keys: KeyFolder, text: str) -> str | None:
    key = await keys.get_key(key_name_of(text))
    return None if key is None else key.decrypt(text, "here").decode()


async def test_concurrent_first_requests_for_a_subject_get_one_key(keys: KeyFolder, clock: Calendar) -> None:
    processes = [another(keys, clock) for _ in range(20)]
    texts = await asyncio.gather(*(sealed(each, "ada") for each in processes))
    assert len(set(texts)) == 1
    assert [path.name for path in secret_of(keys, "ada").parent.iterdir()] == [secret_of(keys, "ada").name]
    assert await sealed(keys, "bob") != texts[0]


@pytest.mark.parametrize("plain", [b"", b"x", b"\0\xff", b"y" * 10_000])
def test_an_encrypted_value_decrypts_to_the_same_value(plain: bytes) -> None:
    key = SubjectKey("0" * 32, b"s" * 32)
    text = key.encrypt(plain, "here")
    assert key.decrypt(text, "here") == plain
    assert key.encrypt(plain, "here") == text
    assert is_encrypted(text)
    assert find_key_names(text.encode()) == {"0" * 32}
    for wrong, place in ((text, "there"), (text[:-6], "here"), (text[:42], "here"), (text + "!", "here")):
        with pytest.raises(DecryptionFailed):
            key.decrypt(wrong, place)
    with pytest.raises(DecryptionFailed):
        SubjectKey("0" * 32, b"t" * 32).decrypt(text, "here")


async def test_a_newer_key_wraps_new_secrets_and_older_ones_stay_readable(keys: KeyFolder, clock: Calendar) -> None:
    old = await sealed(keys, "ada")
    clock.at_s += 1
    newest = keys.create_wrapping_key("ada", "a new year")
    new = await sealed(another(keys, clock), "bob")
    assert newest in secret_of(keys, "bob").read_text()
    assert newest not in secret_of(keys, "ada").read_text()
    for text in (old, new):
        assert await opened(another(keys, clock), text) == "4242"


async def test_after_rewrapping_the_older_key_is_removable_and_old_copies_are_useless(
    keys: KeyFolder, clock: Calendar
) -> None:
    text, (first,) = await sealed(keys, "ada"), keys.folder.glob("*.key")
    copy = secret_of(keys, "ada").read_bytes()
    clock.at_s += 1
    newest = keys.create_wrapping_key("ada", "a new year")
    assert keys.rewrap("ada", "a new year") == (1, [first.name])
    assert keys.rewrap("ada", "again") == (0, [first.name])
    first.unlink()
    assert await opened(another(keys, clock), text) == "4242"
    secret_of(keys, "ada").write_bytes(copy)
    with pytest.raises(KeysUnavailable, match=f"the key .*{first.name} cannot be read: No such file or directory"):
        await opened(another(keys, clock), text)
    assert newest > first.name


async def test_a_process_without_the_newer_key_waits_until_it_appears(keys: KeyFolder, clock: Calendar) -> None:
    clock.at_s += 1
    newest = keys.folder / keys.create_wrapping_key("ada", "a new year")
    text = await sealed(keys, "ada")
    hidden = newest.rename(newest.with_suffix(".away"))
    late = another(keys, clock)
    with pytest.raises(KeysUnavailable, match="everyone needs it until saga keys rewrap"):
        await opened(late, text)
    hidden.rename(newest)
    assert await opened(late, text) == "4242"


async def test_an_erasure_is_permanent_and_reaches_each_process_within_its_cache_time(
    keys: KeyFolder, clock: Calendar
) -> None:
    text = await sealed(keys, "ada")
    running = another(keys, clock)
    assert await opened(running, text) == "4242"
    assert keys.forget("ada", "eve", "asked for it")
    assert await keys.get_or_create_key("ada") is None
    clock.at_s += CACHE_S - 1
    assert await opened(running, text) == "4242"
    clock.at_s += 1
    assert await opened(running, text) is None
    assert await running.get_or_create_key("ada") is None
    assert not keys.forget("ada", "eve", "again")
    assert not keys.forget("nobody", "eve", "to be sure")
    assert await another(keys, clock).get_or_create_key("nobody") is None
    clock.at_s += 1
    keys.create_wrapping_key("ada", "a new year")
    assert keys.rewrap("ada", "a new year")[0] == 0
    assert await opened(another(keys, clock), text) is None


async def test_a_missing_secret_does_not_count_as_erased(keys: KeyFolder, clock: Calendar) -> None:
    text = await sealed(keys, "ada")
    secret_of(keys, "ada").rename(keys.folder / "aside")
    with pytest.raises(KeyMissing, match="is not there, and no mark of an erasure"):
        await opened(another(keys, clock), text)
    wraps = next(keys.folder.glob("*.key"))
    wraps.rename(keys.folder / "beside")  # what has no key at all is not the folder that all share
    with pytest.raises(KeysUnavailable, match="is not there, and no mark of an erasure"):
        await opened(another(keys, clock), text)
    (keys.folder / "beside").rename(wraps)
    (keys.folder / "aside").rename(secret_of(keys, "ada"))
    assert await opened(another(keys, clock), text) == "4242"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b'{"by": "\xe1.key", "wrapped": "AAAA"}', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "is no key of a subject"),
        (b'{"by": "x"}', "is no key of a subject"),
        (b'{"by": "x.key", "wrapped": "AAAA"}', "x.key cannot be read"),
        (b'{"by": "../keys/%b", "wrapped": "AAAA"}', "cannot be opened with"),
        (b'{"by": "%b", "wrapped": "!"}', "cannot be opened with"),
    ],
)
async def test_a_damaged_secret_is_an_outage_that_names_the_file(
    content: bytes, problem: str, keys: KeyFolder, clock: Calendar
) -> None:
    (key,) = keys.folder.glob("*.key")
    text = await sealed(keys, "ada")
    secret_of(keys, "ada").write_bytes(content.replace(b"%b", key.name.encode()))
    with pytest.raises(KeysUnavailable, match=problem) as caught:
        await opened(another(keys, clock), text)
    assert str(keys.folder) in str(caught.value)
    assert await sealed(keys, "bob")


def test_a_service_does_not_start_with_a_folder_that_cannot_encrypt(
    tmp_path: Path, keys: KeyFolder, clock: Calendar
) -> None:
    keys.check()
    (tmp_path / "empty").mkdir()
    for folder, problem in (("empty", "there is no key in"), ("none", "cannot be read: No such file")):
        with pytest.raises(ConfigurationError, match=f"{problem}(.|\n)*make one: saga keys new"):
            KeyFolder(tmp_path / folder, clock).check()
    (tmp_path / "empty" / "1.key").write_bytes(base64.b64encode(b"short"))
    with pytest.raises(ConfigurationError, match=r"1\.key is no key: it has to hold 32 bytes as base64"):
        KeyFolder(tmp_path / "empty", clock).check()


async def test_without_a_wrapping_key_no_secret_is_created(tmp_path: Path, clock: Calendar) -> None:
    (tmp_path / "keys").mkdir()
    with pytest.raises(KeysUnavailable, match=r"there is no key in .*: make one, saga keys new"):
        await KeyFolder(tmp_path / "keys", clock).get_or_create_key("ada")


def test_no_other_user_may_read_a_key(keys: KeyFolder) -> None:
    (key,) = keys.folder.glob("*.key")
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("years", [(1, 0, 0, 0), (0, 1, 0, 2, 0), (0, 0, 0), (30, 1, 29, -40)])
async def test_the_newest_wrapping_key_is_the_last_created_even_if_clocks_differ(
    years: tuple[int, ...], keys: KeyFolder, clock: Calendar
) -> None:
    start_s, made = clock.at_s, list[str]()
    for n, ahead in enumerate(years):
        clock.at_s = start_s + 1 + ahead * 365 * 86_400
        made.append(keys.create_wrapping_key("ada", "a clock without trust"))
        await sealed(another(keys, clock), f"order-{n}")
        assert made[-1] in secret_of(keys, f"order-{n}").read_text()
    assert made == sorted(set(made))
    count, unneeded = keys.rewrap("ada", "only the last one stays")
    assert count == len(years) - 1
    assert {*unneeded, made[-1]} == {path.name for path in keys.folder.glob("*.key")}


def test_a_key_file_with_an_invalid_name_does_not_prevent_new_keys(keys: KeyFolder, clock: Calendar) -> None:
    (first,) = keys.folder.glob("*.key")
    first.rename(keys.folder / "z-restored.key")
    assert keys.create_wrapping_key("ada", "after it") > "z-restored.key"


# ---------------------------------------------------------------- keys change while all goes on


def without_the_unneeded(keys: KeyFolder, clock: Calendar) -> None:
    """Do what `saga keys rewrap` and the doctor tell people to do."""
    for name in {*keys.rewrap("bob", "as planned")[1], *another(keys, clock).summarize().unneeded}:
        (keys.folder / name).unlink()


@pytest.mark.parametrize("frozen_before", ["_wrap", "_write", "_write_beside", "_hold_lock", "_read"])
async def test_a_secret_created_during_a_key_change_stays_readable(
    frozen_before: str, keys: KeyFolder, clock: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may be frozen before each part of making a secret, while others make keys, wrap and remove."""
    slow = another(keys, clock)
    do = getattr(slow, frozen_before)

    def frozen(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(slow, frozen_before, do)
        clock.at_s += 1
        keys.create_wrapping_key("ada", "meanwhile")
        without_the_unneeded(keys, clock)
        return do(*args, **more)

    monkeypatch.setattr(slow, frozen_before, frozen)
    text = await sealed(slow, "order-1")
    assert len(list(keys.folder.glob("*.key"))) <= 2
    without_the_unneeded(keys, clock)
    assert len(list(keys.folder.glob("*.key"))) == 1
    assert await opened(another(keys, clock), text) == "4242"


async def test_a_reader_retries_when_a_secret_is_rewrapped_during_the_read(
    keys: KeyFolder, clock: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, slow = await sealed(keys, "ada"), another(keys, clock)
    do = slow._secret

    def frozen(*args: Any) -> bytes:
        monkeypatch.setattr(slow, "_secret", do)
        clock.at_s += 1
        keys.create_wrapping_key("ada", "meanwhile")
        without_the_unneeded(keys, clock)
        return do(*args)

    monkeypatch.setattr(slow, "_secret", frozen)
    assert await opened(slow, text) == "4242"


@pytest.mark.parametrize("nth", range(1, 13))
async def test_a_wrapping_key_created_during_a_rewrap_is_not_listed_as_removable(
    nth: int, keys: KeyFolder, clock: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates a key, and a service a secret with it, before each read of a file by the rewrapping."""
    texts = [await sealed(keys, f"order-{n}") for n in range(3)]
    clock.at_s += 1
    keys.create_wrapping_key("ada", "a new year")
    looks, looked = 0, keys._load_content

    def disturbed(name: str) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks == nth and not is_locked(keys):
            clock.at_s += 1
            another(keys, clock).create_wrapping_key("bob", "his own rotation")
            texts.append(asyncio.run_coroutine_threadsafe(sealed(another(keys, clock), "later"), loop).result())
        return looked(name)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(keys, "_load_content", disturbed)
    await asyncio.to_thread(without_the_unneeded, keys, clock)
    for text in texts:
        assert await opened(another(keys, clock), text) == "4242"


def is_locked(keys: KeyFolder) -> bool:
    with (keys.folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_a_lock_held_too_long_by_another_process_raises_keys_unavailable(
    keys: KeyFolder, clock: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.encryption.key_folder.LOCK_ATTEMPTS_MAX", 2)
    with another(keys, clock)._hold_lock():
        for ask in (keys.get_or_create_key("ada"), asyncio.to_thread(keys.forget, "ada", "eve", "asked for it")):
            with pytest.raises(KeysUnavailable, match=r"another process has had .*\.lock for"):
                await ask
    assert await sealed(keys, "ada")


async def test_no_key_is_removable_while_a_secret_is_unreadable(keys: KeyFolder, clock: Calendar) -> None:
    text = await sealed(keys, "ada")
    backup = secret_of(keys, "ada").read_bytes()
    clock.at_s += 1
    keys.create_wrapping_key("ada", "a new year")
    await sealed(keys, "bob")
    for damage in (lambda: secret_of(keys, "ada").write_bytes(b"?"), secret_of(keys, "ada").unlink):
        damage()
        with pytest.raises(KeysUnavailable, match=secret_of(keys, "ada").name):
            keys.rewrap("ada", "a new year")
        state = keys.summarize()
        assert (len(state.troubles), state.unneeded) == (1, [])
    secret_of(keys, "ada").write_bytes(backup)
    without_the_unneeded(keys, clock)
    assert await opened(another(keys, clock), text) == "4242"


@pytest.mark.parametrize("damage", [b"?", b'{"by": "gone.key", "wrapped": "AAAA"}'])
async def test_a_damaged_secret_keeps_no_other_secret_from_being_wrapped_again(
    keys: KeyFolder, clock: Calendar, damage: bytes
) -> None:
    texts = [await sealed(keys, subject) for subject in ("ada", "bob", "cleo", "dora")]
    damaged = sorted(secret_of(keys, subject) for subject in ("ada", "bob", "cleo", "dora"))[1]
    damaged.write_bytes(damage)
    clock.at_s += 1
    (older,) = keys.folder.glob("*.key")
    keys.create_wrapping_key("ada", "the older one was seen by a stranger")
    with pytest.raises(KeysUnavailable, match=rf"3 secrets wrapped again, and not {damaged}"):
        keys.rewrap("ada", "the older one was seen by a stranger")
    older.unlink()
    readable = [text for text in texts if key_name_of(text) != damaged.stem]
    assert [await opened(another(keys, clock), text) for text in readable] == ["4242"] * 3
    assert keys.read_audit_log()[-1]["did"] == "rewrap"


async def test_a_damaged_secret_can_be_erased(keys: KeyFolder, clock: Calendar) -> None:
    text = await sealed(keys, "ada")
    secret_of(keys, "ada").write_bytes(b"?")
    assert keys.forget("ada", "eve", "asked for it")
    assert await opened(another(keys, clock), text) is None


async def test_temporary_copies_of_a_killed_process_are_deleted_with_their_secret(
    keys: KeyFolder, clock: Calendar
) -> None:
    await sealed(keys, "ada")
    secret, (key,) = secret_of(keys, "ada"), keys.folder.glob("*.key")
    copies = [path.with_name(f".{path.name}.0123456789abcdef") for path in (secret, key)]
    for path, copy in zip((secret, key), copies, strict=True):
        copy.write_bytes(path.read_bytes())
    keys.forget("ada", "eve", "asked for it")
    assert not copies[0].exists()
    keys.rewrap("ada", "a new year")
    assert not copies[1].exists()


# ---------------------------------------------------------------- secrets that are lost


async def test_a_lost_secret_is_reported_and_not_replaced(keys: KeyFolder, clock: Calendar) -> None:
    text = await sealed(keys, "ada")
    backup = secret_of(keys, "ada").read_bytes()
    shutil.rmtree(secret_of(keys, "ada").parent)
    for _ in range(2):
        with pytest.raises(KeyMissing, match="restore what it lacks"):
            await another(keys, clock).get_or_create_key("ada")
    (trouble,) = keys.summarize().troubles
    assert secret_of(keys, "ada").name in trouble
    secret_of(keys, "ada").parent.mkdir()
    secret_of(keys, "ada").write_bytes(backup)
    assert await sealed(another(keys, clock), "ada") == text
    assert keys.summarize().troubles == []


async def test_a_lost_erasure_mark_is_reported_and_a_lost_secret_can_be_erased(
    keys: KeyFolder, clock: Calendar
) -> None:
    await sealed(keys, "ada")
    keys.forget("ada", "eve", "asked for it")
    secret_of(keys, "ada").unlink()
    with pytest.raises(KeyMissing):
        await another(keys, clock).get_or_create_key("ada")
    assert keys.forget("ada", "eve", "again, for the mark is lost")
    assert await another(keys, clock).get_or_create_key("ada") is None


async def test_rewrap_records_secrets_from_before_names_were_recorded(keys: KeyFolder, clock: Calendar) -> None:
    await sealed(keys, "ada")
    shutil.rmtree(keys.folder / "made")
    assert keys.summarize().troubles == []
    keys.rewrap("ada", "to have their names")
    secret_of(keys, "ada").unlink()
    assert len(keys.summarize().troubles) == 1


async def test_unreadable_names_are_an_outage(keys: KeyFolder) -> None:
    (keys.folder / "made").write_bytes(b"")
    for ask in (lambda: keys.summarize(), lambda: keys.rewrap("ada", "x"), lambda: keys.forget("ada", "eve", "x")):
        with pytest.raises(KeysUnavailable, match=r"cannot be \w+: Not a directory"):
            ask()
    with pytest.raises(KeysUnavailable, match="cannot be"):
        await keys.get_or_create_key("ada")


async def test_the_audit_log_records_who_did_what_and_why(keys: KeyFolder, clock: Calendar) -> None:
    clock.at_s += 1
    newest = keys.create_wrapping_key("ada", "a new year")
    keys.forget("bob", "eve", "asked for it")
    keys.append_audit_line("reveal", "order-17", "eve", "the bank asks")
    entries = [(line["did"], line["what"], line["who"], line["why"]) for line in another(keys, clock).read_audit_log()]
    assert entries[1:] == [
        ("new", newest, "ada", "a new year"),
        ("forget", subject_key_name("bob"), "eve", "asked for it"),
        ("reveal", "order-17", "eve", "the bank asks"),
    ]
    for damaged in (b"?\n", b'{"who":"\xe1da"}\n'):
        (keys.folder / "book.jsonl").write_bytes(damaged)
        with pytest.raises(KeysUnavailable, match=r"the audit log of .* cannot be read"):
            keys.read_audit_log()


@contextmanager
def full_disk() -> Iterator[None]:
    """Disk that takes half of what is appended, and nothing more."""
    write, taken = os.write, list[int]()

    def half(file: int, content: bytes) -> int:
        if taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken.append(write(file, content[: len(content) // 2]))
        return taken[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", half)
        yield


async def test_a_full_disk_leaves_no_part_of_a_line_in_the_audit_log(keys: KeyFolder) -> None:
    before = keys.read_audit_log()
    with full_disk(), pytest.raises(KeysUnavailable, match=r"audit log of .* cannot be written: No space left"):
        keys.append_audit_line("reveal", "order-17", "eve", "nobody will know")
    assert keys.read_audit_log() == before
    keys.append_audit_line("reveal", "order-17", "eve", "the bank asks")
    assert [line["why"] for line in keys.read_audit_log()[len(before) :]] == ["the bank asks"]


async def test_a_full_disk_leaves_no_name_that_looks_like_a_lost_secret(keys: KeyFolder, clock: Calendar) -> None:
    with full_disk(), pytest.raises(KeysUnavailable, match="cannot be written: No space left"):
        await keys.get_or_create_key("ada")
    name = subject_key_name("ada")
    other = next(subject for n in itertools.count() if subject_key_name(subject := str(n))[:2] == name[:2])
    await sealed(another(keys, clock), other)  # its name is appended to the same file
    assert keys.summarize().troubles == []
    keys.rewrap("ada", "the disk has room again")
    for subject in ("ada", other):
        secret_of(keys, subject).unlink()
    assert len(keys.summarize().troubles) == 2


async def test_the_cache_of_keys_is_bounded(keys: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CACHE_MAX >= 1000
    monkeypatch.setattr("saga.encryption.key_folder.CACHE_MAX", 3)
    texts = [await sealed(keys, f"order-{n}") for n in range(5)]
    assert len(keys._known) == 3
    assert [await opened(keys, text) for text in texts] == ["4242"] * 5
