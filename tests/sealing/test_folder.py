"""Folder of keys: one secret for each subject, whoever asks first; keys that change while all goes on; erasure."""

import asyncio
import base64
from pathlib import Path

import pytest

from saga.clock import SystemClock
from saga.errors import ConfigurationError, KeyMissing, KeysUnavailable
from saga.sealing.folder import CACHE_MAX, CACHE_S, KeyFolder
from saga.sealing.keys import SubjectKey, name_of_subject
from saga.sealing.text import Unopened, is_sealed, name_in, names_in


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
    keys.new("ada", "the first one")
    return keys


def another(keys: KeyFolder, clock: Calendar) -> KeyFolder:
    """The folder as another process sees it, which has read nothing yet."""
    return KeyFolder(keys.folder, clock)


def secret_of(keys: KeyFolder, subject: str) -> Path:
    name = name_of_subject(subject)
    return keys.folder / "subjects" / name[:2] / f"{name}.json"


async def sealed(keys: KeyFolder, subject: str, text: str = "4242") -> str:
    key = await keys.of_subject(subject)
    assert key is not None
    return key.seal(text.encode(), "here")


async def opened(keys: KeyFolder, text: str) -> str | None:
    key = await keys.named(name_in(text))
    return None if key is None else key.open(text, "here").decode()


async def test_all_who_ask_first_at_once_get_one_key(keys: KeyFolder, clock: Calendar) -> None:
    processes = [another(keys, clock) for _ in range(20)]
    texts = await asyncio.gather(*(sealed(each, "ada") for each in processes))
    assert len(set(texts)) == 1
    assert [path.name for path in secret_of(keys, "ada").parent.iterdir()] == [secret_of(keys, "ada").name]
    assert await sealed(keys, "bob") != texts[0]


@pytest.mark.parametrize("plain", [b"", b"x", b"\0\xff", b"y" * 10_000])
def test_what_is_sealed_opens_as_it_was(plain: bytes) -> None:
    key = SubjectKey("0" * 32, b"s" * 32)
    text = key.seal(plain, "here")
    assert key.open(text, "here") == plain
    assert key.seal(plain, "here") == text
    assert is_sealed(text)
    assert names_in(text.encode()) == {"0" * 32}
    for wrong, place in ((text, "there"), (text[:-6], "here"), (text[:42], "here"), (text + "!", "here")):
        with pytest.raises(Unopened):
            key.open(wrong, place)
    with pytest.raises(Unopened):
        SubjectKey("0" * 32, b"t" * 32).open(text, "here")


async def test_a_newer_key_wraps_new_secrets_and_older_ones_stay_readable(keys: KeyFolder, clock: Calendar) -> None:
    old = await sealed(keys, "ada")
    clock.at_s += 1
    newest = keys.new("ada", "a new year")
    new = await sealed(another(keys, clock), "bob")
    assert newest in secret_of(keys, "bob").read_text()
    assert newest not in secret_of(keys, "ada").read_text()
    for text in (old, new):
        assert await opened(another(keys, clock), text) == "4242"


async def test_when_all_is_wrapped_anew_the_older_key_can_go_and_old_copies_open_nothing(
    keys: KeyFolder, clock: Calendar
) -> None:
    text, (first,) = await sealed(keys, "ada"), keys.folder.glob("*.key")
    copy = secret_of(keys, "ada").read_bytes()
    clock.at_s += 1
    newest = keys.new("ada", "a new year")
    assert keys.rewrap("ada", "a new year") == (1, [first.name])
    assert keys.rewrap("ada", "again") == (0, [first.name])
    first.unlink()
    assert await opened(another(keys, clock), text) == "4242"
    secret_of(keys, "ada").write_bytes(copy)
    with pytest.raises(KeysUnavailable, match=f"the key .*{first.name} cannot be read: No such file or directory"):
        await opened(another(keys, clock), text)
    assert newest > first.name


async def test_who_does_not_see_a_newer_key_yet_waits_and_then_goes_on(keys: KeyFolder, clock: Calendar) -> None:
    clock.at_s += 1
    newest = keys.folder / keys.new("ada", "a new year")
    text = await sealed(keys, "ada")
    hidden = newest.rename(newest.with_suffix(".away"))
    late = another(keys, clock)
    with pytest.raises(KeysUnavailable, match="everyone needs it until saga keys rewrap"):
        await opened(late, text)
    hidden.rename(newest)
    assert await opened(late, text) == "4242"


