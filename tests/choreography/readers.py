"""Functions that read orders in every way that the analysis distinguishes, as text: each test imports them beside its
contracts."""

READERS = """
from functools import wraps
from inspect import currentframe
from types import NoneType

from elsewhere import noted_elsewhere
from events import Line, Order, Refused


async def attributes(order: Order) -> object:
    return order.order_id, order.total


async def nested(order: Order) -> object:
    return order.address.street.upper()


async def optional_record(order: Order) -> object:
    return order.billing.city if order.billing is not None else None


async def nested_as_whole(order: Order) -> object:
    return order.address, order.address.street


async def in_lists(order: Order) -> object:
    return [line.sku for line in order.lines]


async def method_of_a_field(order: Order) -> object:
    return order.note.upper()


async def nothing(order: Order) -> object:
    return None


async def only_whether_it_is_there(order: Order | None) -> object:
    if order is None or not order:
        return 1
    return 2 if order else 3


async def alias(order: Order) -> object:
    other = order
    third = other
    return third.note


async def other_name_for_something_else(order: Order) -> object:
    other = order.address
    return other.city


async def inner_function(order: Order) -> object:
    def read_note() -> object:
        return order.note

    return read_note(), (lambda: order.total)()


async def by_literal_name(order: Order) -> object:
    return getattr(order, "note"), getattr(order, "total", None)


async def by_computed_name(order: Order) -> object:
    return getattr(order, "no" + "te")


async def text(order: Order) -> object:
    return f"{order}"


async def text_of_a_field(order: Order) -> object:
    return f"{order.note!r:>20}"


async def equal(order: Order) -> object:
    return order == 7


async def identical(order: Order) -> object:
    return order is currentframe


async def handed_on(order: Order) -> object:
    return repr(order)


async def in_a_tuple(order: Order) -> object:
    return [note.note for note in (order,)]


async def starred(order: Order) -> object:
    try:
        return [*order]
    except TypeError:
        return None


async def walrus(order: Order) -> object:
    return (other := order).note, other.total


async def locals_of_it(order: Order) -> object:
    return locals()["order"].note


async def frame(order: Order) -> object:
    return currentframe().f_locals["order"].note


async def evaluated(order: Order) -> object:
    return eval("order.note")


async def no_field(order: Order) -> object:
    return order.__dataclass_fields__


def noted(order: Order, *, times: int = 1) -> object:
    return order.note


def totalled(times: int, of: Order) -> object:
    return of.total if times else again(of, times)


def again(order: Order, times: int) -> object:
    return order.address.city, totalled(times - 1, order)


async def later_noted(order: Order) -> object:
    return order.note


def any_number(*orders: Order, **named: Order) -> object:
    return [*orders, *named.values()][0].note


def twice(order: Order) -> object:
    return order.note


if order_kind := 2:

    def twice(order: Order) -> object:
        return order.note, order.total


def traced(function):
    @wraps(function)
    def inside(order):
        return order.note, getattr(function(order), "close", int)()

    return inside


def without_metadata(function):
    def inside(order):
        return order.note, getattr(function(order), "close", int)()

    return inside


@without_metadata
def decorated(order: Order) -> object:
    return order.total


def shadowed(order: Order) -> object:
    return order.note


async def helper(order: Order) -> object:
    return noted(order, times=2)


async def helper_by_name(order: Order) -> object:
    return totalled(of=order, times=1)


async def helper_that_calls_itself(order: Order) -> object:
    return again(order, 1)


async def awaited_helper(order: Order) -> object:
    return await later_noted(order)


async def helper_with_another_argument(order: Order) -> object:
    return noted(order, times=len(order.lines))


async def asks_for_keys(saga: object) -> object:
    return saga.idempotency_key("here"), saga.idempotency_key("computed" + "!"), also_asks(saga), noted_elsewhere(saga)


async def uses_the_saga(saga: object, bank: object) -> None:
    saga.on_abort(bank.give_back, saga)
    await takes_a_step(saga, bank)
    await saga.update(Stock, "tea", Stock.set_aside, 2)


async def takes_a_step(saga: object, bank: object) -> None:
    await saga.step(bank.take, saga)


async def uses_it_under_other_names(saga: object, bank: object) -> None:
    context = saga
    await takes_a_step_in(bank, context=context)
    saga.state = (saga.state, saga.elapsed, saga.version)


async def takes_a_step_in(bank: object, context: object) -> None:
    await context.step(bank.take)


async def hands_it_on_under_another_name(saga: object, bank: object) -> None:
    context = saga
    await noted_elsewhere(context, bank)


async def lets_a_helper_hand_it_on(saga: object, bank: object) -> None:
    await hands_on(saga, bank)


async def hands_on(context: object, bank: object) -> None:
    await noted_elsewhere(context, bank)


async def hands_it_on_among_others(saga: object, bank: object) -> None:
    await takes_a_step(*[saga, bank])


async def hands_a_method_on(saga: object, bank: object) -> None:
    await calls(saga.step, bank.take)


async def gives_a_method_a_name(saga: object, bank: object) -> None:
    change = saga.update
    await change(Stock, "tea", Stock.set_aside, 2)


async def calls(function: object, *given: object) -> None:
    await function(*given)


async def puts_it_into_an_object(saga: object, bank: object) -> None:
    bank.saga = saga


def also_asks(saga: object, once_more: bool = True) -> object:
    return saga.idempotency_key("elsewhere in the module") if once_more else also_asks(saga)


def either(one: Order | None, two: Order | None) -> object:
    return one.note if one is not None else two.total


async def helper_with_stars(order: Order) -> object:
    return noted(order, **{"times": 2})


async def helper_under_two_names(order: Order) -> object:
    return either(order, None), either(None, order)


async def helper_elsewhere(order: Order) -> object:
    return noted_elsewhere(order)


async def shadowed_builtin(order: Order) -> object:
    getattr = lambda of, name: of.total  # noqa: E731
    return getattr(order, "note")


async def two_reasons(order: Order) -> object:
    return repr(order), locals()


async def helper_of_any_number(order: Order) -> object:
    return any_number(order)


async def helper_by_stars(order: Order) -> object:
    return noted(*[order])


async def helper_bound_twice(order: Order) -> object:
    return twice(order)


async def decorated_helper(order: Order) -> object:
    return decorated(order)


async def shadowed_helper(order: Order) -> object:
    def shadowed(order: Order) -> object:
        return order.total

    return shadowed(order)


@traced
async def wrapped(order: Order) -> object:
    return order.total


@without_metadata
async def wrapped_without_saying(order: Order) -> object:
    return order.total


async def patterns(order: Order) -> object:
    match order:
        case Order(note="x", total=total):
            return total
        case Order(address=address) if address.city:
            return address
        case _:
            return None


async def pattern_with_a_part(order: Order) -> object:
    match order:
        case Order(note=order.address.city):
            return None


async def pattern_with_a_name(order: Order) -> object:
    match order:
        case Order() as mine:
            return mine.note
        case other:
            return other.total


async def pattern_of_nothing(order: Order | None) -> object:
    match order:
        case None:
            return None
        case _:
            return isinstance(order, NoneType) or order.note


async def patterns_of_something_else(order: Order) -> object:
    match [order.lines]:
        case [[first, *others]]:
            return order.note
        case [{"a": Order, **getattr}]:
            return isinstance(order, Order)
    try:
        import events as Line
    except ValueError as isinstance:
        return isinstance(order, Order)


async def pattern_of_a_value(order: Order) -> object:
    match order:
        case 7:
            return 1
        case _:
            return 2


async def union(why: Order | Refused) -> object:
    return why.order_id, why.note


async def union_by_class(why: Order | Refused) -> object:
    if isinstance(why, Refused):
        return why.reason
    return why.total


async def union_by_pattern(why: Order | Refused) -> object:
    match why:
        case Refused(note=note) | Order(total=note):
            return note


async def something_else_by_class(order: Order) -> object:
    return isinstance(order, (Order, Line))


async def part_of_several(order: Order, refused: Refused) -> object:
    return order.total, refused.reason
"""
"""Module of the functions; `events` is generated beside it."""

