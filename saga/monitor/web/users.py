"""Users of the monitor's page: the file with their names, hashed passwords and roles, and the sessions of signed-in
users."""

import base64
import binascii
import hashlib
import logging
import re
import secrets
import stat
from asyncio import Future, Lock, get_running_loop, to_thread
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from os import fstat
from pathlib import Path
from typing import Literal, get_args

from saga.errors import BadInput, ConfigurationError
from saga.support.clock import Clock

COST, BLOCK, LANES = 1 << 15, 8, 1
"""Parameters of scrypt for new passwords. They make a guess take 32 MB and about a tenth of a second."""
COST_MAX, BLOCK_MAX, LANES_MAX = 1 << 17, 16, 4
"""Largest scrypt parameters accepted from a line of the users file, so that the file cannot make a sign-in use
unlimited memory.
"""
MEMORY_MAX = 1 << 29
PASSWORD_MIN, PASSWORD_MAX = 8, 1024
"""Minimum and maximum length of a password, in characters."""
log = logging.getLogger("saga.monitor")
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
"""File modes that the users file must not have, because they would let others add a user."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
SESSION_S = 8 * 3600.0
"""Maximum length of a session in seconds. After it the user must sign in again."""
SESSIONS_MAX = 1000
SCRIPTS_MAX = 100
"""Maximum number of scripts that are remembered, so that their passwords are not hashed for each request."""
WRONG_S = 1.0
"""Pause in seconds after a wrong password. Until it is over, no other password is checked for this name from this
address. So guesses are limited to one per second, and do not delay other users."""
WAITING_MAX = 10
"""Maximum number of sign-ins that wait for the same name and address. If there are more, the one that has waited
longest is refused."""
COME_AGAIN = "too many people sign in at once: try again in a minute"
NAME_MAX = 64
"""Maximum length of a name, in characters."""
LINES_MAX = 1000
"""Maximum number of pairs of name and address for which sign-ins wait."""


Role = Literal["read", "act"]
"""What a user may do on the page: only read, or read and act."""


@dataclass(frozen=True, slots=True)
class HashedPassword:
    """A hashed password as stored in the users file, with the role of its user."""

    cost: int
    block: int
    lanes: int
    salt: bytes
    digest: bytes
    role: Role = "act"

    def is_of(self, password: str) -> bool:
        """Return whether this is the hash of `password`. The check takes the same time whether or not it is."""
        made = hashlib.scrypt(
            password.encode("utf-8", "backslashreplace"),
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.lanes,
            maxmem=MEMORY_MAX,
            dklen=len(self.digest),
        )
        return secrets.compare_digest(made, self.digest)


def format_user_line(name: str, password: str, role: Role = "act") -> str:
    """Return the line of the users file for a user. Raises `BadInput` if the name or the password is not valid."""
    if NAME.fullmatch(name) is None:
        raise BadInput(f"{name!r} is no valid name: use 1 to 64 letters, digits, and after the first . _ @ + -")
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise BadInput(f"a password has {PASSWORD_MIN} to {PASSWORD_MAX} characters, this one has {len(password)}")
    salt = secrets.token_bytes(16)
    plain = password.encode("utf-8", "backslashreplace")
    digest = hashlib.scrypt(plain, salt=salt, n=COST, r=BLOCK, p=LANES, maxmem=MEMORY_MAX, dklen=32)
    line = f"{name}:scrypt:{COST}:{BLOCK}:{LANES}:{_encode_base64(salt)}:{_encode_base64(digest)}"
    return line if role == "act" else f"{line}:{role}"


def load_users(file: str) -> Mapping[str, HashedPassword]:
    """Return the users in a file, by name; none if no file is configured. Raises `ConfigurationError` with all
    problems."""
    if not file:
        return {}
    try:
        with Path(file).open(encoding="utf-8") as opened:
            mode, text = fstat(opened.fileno()).st_mode, opened.read()
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigurationError(
            "the monitor's users cannot be read:", [f"SAGA_MONITOR_USERS is {file}: {why}"]
        ) from why
    if mode & WRITABLE:
        problem = (
            f"SAGA_MONITOR_USERS is {file}: other users may write to it, and so sign in as any user; chmod go-w {file}"
        )
        raise ConfigurationError("the monitor's users cannot be used:", [problem])
    found: dict[str, HashedPassword] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        hashed = _parse_password(rest)
        if (
            NAME.fullmatch(name) is None or hashed is None
        ):  # the line itself is not shown, because it may contain a password
            problems.append(f"{file}, line {number}: not a user line; `saga monitor password NAME` prints one")
        elif name in found:
            problems.append(f"{file}, line {number}: {name} occurs twice; keep one")
        else:
            found[name] = hashed
    if problems:
        raise ConfigurationError("the monitor's users cannot be read:", problems)
    return found


def _parse_password(text: str) -> HashedPassword | None:
    """Parse the hashed password in a line; `None` if it is malformed."""
    words = text.split(":")
    if len(words) not in (6, 7) or words[0] != "scrypt":
        return None
    role = next((each for each in get_args(Role) if each == (words[6:] or ["act"])[0]), None)
    try:
        cost, block, lanes = (int(word) for word in words[1:4])
        salt, digest = (base64.b64decode(word, validate=True) for word in words[4:6])
    except (ValueError, binascii.Error):
        return None
    is_power = cost > 1 and cost & (cost - 1) == 0
    within = cost <= COST_MAX and 1 <= block <= BLOCK_MAX and 1 <= lanes <= LANES_MAX
    return (
        HashedPassword(cost, block, lanes, salt, digest, role)
        if role is not None and is_power and within and len(salt) >= 8 and len(digest) >= 16
        else None
    )


def _encode_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


NOBODY = HashedPassword(COST, BLOCK, LANES, bytes(16), bytes(32))
"""A hash that matches no password. It is used for unknown names, so that a sign-in takes as long as with a known
name."""


@dataclass(slots=True)
class Session:
    """The session of a signed-in user."""

    user: str
    hashed: HashedPassword
    """Hash of the password at sign-in. The session ends when the file has another hash for the user."""
    form: str
    """Secret that every form of this session must contain."""
    until_s: float
    notice: str = ""
    """Sentence that the next page will show; empty if there is none."""

    @property
    def may_act(self) -> bool:
        """True if the user may not only read, but also send commands to services."""
        return self.hashed.role == "act"


class TooManySignIns(BadInput):
    """Raised if too many sign-ins are waiting."""


class SignInQueue:
    """Queue of the sign-ins for one name and address. They run one after another."""

    def __init__(self) -> None:
        self._waiting: deque[Future[None]] = deque()
        self._is_taken = False

    @property
    def is_there(self) -> bool:
        """True while a sign-in runs or waits."""
        return self._is_taken or bool(self._waiting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until this sign-in may run, and keep others waiting within the block. Raises `TooManySignIns` if too
        many are waiting and this one has waited longest."""
        if self._is_taken:
            mine: Future[None] = get_running_loop().create_future()
            self._waiting.append(mine)
            if len(self._waiting) >= WAITING_MAX:
                self._waiting.popleft().set_exception(TooManySignIns(COME_AGAIN))
            try:
                await mine
            except BaseException:
                if mine in self._waiting:
                    self._waiting.remove(mine)
                elif mine.done() and not mine.cancelled() and mine.exception() is None:  # its turn had already come
                    self._goes_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._goes_on()

    def _goes_on(self) -> None:
        self._is_taken = bool(self._waiting)
        if self._waiting:
            self._waiting.popleft().set_result(None)


