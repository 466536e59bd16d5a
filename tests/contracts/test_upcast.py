"""Events of older versions, read by upcasters; and what older code makes of newer ones."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from saga import Event, upcast
from saga.contracts import codec
from saga.contracts import upcasters as upcasting
from saga.contracts.library import binding_of
from saga.errors import BadInput, NewerVersion, UnknownSchema, UpcasterFailed
from tests.contracts.folders import decimal, field, generated, schema, write
from tests.testing.baskets.events import BasketFilled, BasketFilledV1, BasketPaid, BasketPaidV1, Tender
from tests.testing.baskets.upcasters import filled_from_v1, paid_from_v1

CENTS, EUROS, NOTE = field("cents", "long"), field("euros", decimal()), field("note", "string", default="-")
Make = Callable[[Any], Any]


def read(event: Event, to: type[Event]) -> Any:
    """The event as another class of its contract reads it."""
    return codec.decode(codec.encode(event), to, binding_of(to).library)


def versions(folder: Path, *each: tuple[list[dict[str, Any]], list[int]], mode: str = "backward") -> ModuleType:
    """Classes of all versions of one contract: `Said` is the newest one."""
    for number, (fields, upcasts) in enumerate(each, 1):
        more = {"upcasts": upcasts} if upcasts else {}
        write(folder, schema("Said", *fields, compatible=mode, **more), version=number)
    return generated(folder, "Said", *(f"Said.v{number}" for number in range(1, len(each) + 1)))


def upcaster(event: type[Event], version: int, takes: type[Event], gives: type[Event], make: Make) -> None:
    """Declare an upcaster between classes that are made here."""

    def from_old(old: Any) -> Any:
        return make(old)

    from_old.__annotations__ = {"old": takes, "return": gives}
    upcast(event, version)(from_old)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Make], None]:
    """Plants another function in the upcaster of baskets."""
    key = (BasketFilled, 1)
    known = upcasting._upcasters[key]

    def plant(function: Make) -> None:
        planted = upcasting.Upcaster(
            name=known.name, version=1, function=function, takes=known.takes, gives=known.gives
        )
        others: dict[tuple[type[Event], int], upcasting.Upcaster] = {**upcasting._upcasters, key: planted}
        monkeypatch.setattr(upcasting, "_upcasters", others)

    return plant


# -------------------------------------------------------------------- older ones, read by newer code


def test_an_older_version_is_read_by_its_upcaster_and_its_own_as_it_is() -> None:
    assert read(BasketFilledV1(basket_id="b", amount=980), BasketFilled) == BasketFilled(basket_id="b", amount=9800)
    own = BasketFilled(basket_id="b", amount=980)
    assert read(own, BasketFilled) == own


def test_a_plain_call_tests_an_upcaster() -> None:
    assert filled_from_v1(BasketFilledV1(basket_id="b", amount=1)) == BasketFilled(basket_id="b", amount=10)
    paid = paid_from_v1(BasketPaidV1(basket_id="b", amount=1, receipt="r"))
    assert paid == BasketPaid(basket_id="b", tender=Tender(amount=10), receipt="r")


def test_upcasters_go_version_by_version(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS], []), ([EUROS], [1]), ([EUROS, field("tax", "int")], [1, 2]))
    upcaster(
        made.Said, 1, made.SaidV1, made.SaidV2, lambda old: made.SaidV2(order_id="o", euros=Decimal(old.cents) / 100)
    )
    upcaster(made.Said, 2, made.SaidV2, made.Said, lambda old: made.Said(order_id="o", euros=old.euros, tax=19))
    wanted = made.Said(order_id="o", euros=Decimal("9.80"), tax=19)
    assert read(made.SaidV1(order_id="o", cents=980), made.Said) == wanted
    assert read(made.SaidV2(order_id="o", euros=Decimal("9.80")), made.Said) == wanted


def test_an_upcaster_may_jump(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS], []), ([EUROS], [1]), ([field("tens", "int")], [1, 2]))
    upcaster(made.Said, 2, made.SaidV2, made.Said, lambda old: made.Said(order_id="o", tens=-1))
    upcaster(made.Said, 1, made.SaidV1, made.Said, lambda old: made.Said(order_id="o", tens=old.cents // 1000))
    assert read(made.SaidV1(order_id="o", cents=5000), made.Said).tens == 5
    assert read(made.SaidV2(order_id="o", euros=Decimal(1)), made.Said).tens == -1


def test_from_a_version_between_it_is_read_on_by_resolution(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS], []), ([EUROS], [1]), ([EUROS, NOTE], [1]))
    upcaster(made.Said, 1, made.SaidV1, made.SaidV2, lambda old: made.SaidV2(order_id="o", euros=Decimal("9.8")))
    assert read(made.SaidV1(order_id="o", cents=980), made.Said) == made.Said(
        order_id="o", euros=Decimal("9.80"), note="-"
    )


def test_what_an_upcaster_makes_is_what_a_message_of_that_version_is(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS], []), ([EUROS], [1]))
    upcaster(made.Said, 1, made.SaidV1, made.Said, lambda old: made.Said(order_id="o", euros=Decimal("9.8")))
    assert str(read(made.SaidV1(order_id="o", cents=980), made.Said).euros) == "9.80"


def test_a_newer_version_than_its_class_is_no_matter_of_an_upcaster() -> None:
    with pytest.raises(NewerVersion):
        read(BasketFilled(basket_id="b", amount=9800), BasketFilledV1)


def test_a_class_without_its_upcaster_reads_no_older_version(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS], []), ([EUROS], [1]))
    with pytest.raises(
        BadInput, match=r"of orders/Said\.v1, which orders/Said\.v2 reads by an upcaster, and .* has none"
    ):
        read(made.SaidV1(order_id="o", cents=980), made.Said)
    upcaster(made.Said, 1, made.SaidV1, made.Said, lambda old: made.Said(order_id="o", euros=Decimal(1)))
    assert read(made.SaidV1(order_id="o", cents=980), made.Said).euros == 1


def test_the_ids_of_clients_are_made_of_the_version_that_they_say() -> None:
    old = BasketFilledV1(basket_id="b", amount=980)
    assert codec.content(BasketFilledV1, codec.encode(old)) == b'BasketFilled\n{"amount":980,"basket_id":"b"}'


# -------------------------------------------------------------------- upcasters that fail


def no(old: Any) -> Any:
    raise ValueError("no such basket")


def exits(old: Any) -> Any:
    raise SystemExit("enough")


class _Mute(Exception):
    """Exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("not even this")


