"""Manifests of choreographies in a short notation, for pictures of domains other than the example's.

A line is an event or a reaction:

    event BookingRequested starts
    event BookingConfirmed success
    flight.reserve: BookingRequested -> SeatReserved | SeatRefused
    trip.confirm: SeatReserved + RoomReserved -> BookingConfirmed
    trip.expire after 900 unless SeatReserved: BookingRequested -> BookingFailed
    trip.remind: BookingRequested + GuestAnswered? -> GuestReminded
    flight.release undoes reserve: BookingFailed -> SeatReleased
"""

import re
from typing import Literal

from saga.choreography.manifest import ConsumedContract, DeclaredReaction, EmittedContract, Manifest
from saga.declarations.values import ReactionKind

_LINE = re.compile(
    r"(?P<service>[\w-]+)\.(?P<name>\w+)(?: after (?P<after>\d+))?(?: unless (?P<unless>\w+))?"
    r"(?: undoes (?P<undoes>\w+))?: (?P<takes>[^>]+?)(?: -> (?P<emits>.+))?"
)


def parse_choreography(text: str) -> dict[str, Manifest]:
    """Manifests by service."""
    outcomes: dict[str, Literal["success", "failure"]] = {}
    starts, external = set[str](), set[str]()
    reactions: dict[str, list[DeclaredReaction]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("event "):
            _, name, *words = line.split()
            if "success" in words:
                outcomes[name] = "success"
            if "failure" in words:
                outcomes[name] = "failure"
            starts |= {name} if "starts" in words else set()
            external |= {name} if "external" in words else set()
            continue
        found = _LINE.fullmatch(line)
        assert found is not None, line
        reactions.setdefault(found["service"], []).append(_reaction(found))

    def described(name: str) -> EmittedContract:
        return EmittedContract(
            contract=name,
            version=1,
            topic="events",
            key="id",
            outcome=outcomes.get(name),
            starts=name in starts,
            produced_externally=name in starts,
            consumed_externally=name in external,
        )

    def consumed(name: str) -> ConsumedContract:
        each = described(name)
        return ConsumedContract(
            contract=name,
            version=1,
            topic="events",
            key="id",
            outcome=each.outcome,
            starts=each.starts,
            produced_externally=each.produced_externally,
            consumed_externally=each.consumed_externally,
            fields="all",
        )

    return {
        service: Manifest(
            format=1,
            service=service,
            kind="id",
            retention_s=86_400,
            consumes=tuple(map(consumed, sorted({name for each in own for name in each.hears}))),
            emits=tuple(map(described, sorted({name for each in own for name in each.emits}))),
            reactions=tuple(own),
        )
        for service, own in reactions.items()
    }


def _reaction(found: re.Match[str]) -> DeclaredReaction:
    parts = found["takes"].split(" + ")
    kind: ReactionKind = "deadline" if found["after"] else "compensation" if found["undoes"] else "handler"
    return DeclaredReaction(
        name=found["name"],
        kind=kind,
        ids=f"{found['service']}|{found['name']}",
        takes=tuple(tuple(part.split(" | ")) for part in parts if not part.endswith("?")),
        optional=tuple(part.removesuffix("?") for part in parts if part.endswith("?")),
        within_s=float(found["after"]) if found["after"] else None,
        unless=(found["unless"],) if found["unless"] else (),
        undoes=found["undoes"],
        emits=tuple(found["emits"].split(" | ")) if found["emits"] else (),
    )


def generate_choreography(services: int, events: int) -> dict[str, Manifest]:
    """Manifests of a large choreography in the usual style: a process in stages, each with several services that work
    beside each other, that may refuse, and that undo their work."""
    names = [f"{_AREAS[n % len(_AREAS)]}-{_WORKS[n // len(_AREAS) % len(_WORKS)]}" for n in range(services - 1)]
    lines = ["event CaseOpened starts", "event CaseCompleted success", "event CaseFailed failure"]
    done = [f"{_camel(name)}Done" for name in names]
    count = 3
    before = ["CaseOpened"]
    extra = max(0, (events - 3 - 3 * len(names)))
    for at, name in enumerate(names):
        word = _camel(name)
        needs = before if at % 5 else done[max(0, at - 5) : at][-2:] or before
        lines.append(f"{name}.begin: {' + '.join(needs)} -> {word}Done | {word}Refused")
        lines.append(f"{name}.take_back undoes begin: CaseFailed -> {word}TakenBack")
        lines.append(f"event {word}TakenBack external")
        count += 3
        if at % 5 == 0:
            before = [done[at]]
        for more in range(extra // len(names) + (at < extra % len(names))):
            source = f"{word}Checked{more}" if more else f"{word}Done"
            checks = f"{names[(at + 1 + more) % len(names)]}.check_{name.replace('-', '_')}_{more}"
            lines.append(f"{checks}: {source} -> {word}Checked{more + 1}")
            count += 1
    lines.append(f"case.complete: {' + '.join(done[-3:])} -> CaseCompleted")
    lines.append(f"case.fail: {' | '.join(f'{_camel(name)}Refused' for name in names)} -> CaseFailed")
    lines.append("case.expire after 172800 unless CaseCompleted: CaseOpened -> CaseFailed")
    assert count == events, (count, events)
    return parse_choreography("\n".join(lines))


_AREAS = ("credit", "fraud", "claims", "billing", "stock")
_WORKS = ("screening", "booking", "approval", "archive", "notification")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("-"))


TRAVEL = parse_choreography(
    """
    event TripRequested starts
    event TripBooked success external
    event TripAbandoned failure external
    event FlightReleased external
    event HotelReleased external
    event CarReturned external
    event DepositRefunded external
    event ItinerarySent external
    flight.reserve: TripRequested -> FlightReserved | FlightSoldOut
    flight.release undoes reserve: TripAbandoned -> FlightReleased
    hotel.reserve: TripRequested -> HotelReserved | HotelSoldOut
    hotel.release undoes reserve: TripAbandoned -> HotelReleased
    car-rental.reserve: FlightReserved + HotelReserved -> CarReserved | CarUnavailable
    car-rental.give_back undoes reserve: TripAbandoned -> CarReturned
    payment.charge_deposit: CarReserved | CarUnavailable -> DepositCharged | DepositRefused
    payment.refund undoes charge_deposit: TripAbandoned -> DepositRefunded
    trip.book: DepositCharged -> TripBooked
    trip.abandon: FlightSoldOut | HotelSoldOut | DepositRefused -> TripAbandoned
    trip.give_up after 7200 unless DepositCharged: TripRequested -> TripAbandoned
    traveller.send_itinerary: TripBooked -> ItinerarySent
    """
)
LOAN = parse_choreography(
    """
    event LoanApplied starts
    event LoanPaidOut success external
    event LoanDenied failure external
    event ApplicantNotified external
    event CollateralReleased external
    event ContractVoided external
    scoring.assess: LoanApplied -> ScoreComputed | ScoreTooLow
    identity.verify: LoanApplied -> IdentityVerified | IdentityDoubtful
    collateral.appraise_property: LoanApplied -> CollateralPledged | CollateralInsufficient
    collateral.release_pledge undoes appraise_property: LoanDenied -> CollateralReleased
    underwriting.decide: ScoreComputed + IdentityVerified + CollateralPledged -> LoanApproved | LoanReferred
    underwriting.ask_again after 604800 unless ReviewFinished: LoanReferred -> ReviewOverdue
    back-office.review: LoanReferred -> ReviewFinished
    underwriting.conclude: ReviewFinished -> LoanApproved | LoanRejected
    contracts.draft: LoanApproved -> ContractSigned | ContractDeclined
    contracts.void undoes draft: LoanDenied -> ContractVoided
    treasury.pay_out: ContractSigned -> LoanPaidOut
    loan.deny: ScoreTooLow | IdentityDoubtful | CollateralInsufficient | LoanRejected | ContractDeclined -> LoanDenied
    loan.lapse after 2592000: LoanApplied -> LoanDenied
    loan.escalate: ReviewOverdue
    letters.notify: LoanPaidOut | LoanDenied -> ApplicantNotified
    """
)
PARCEL = parse_choreography(
    """
    event ParcelHandedIn starts
    event ParcelDelivered success external
    event ParcelLost failure external
    event SenderInformed external
    event PostageRefunded external
    depot.sort: ParcelHandedIn -> ParcelSorted
    postage.collect: ParcelHandedIn -> PostageCollected | PostageMissing
    postage.refund undoes collect: ParcelLost -> PostageRefunded
    routing.plan: ParcelSorted + PostageCollected -> RoutePlanned
    truck.load: RoutePlanned -> ParcelLoaded
    truck.report: ParcelLoaded -> ParcelArrived
    courier.deliver: ParcelArrived -> DeliveryTried | ParcelDelivered
    courier.try_again after 86400: DeliveryTried -> ParcelDelivered | DeliveryGivenUp
    claims.declare_lost: PostageMissing | DeliveryGivenUp -> ParcelLost
    claims.search after 259200 unless ParcelArrived: ParcelLoaded -> ParcelLost
    sender.inform: ParcelDelivered | ParcelLost -> SenderInformed
    """
)
DOMAINS = {"travel": TRAVEL, "loan": LOAN, "parcel": PARCEL}