class Sessions:
    """The sessions of all users, in the memory of this process, by the secret that is in the browser's cookie."""

    def __init__(self, file: str, clock: Clock) -> None:
        self._file, self._clock = file, clock
        self._sessions: dict[str, Session] = {}
        self._one = Lock()
        """Held while a password is checked, because each check takes much memory."""
        self._lines: dict[tuple[str, str], SignInQueue] = {}
        self._checked: dict[bytes, str] = {}
        """Secret of each script's session, by the digest of the name and password that the script sends with each
        request.
        """
        load_users(file)
        if file and Path(file).stat().st_mode & stat.S_IROTH:
            log.warning("other users may read %s, and guess passwords from it: chmod o-r %s", file, file)

    @property
    def may_begin(self) -> bool:
        """True if users are configured, so that signing in is possible."""
        return bool(self._file)

    async def begin(self, name: str, password: str, address: str = "") -> str | None:
        """Sign in, and return the secret of the new session. Return `None` if the user does not exist or the password
        is wrong.

        Sign-ins for one name from one address wait in a queue of their own. So an attacker who guesses passwords does
        not delay other users.

        Raises:
            TooManySignIns: Too many sign-ins are waiting.
            ConfigurationError: The users file cannot be used any more.
        """
        at = name[:NAME_MAX], address
        line = self._lines.get(at)
        if line is None:
            if len(self._lines) >= LINES_MAX:
                raise TooManySignIns(COME_AGAIN)
            line = self._lines[at] = SignInQueue()
        try:
            async with line.turn():
                hashed = await self._check_password(name, password)
                if hashed is None:
                    await self._clock.sleep(WRONG_S)
                    return None
        finally:
            if not line.is_there:
                self._lines.pop(at, None)
        self._drop_expired()
        secret, until_s = secrets.token_urlsafe(32), self._clock.monotonic_s() + SESSION_S
        self._sessions[secret] = Session(name, hashed, secrets.token_urlsafe(32), until_s)
        return secret

    async def check(self, name: str, password: str, address: str = "") -> bool:
        """Return whether this is a user's name and password. Raises the same errors as `begin`.

        The result is remembered, so that the password need not be hashed for each request.
        """
        digest = hashlib.sha256(f"{name}\0{password}".encode("utf-8", "backslashreplace")).digest()
        if self.get(self._checked.get(digest)) is not None:
            return True
        secret = await self.begin(name, password, address)
        if secret is None:
            return False
        while len(self._checked) >= SCRIPTS_MAX:
            self.end(self._checked.pop(next(iter(self._checked))))
        self._checked[digest] = secret
        return True

    async def _check_password(self, name: str, password: str) -> HashedPassword | None:
        """Return the user's stored password hash if this is the right password, otherwise `None`."""
        hashed, fits = load_users(self._file).get(name), len(password) <= PASSWORD_MAX
        async with self._one:
            right = await to_thread((hashed or NOBODY).is_of, password if fits else "")
        return hashed if fits and right else None

    def _drop_expired(self) -> None:
        """Drop expired sessions, and the oldest ones if there are too many."""
        now_s = self._clock.monotonic_s()
        self._sessions = {secret: each for secret, each in self._sessions.items() if each.until_s > now_s}
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]

    def get(self, secret: str | None) -> Session | None:
        """Return the session with this secret. Return `None` if there is none or it has expired, or if the users file
        no longer has the user with the same password and role."""
        session = self._sessions.get(secret or "")
        if session is None or secret is None:
            return None
        if session.until_s <= self._clock.monotonic_s() or not self._is_unchanged(session):
            self.end(secret)
            return None
        return session

    def _is_unchanged(self, session: Session) -> bool:
        try:
            return load_users(self._file).get(session.user) == session.hashed
        except ConfigurationError:
            return False

    def end(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(secret, None)