def mute(old: Any) -> Any:
    raise _Mute


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no, "ValueError: no such basket"),
        (exits, "SystemExit: enough"),
        (mute, "_Mute: (its text raises RuntimeError)"),
        (lambda old: None, "it returned a NoneType, and is to return a BasketFilled"),
        (lambda old: old, "it returned a BasketFilledV1, and is to return a BasketFilled"),
        (lambda old: BasketFilled(basket_id="x", amount=1), "it changed basket_id, which is the saga id"),
        (
            lambda old: BasketFilled(basket_id="b", amount=2**80),
            "what it returned cannot be written: BasketFilled: amount: must lie between",
        ),
    ],
)
def test_an_upcaster_that_fails_is_reported_by_name_and_version(
    function: Make, why: str, failing: Callable[[Make], None]
) -> None:
    failing(function)
    with pytest.raises(UpcasterFailed) as caught:
        read(BasketFilledV1(basket_id="b", amount=980), BasketFilled)
    name = "tests.testing.baskets.upcasters.filled_from_v1"
    assert str(caught.value).startswith(f"the upcaster {name} failed on a baskets/BasketFilled.v1: {why}")


def full(old: Any) -> Any:
    raise MemoryError


def test_a_process_without_memory_is_no_failure_of_the_upcaster(failing: Callable[[Make], None]) -> None:
    failing(full)
    with pytest.raises(MemoryError):
        read(BasketFilledV1(basket_id="b", amount=980), BasketFilled)


def test_bytes_that_are_none_of_the_older_version_are_no_failure_of_the_upcaster() -> None:
    value = codec.encode(BasketFilledV1(basket_id="b", amount=980))
    with pytest.raises(BadInput, match="its bytes are not those of one") as caught:
        codec.decode(value[:-1], BasketFilled, binding_of(BasketFilled).library)
    assert not isinstance(caught.value, UpcasterFailed)


# -------------------------------------------------------------------- newer ones, read by older code


def test_older_code_reads_a_newer_version_behind_a_step_only_where_the_contract_promises_it(tmp_path: Path) -> None:
    made = versions(tmp_path / "a", ([CENTS], []), ([CENTS, NOTE], [1]), mode="full")
    assert read(made.Said(order_id="o", cents=7), made.SaidV1).cents == 7
    made = versions(tmp_path / "b", ([CENTS], []), ([CENTS, NOTE], [1]), mode="backward_transitive")
    with pytest.raises(NewerVersion, match=r"it is of orders/Said\.v2, and this release of the service, which knows"):
        read(made.Said(order_id="o", cents=7), made.SaidV1)


def test_a_promise_to_the_version_before_is_none_to_those_before_that(tmp_path: Path) -> None:
    second = [CENTS, field("a", "int", default=0)]
    for mode, reads_first in (("forward", False), ("forward_transitive", True)):
        made = versions(tmp_path / mode, ([CENTS], []), (second, [1]), ([CENTS, NOTE], [1, 2]), mode=mode)
        event = made.Said(order_id="o", cents=7)
        assert read(event, made.SaidV2).cents == 7
        if reads_first:
            assert read(event, made.SaidV1).cents == 7
        else:
            with pytest.raises(NewerVersion):
                read(event, made.SaidV1)


def test_older_code_never_takes_the_bytes_of_a_newer_version_for_something_else(tmp_path: Path) -> None:
    made = versions(
        tmp_path, ([field("sum", decimal(12, 2))], []), ([field("sum", decimal(12, 3)), NOTE], [1]), mode="full"
    )
    with pytest.raises(NewerVersion):
        read(made.Said(order_id="o", sum=Decimal("0.001")), made.SaidV1)


def test_a_newer_version_that_cannot_be_resolved_waits_for_a_newer_release_and_damage_does_not(tmp_path: Path) -> None:
    made = versions(tmp_path, ([CENTS, NOTE], []), ([NOTE], []))
    value = codec.encode(made.Said(order_id="o", note="n"))
    with pytest.raises(NewerVersion, match=r"cannot read it: .*cents") as caught:
        codec.decode(value, made.SaidV1, binding_of(made.Said).library)
    assert isinstance(caught.value, UnknownSchema)
    assert caught.value.fingerprint == value[2:10]
    with pytest.raises(BadInput, match=r"partial|not those of one") as damaged:
        codec.decode(value[:-3], made.SaidV1, binding_of(made.Said).library)
    assert not isinstance(damaged.value, NewerVersion)


def test_an_older_version_that_cannot_be_resolved_is_bad_input(tmp_path: Path) -> None:
    made = versions(tmp_path, ([NOTE], []), ([CENTS, NOTE], []))
    with pytest.raises(BadInput) as caught:
        read(made.SaidV1(order_id="o", note="n"), made.Said)
    assert not isinstance(caught.value, UnknownSchema)
