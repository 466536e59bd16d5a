"""Settings of a process, from a file, the environment or flags. They are read once, checked together, and passed on as
values."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeVar

import msgspec

from saga.broker.port import RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT, RECORD_BYTES_MAX
from saga.configuration import adapters
from saga.errors import ConfigurationError
from saga.messages import Topic
from saga.messaging.transition_events import TOPIC
from saga.policies.concurrency import INFLIGHT_MIN
from saga.registry import port as registry_settings
from saga.registry.port import RegistryOptions
from saga.support import settings as readers
from saga.support.addresses import (
    check_connect,
    check_docs,
    check_hook,
    check_hosts,
    check_http,
    is_plain,
    scheme_of,
)
from saga.support.settings import OPEN_S_MAX, Options, Problem, SettingReader

T = TypeVar("T")

FILE = "SAGA_CONFIG"
OTHERS: Mapping[str, str] = {
    "SAGA_CONTRACTS": "Folder of the contracts; without it the nearest `contracts/` above a module.",
    "SAGA_SCHEMA_BASE": "Beginning of the URI of each schema in published messages, as "
    "`https://example.org/schemas/`; without it `urn:saga:`.",
    "SAGA_SERVERS": "With `required`, tests that need servers fail where there are none; otherwise they are skipped.",
    FILE: "A TOML file with settings, a line each: `drain_s = 30`.",
}
"""Environment variables that are read elsewhere and are not settings. A settings file must not contain them."""
TEST_PREFIX = "SAGA_TEST_"
"""Prefix of variables that belong to tests."""


LINK = re.compile(r"SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?")
"""Endings of the variables that Kubernetes sets for a Service in every pod of its namespace."""

HIDDEN = " (the value is not shown: it may contain a secret)"


class GivenSetting(NamedTuple):
    """The text of a setting, and the place where it was found."""

    text: str
    source: str
    """Name of the place, for error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a process. Each can be set by its environment variable or by a line of the settings file, and some by
    a flag. The defaults need no server.

    `docs/reference/settings.md` is generated from the descriptions below and in `saga.configuration.adapters`, and from
    the readers in `known_settings`.
    """

    broker: str = "embedded:///.saga/broker.db"
    """Address of the log: one file, or the bootstrap servers of Kafka."""
    store: str = "sqlite:///.saga/{service}.db"
    """Address of a service's documents; `{service}` becomes its name."""
    keys: str = ""
    """Folder of the keys of sensitive fields, which all services and clients share. Without it nothing is
    encrypted."""
    http: str = ""
    """Address at which each process answers `/health/live`, `/health/ready` and `/metrics`. Without it nothing
    listens."""
    monitor: str = ""
    """Address of the monitor. `saga monitor run` listens there, by default at 127.0.0.1:8642. `saga monitor trace`,
    `saga monitor stuck` and `saga monitor rates` ask it there; without the setting they read the topic
    `saga.transitions` themselves."""
    inflight_max: int = 1000
    """Maximum number of messages in flight per worker. At most a quarter of them are from one partition."""
    inflight_min: int = INFLIGHT_MIN
    """Lower bound to which a slow store may reduce the messages in flight. If it is equal to SAGA_INFLIGHT_MAX, nothing
    is reduced. If SAGA_INFLIGHT_MAX is smaller than this default, it is also the lower bound."""
    inflight_bytes_max: int = 64 << 20
    """Total size of the messages in flight at which a worker takes no more messages, in bytes."""
    changes_from: Literal["beginning", "now"] = "beginning"
    """Which changes of documents a service gets first. With `beginning`, documents that already exist are reported as
    new ones; with `now` they are not. With Couchbase, set this in the connector's configuration instead."""
    connect: str = ""
    """Address of the Kafka Connect that publishes changes of documents in Couchbase. `saga doctor` uses it."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """Maximum size of a record in the log, with headers and key, in bytes. Services and clients refuse a larger event
    before anything is written. On Kafka each topic must accept records of this size (`max.message.bytes`)."""
    cache_max: int = 2000
    """Progress documents kept in memory per service."""
    deaths_max: int = 3
    """After this many deaths of a process that was handling a message, the message becomes a dead letter. At the first
    death the process may have been handling other messages, too."""
    open_s: float = OPEN_S_MAX
    """How long a process waits at its start for the broker, the stores and the resources to open, in seconds without
    any progress. Time in which the process could not run does not count."""
    drain_s: float = 20.0
    """Seconds that running handlers have to finish when the service stops."""
    hook: str = ""
    """URL to call, or command to run, once for each dead letter that blocks a saga and for each escalation. Without it
    nothing is called."""
    hook_secret_file: str = ""
    """File with the key for signing calls of the hook. Without it calls are not signed."""
    hook_calls_max: int = 20
    """Maximum number of calls of the hook within a minute; others wait."""
    monitor_users: str = ""
    """File with the users who may sign in to the monitor's page. Each line is the output of `saga monitor password` for
    one user. Without it the page is read-only."""
    monitor_read: Literal["all", "login"] = "all"
    """Who may read the monitor's page, its JSON and its metrics. With `all`, everyone who can reach it; with `login`,
    only the monitor's users."""
    monitor_hosts: str = ""
    """Host names under which the monitor's page is reached, separated by commas; its address and `localhost` always
    work. Others are refused."""
    docs: str = ""
    """Address under which the pages of this documentation are published, to which findings, errors and the monitor's
    page link. `{page}` stands for the path of a page, such as `runbooks/nobody-works`:
    `https://docs.example/{page}.html`, or `https://git.example/saga/blob/main/docs/{page}.md`. Without it the name of
    the file in the source of saga is shown."""
    transitions: Literal["on", "off"] = "on"
    """Whether each transition is published, without its payload, on the topic `saga.transitions`, for monitors and
    `saga sagas verify`."""
    transitions_days: float = 7
    """Days for which transition events are kept on the topic `saga.transitions`."""
    log: Literal["auto", "json", "text"] = "auto"
    """Form of the lines that `saga run` writes; `auto` is `text` on a terminal, else `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of the lines that are written."""
    traces: Literal["off", "on"] = "off"
    """Traces for OpenTelemetry, over OTLP on HTTP; its own variables (`OTEL_...`) set the address and the sampling."""
    options: tuple[object, ...] = ()
    """Settings that belong to a single adapter or to the schema registry: one object of each such class, but only if at
    least one of its settings differs from the default."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """Create settings from environment variables. A setting whose variable is absent or blank has its default.

        Raises `ConfigurationError` with all problems of single settings and of their combinations. An unknown name that
        begins with `SAGA_` is a problem, too, because otherwise a misspelt name would go unnoticed. Variables that
        Kubernetes sets in pods for a Service whose name begins with `saga` are ignored.
        """
        return cls._of(_in_variables(environ))

    @classmethod
    def from_environment(cls, **flags: str | None) -> Self:
        """Create settings from the file that SAGA_CONFIG names, from the variables of this process, and from `flags` by
        name. A later source overrides an earlier one; blank values do not count. Raises `ConfigurationError`."""
        given = {f"SAGA_{name.upper()}": GivenSetting(text or "", f"the {name} given") for name, text in flags.items()}
        in_file, troubles = _in_file(os.environ.get(FILE, "").strip())
        return cls._of({**in_file, **_in_variables(os.environ), **_without_blanks(given)}, troubles)

    @classmethod
    def _of(cls, given: Mapping[str, GivenSetting], troubles: Sequence[str] = ()) -> Self:
        """Check the values, and create the settings. Raises `ConfigurationError`.

        Args:
            troubles: Problems of the settings file. If there are any, its content is not fully known, so combinations
                are not checked.
        """
        values: dict[str, object] = {}
        wrong: dict[str, object] = {}
        kinds = known_settings()
        problems = list(troubles)
        for name, (text, source) in sorted(given.items()):
            kind, field_ = kinds.get(name), name.removeprefix("SAGA_").lower()
            if kind is None:
                problems.append(_report_unknown(name, source))
                continue
            try:
                values[field_] = kind.read(text)
            except ValueError as why:
                problems.append(f"{source} is {text!r}: {why}" if kind.may_show(text) else f"{source}: {why}{HIDDEN}")
                wrong[field_] = f"{scheme_of(text)}://"  # the intended adapter is known even if the address is wrong
        meant = {name: address for name, address in wrong.items() if name in ("broker", "store")}
        together = () if troubles else cls._make({**values, **meant})._problems_together()
        problems += [text for fields, text in together if not fields & wrong.keys()]
        if problems:
            raise ConfigurationError("The settings cannot work", problems)
        return cls._make(values)

    @classmethod
    def _make(cls, values: Mapping[str, object]) -> Self:
        """Create the settings from values by field."""

        def read(kind: type[T]) -> T:
            mine = {name: value for name, value in values.items() if name in kind.__annotations__}
            return msgspec.convert(mine, kind)

        made: list[object] = [read(options.kind) for options in all_options()]
        return replace(read(cls), options=tuple(each for each in made if each != type(each)()))

    def of(self, kind: type[T]) -> T:
        """Return the object in `options` of this class, or one with the defaults."""
        return next((each for each in self.options if isinstance(each, kind)), None) or kind()

    @property
    def transition_topic(self) -> Topic | None:
        """Return the topic on which transition events are published; `None` if they are not published."""
        return TOPIC._replace(retention_days=self.transitions_days) if self.transitions == "on" else None

    def _problems_together(self) -> Iterator[Problem]:
        """Yield problems of combinations of settings, each of which is valid alone."""
        if (
            self.inflight_min > self.inflight_max and self.inflight_min != INFLIGHT_MIN
        ):  # a maximum below the default minimum is valid even if the minimum is not set
            yield (
                frozenset({"inflight_min", "inflight_max"}),
                f"SAGA_INFLIGHT_MIN={self.inflight_min} is more than SAGA_INFLIGHT_MAX={self.inflight_max}: make it "
                "less, or the same to have as many in flight however slow the store is",
            )
        if self.hook_secret_file and not self.hook:
            yield (
                frozenset({"hook", "hook_secret_file"}),
                "SAGA_HOOK_SECRET_FILE is given without SAGA_HOOK, so nothing would be called: give both",
            )
        yield from adapters.problems(self)
        yield from registry_settings.problems(self.of(RegistryOptions))


def environment_without(name: str) -> dict[str, str]:
    """Return the variables of this process without the setting `name`, for other processes of the toolkit.

    The setting may be in the settings file. Then the file's other settings become variables, too, because a blank
    variable does not override the file. Raises `ConfigurationError`.
    """
    environment = dict(os.environ)
    in_file, troubles = _in_file(environment.get(FILE, "").strip())
    if troubles:
        raise ConfigurationError("The settings cannot work", troubles)
    if name in in_file:
        del environment[FILE]
        environment |= {each: given.text for each, given in {**in_file, **_in_variables(os.environ)}.items()}
    environment.pop(name, None)
    return environment


def address_given(name: Literal["broker", "store"], flag: str | None) -> str:
    """Return an address from the settings, for a caller that does not connect. So settings that only a connection
    needs, such as a password, may be missing. Raises `ConfigurationError`."""
    return str(_given_alone(name, flag))


def transition_topic_given() -> Topic | None:
    """Return the topic of the transition events from the settings. Other settings may be missing, as for
    `address_given`."""
    values = {name: _given_alone(name, None) for name in ("transitions", "transitions_days")}
    return msgspec.convert(values, Settings).transition_topic


def _given_alone(name: str, flag: str | None) -> object:
    """Return the value of a single setting, even if other settings are invalid. Raises `ConfigurationError`."""
    variable = f"SAGA_{name.upper()}"
    in_file, troubles = _in_file(os.environ.get(FILE, "").strip())
    by_flag = _without_blanks({variable: GivenSetting(flag or "", f"the {name} given")})
    given = {**in_file, **_in_variables(os.environ), **by_flag}.get(variable)
    if given is None:
        if troubles:
            raise ConfigurationError("The settings cannot work", troubles)
        return getattr(Settings(), name)
    reader = known_settings()[variable]
    try:
        return reader.read(given.text)
    except ValueError as why:
        shown = f" is {given.text!r}: {why}" if reader.may_show(given.text) else f": {why}{HIDDEN}"
        raise ConfigurationError("The settings cannot work", [f"{given.source}{shown}"]) from None


def _without_blanks(given: Mapping[str, GivenSetting]) -> dict[str, GivenSetting]:
    """Drop blank values, so that an unset variable of a compose file or a shell does not override anything."""
    return {name: GivenSetting(text.strip(), source) for name, (text, source) in given.items() if text.strip()}


def _in_variables(environ: Mapping[str, str]) -> dict[str, GivenSetting]:
    """Return the settings in the environment, including unknown names that look like settings."""
    linked = tuple(
        name.removesuffix("SERVICE_HOST")
        for name in environ
        if name.startswith("SAGA_") and name.endswith("_SERVICE_HOST") and f"{name[:-4]}PORT" in environ
    )
    return _without_blanks(
        {
            name: GivenSetting(text, name)
            for name, text in environ.items()
            if name.startswith("SAGA_") and name not in OTHERS and not name.startswith(TEST_PREFIX)
            if not any(name.startswith(of) and LINK.fullmatch(name.removeprefix(of)) for of in linked)
        }
    )


def _in_file(path: str) -> tuple[dict[str, GivenSetting], list[str]]:
    """Return the settings in a TOML file with lines such as `broker = "kafka://host:9092"`, and the problems of the
    file itself."""
    if not path:
        return {}, []
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as why:
        return {}, [f"{FILE} is {path!r}: {why}"]
    nested = [name for name, value in given.items() if isinstance(value, dict | list)]
    return (
        _without_blanks(
            {
                f"SAGA_{name.upper()}": GivenSetting(str(value), f"{name} in {path}")
                for name, value in given.items()
                if name not in nested
            }
        ),
        [f"{path}: {name} is no single value; a setting is a line as in: drain_s = 30" for name in nested],
    )


READERS: Mapping[str, SettingReader] = {
    "SAGA_KEYS": readers.FOLDER,
    "SAGA_HTTP": readers.address(check_http, "HOST:PORT"),
    "SAGA_MONITOR": readers.address(check_http, "HOST:PORT"),
    "SAGA_INFLIGHT_MAX": readers.number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_MIN": readers.number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_BYTES_MAX": readers.number(int, 1, 1 << 40, "bytes"),
    "SAGA_CONNECT": readers.checked(check_connect, "http://HOST:PORT", is_plain),
    "SAGA_CHANGES_FROM": readers.word("beginning", "now"),
    "SAGA_RECORD_BYTES_MAX": readers.number(int, RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT, "bytes"),
    "SAGA_CACHE_MAX": readers.number(int, 0, 10_000_000, "documents"),
    "SAGA_DEATHS_MAX": readers.number(int, 2, 1000, "deaths"),
    "SAGA_OPEN_S": readers.number(float, 1, 3600, "seconds"),
    "SAGA_DRAIN_S": readers.number(float, 0, 3600, "seconds"),
    "SAGA_HOOK": readers.checked(
        check_hook, "https://HOST/PATH, http://HOST/PATH or command:PATH ARGUMENTS", lambda _: False
    ),
    "SAGA_HOOK_SECRET_FILE": readers.SECRET_FILE,
    "SAGA_HOOK_CALLS_MAX": readers.number(int, 1, 10_000, "calls"),
    "SAGA_MONITOR_USERS": readers.SECRET_FILE,
    "SAGA_MONITOR_HOSTS": readers.checked(
        check_hosts, "names of hosts with commas between them, as in monitor.example", lambda _: True
    ),
    "SAGA_DOCS": readers.checked(check_docs, "https://HOST/{page}.html", lambda _: True),
    "SAGA_MONITOR_READ": readers.word("all", "login"),
    "SAGA_TRANSITIONS": readers.word("on", "off"),
    "SAGA_TRANSITIONS_DAYS": readers.number(float, 1, 36_500, "days"),
    "SAGA_TRACES": readers.word("off", "on"),
    "SAGA_LOG": readers.word("auto", "json", "text"),
    "SAGA_LOG_LEVEL": readers.word("debug", "info", "warning", "error"),
}
"""Readers of the settings that do not depend on adapters, by variable."""


def all_options() -> Iterator[Options]:
    """Yield the groups of settings that belong to a single adapter or to the schema registry."""
    yield from adapters.options()
    yield registry_settings.OPTIONS


def known_settings() -> dict[str, SettingReader]:
    """Return the readers of all settings by variable, in the order in which they are shown."""
    kinds = {
        "SAGA_BROKER": readers.address(
            lambda a: adapters.broker_adapter(a).check(a), " or ".join(each.takes for each in adapters.BROKERS)
        ),
        "SAGA_STORE": readers.address(
            lambda a: adapters.store_adapter(a).check(a), ", ".join(each.takes for each in adapters.STORES)
        ),
    }
    for options in all_options():
        kinds |= options.readers
    kinds |= READERS
    return kinds


def _report_unknown(name: str, source: str) -> str:
    if name in OTHERS:
        return f"{source}: give it as the variable {name}"
    near = difflib.get_close_matches(name, [*known_settings(), *OTHERS], n=1, cutoff=0.7)
    if near:
        return f"{source} is not a setting; did you mean {near[0]}?"
    return f"{source} is not a setting; these are: {', '.join([*known_settings(), *OTHERS])}"