async def test_an_erasure_is_for_good_and_reaches_each_process_within_the_time_of_its_cache(
    keys: KeyFolder, clock: Calendar
) -> None:
    text = await sealed(keys, "ada")
    running = another(keys, clock)
    assert await opened(running, text) == "4242"
    assert keys.forget("ada", "eve", "asked for it")
    assert await keys.of_subject("ada") is None
    clock.at_s += CACHE_S - 1
    assert await opened(running, text) == "4242"
    clock.at_s += 1
    assert await opened(running, text) is None
    assert await running.of_subject("ada") is None
    assert not keys.forget("ada", "eve", "again")
    assert not keys.forget("nobody", "eve", "to be sure")
    assert await another(keys, clock).of_subject("nobody") is None
    clock.at_s += 1
    keys.new("ada", "a new year")
    assert keys.rewrap("ada", "a new year")[0] == 0
    assert await opened(another(keys, clock), text) is None


async def test_a_secret_that_is_absent_is_no_erasure(keys: KeyFolder, clock: Calendar) -> None:
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
        (b"[]", "is no key of a subject"),
        (b'{"by": "x"}', "is no key of a subject"),
        (b'{"by": "x.key", "wrapped": "AAAA"}', "x.key cannot be read"),
        (b'{"by": "../keys/%b", "wrapped": "AAAA"}', "cannot be opened with"),
        (b'{"by": "%b", "wrapped": "!"}', "cannot be opened with"),
    ],
)
async def test_a_damaged_secret_is_an_outage_with_the_files_name(
    content: bytes, problem: str, keys: KeyFolder, clock: Calendar
) -> None:
    (key,) = keys.folder.glob("*.key")
    text = await sealed(keys, "ada")
    secret_of(keys, "ada").write_bytes(content.replace(b"%b", key.name.encode()))
    with pytest.raises(KeysUnavailable, match=problem) as caught:
        await opened(another(keys, clock), text)
    assert str(keys.folder) in str(caught.value)
    assert await sealed(keys, "bob")


def test_a_folder_with_which_nothing_can_be_sealed_keeps_a_service_from_starting(
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


async def test_without_any_key_nothing_is_made(tmp_path: Path, clock: Calendar) -> None:
    (tmp_path / "keys").mkdir()
    with pytest.raises(KeysUnavailable, match=r"there is no key in .*: make one, saga keys new"):
        await KeyFolder(tmp_path / "keys", clock).of_subject("ada")


def test_a_key_is_never_made_twice_and_no_other_user_may_read_it(keys: KeyFolder) -> None:
    with pytest.raises(KeysUnavailable, match="look at this machine's clock, or ask again"):
        keys.new("ada", "twice")
    (key,) = keys.folder.glob("*.key")
    assert key.stat().st_mode & 0o077 == 0


async def test_who_did_what_and_why_stands_in_the_book(keys: KeyFolder, clock: Calendar) -> None:
    clock.at_s += 1
    newest = keys.new("ada", "a new year")
    keys.forget("bob", "eve", "asked for it")
    keys.note("reveal", "order-17", "eve", "the bank asks")
    said = [(line["did"], line["what"], line["who"], line["why"]) for line in another(keys, clock).book()]
    assert said[1:] == [
        ("new", newest, "ada", "a new year"),
        ("forget", name_of_subject("bob"), "eve", "asked for it"),
        ("reveal", "order-17", "eve", "the bank asks"),
    ]
    (keys.folder / "book.jsonl").write_bytes(b"?\n")
    with pytest.raises(KeysUnavailable, match=r"the book of .* cannot be read"):
        keys.book()


async def test_what_is_kept_in_memory_is_bounded(keys: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CACHE_MAX >= 1000
    monkeypatch.setattr("saga.sealing.folder.CACHE_MAX", 3)
    texts = [await sealed(keys, f"order-{n}") for n in range(5)]
    assert len(keys._known) == 3
    assert [await opened(keys, text) for text in texts] == ["4242"] * 5