ELSEWHERE = """
def noted_elsewhere(order):
    return order.note
"""
"""Another module, from which a function is imported."""

ORDER = {
    "attributes": {"order_id", "total"},
    "nested": {"address.street"},
    "optional_record": {"billing", "billing.city"},
    "nested_as_whole": {"address", "address.street"},
    "in_lists": {"lines"},
    "method_of_a_field": {"note"},
    "nothing": set(),
    "only_whether_it_is_there": set(),
    "alias": {"note"},
    "other_name_for_something_else": {"address"},
    "inner_function": {"note", "total"},
    "by_literal_name": {"note", "total"},
    "by_computed_name": "by_computed_name hands it on whole",
    "text": "text hands it on whole",
    "text_of_a_field": {"note"},
    "equal": "equal hands it on whole",
    "identical": set(),
    "handed_on": "handed_on hands it on whole",
    "in_a_tuple": "in_a_tuple hands it on whole",
    "starred": "starred hands it on whole",
    "walrus": "walrus hands it on whole",
    "locals_of_it": "locals_of_it can see all variables by locals",
    "frame": "frame can see all variables by f_locals",
    "evaluated": "evaluated can see all variables by eval",
    "no_field": "__dataclass_fields__ is read of it, which is no field",
    "helper": {"note"},
    "helper_by_name": {"total", "address.city"},
    "helper_that_calls_itself": {"total", "address.city"},
    "awaited_helper": {"note"},
    "helper_with_another_argument": {"note", "lines"},
    "helper_with_stars": "helper_with_stars hands it on whole",
    "helper_under_two_names": {"note", "total"},
    "helper_elsewhere": "helper_elsewhere hands it on whole",
    "shadowed_builtin": "shadowed_builtin hands it on whole",
    "two_reasons": "two_reasons hands it on whole",
    "helper_of_any_number": "helper_of_any_number hands it on whole",
    "helper_by_stars": "helper_by_stars hands it on whole",
    "helper_bound_twice": "helper_bound_twice hands it on whole",
    "decorated_helper": "inside hands it on whole",
    "shadowed_helper": "shadowed_helper hands it on whole",
    "wrapped": "the source of wrapped is not known",
    "wrapped_without_saying": "inside hands it on whole",
    "patterns": {"note", "total", "address"},
    "pattern_with_a_part": {"note", "address.city"},
    "pattern_with_a_name": {"note", "total"},
    "pattern_of_nothing": {"note"},
    "patterns_of_something_else": "patterns_of_something_else hands it on whole",
    "pattern_of_a_value": "pattern_of_a_value matches all of it",
    "union": {"order_id", "note"},
    "union_by_class": {"total"},
    "union_by_pattern": {"total"},
    "something_else_by_class": "something_else_by_class asks whether it is something else than an event",
    "part_of_several": {"total"},
}
"""Fields that each function reads of an order, or the reason why all count."""
REFUSED = {
    "union": {"order_id", "note"},
    "union_by_class": {"reason"},
    "union_by_pattern": {"note"},
    "part_of_several": {"reason"},
}
"""The same of a refusal, for functions that take one."""
