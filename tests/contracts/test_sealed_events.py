"""Sealing of events in their bytes: which fields, of which versions, and where a sealed text opens."""

import base64
import itertools
import json
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastavro import schemaless_writer

from saga.contracts import codec
from saga.contracts.checks import find_incompatible
from saga.contracts.encryption import (
    decrypt_fields,
    decrypt_value,
    encrypt_fields,
    encrypt_json,
    split_encrypted,
    subject_in_json,
    subject_of_event,
    unencrypted_subject,
)
from saga.contracts.library import binding_of
from saga.contracts.schema import RecordType, without_logical_types
from saga.contracts.sensitive_fields import collect_secrets
from saga.encryption.keys import SubjectKey
from saga.encryption.sensitive_fields import ERASED, DecryptionFailed
from saga.errors import BadInput, KeyMissing
from saga.messages import Event
from tests.contracts.folders import field, generated, schema, write

KEY = SubjectKey("0" * 32, b"s" * 32)
OTHER = SubjectKey("0" * 32, b"t" * 32)
PAYER = {"type": "record", "name": "Payer", "fields": [field("iban", "string", sensitive=True)]}
SAGA = "o-1"
PLACES = ("first", "second", "many[0]", "many[1]", "named['a']", "named['b.iban']", "card", "pin")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module with `Moved`, in which there are sensitive texts in places of all kinds."""
    folder = tmp_path_factory.mktemp("sealed")
    fields = (
        field("first", PAYER),
        field("second", "Payer"),
        field("many", {"type": "array", "items": "Payer"}),
        field("named", {"type": "map", "values": "Payer"}),
        field("card", "string", sensitive=True),
        field("pin", ["null", "bytes"], default=None, sensitive=True),
    )
    write(folder, schema("Moved", *fields))
    return generated(folder, "Moved")


def event_of(moved: Any, texts: dict[str, str]) -> Event:
    payer = {place: moved.Payer(iban=text) for place, text in texts.items()}
    made: Event = moved.Moved(
        order_id=SAGA,
        first=payer["first"],
        second=payer["second"],
        many=(payer["many[0]"], payer["many[1]"]),
        named={"a": payer["named['a']"], "b.iban": payer["named['b.iban']"]},
        card=texts["card"],
        pin=texts["pin"].encode(),
    )
    return made


def test_no_two_sealed_texts_of_an_event_can_change_places(moved: Any) -> None:
    binding = binding_of(moved.Moved)
    value = encrypt_fields(
        codec.encode(event_of(moved, {place: f"text of {place}" for place in PLACES})), binding.version, SAGA, KEY
    )
    assert b"text of" not in value
    shown = codec.decode(decrypt_fields(value, binding.library, SAGA, lambda _: KEY), moved.Moved, binding.library)
    assert shown == event_of(moved, {place: f"text of {place}" for place in PLACES})
    kept: Any = codec.decode(value, moved.Moved, binding.library)
    texts = {
        "first": kept.first.iban,
        "second": kept.second.iban,
        "many[0]": kept.many[0].iban,
        "many[1]": kept.many[1].iban,
        "named['a']": kept.named["a"].iban,
        "named['b.iban']": kept.named["b.iban"].iban,
        "card": kept.card,
        "pin": kept.pin.decode(),
    }
    for one, other in itertools.combinations(PLACES, 2):
        swapped = codec.encode(event_of(moved, {**texts, one: texts[other], other: texts[one]}))
        with pytest.raises(BadInput, match="it was encrypted for another field or saga, or changed since"):
            decrypt_fields(swapped, binding.library, SAGA, lambda _: KEY)


def test_what_was_sealed_with_a_secret_that_is_lost_is_not_taken_for_changed(moved: Any) -> None:
    binding = binding_of(moved.Moved)
    value = encrypt_fields(codec.encode(event_of(moved, dict.fromkeys(PLACES, "text"))), binding.version, SAGA, KEY)
    with pytest.raises(
        KeyMissing, match=r"first\.iban: it was encrypted with another secret of its subject, which was lost"
    ):
        decrypt_fields(value, binding.library, SAGA, lambda _: OTHER)


def test_what_a_release_of_before_has_sealed_is_opened_still(moved: Any) -> None:
    """It was bound to the name of the field alone, and did not tell its secret."""
    binding = binding_of(moved.Moved)
    texts = {}
    for place in PLACES:
        name = place if place in ("card", "pin") else "iban"
        siv = KEY._cipher.encrypt(b"=" + place.encode(), [f"Moved|{name}|{SAGA}".encode()])
        texts[place] = f"sealed:1:{KEY.name}:{base64.urlsafe_b64encode(siv).decode()}"
    value = codec.encode(event_of(moved, texts))
    shown = codec.decode(decrypt_fields(value, binding.library, SAGA, lambda _: KEY), moved.Moved, binding.library)
    assert shown == event_of(moved, {place: place for place in PLACES})
    with pytest.raises(DecryptionFailed):
        KEY.decrypt(texts["card"], f"Moved|card|{SAGA}x")


# ---------------------------------------------------------------- JSON that the contract refuses


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> RecordType:
    """A record with a nested record that has a sensitive field, in places of all kinds, and with harmless fields."""
    folder = tmp_path_factory.mktemp("sent")
    fields = (
        field("payer", PAYER),
        field("many", {"type": "array", "items": "Payer"}),
        field("named", {"type": "map", "values": "Payer"}),
        field("maybe", ["null", "Payer"], default=None),
        field("deep", {"type": "map", "values": {"type": "array", "items": "Payer"}}),
        field("note", "string"),
        field("count", "int"),
    )
    write(folder, schema("Sent", *fields))
    return binding_of(generated(folder, "Sent").Sent).version.record


SECRET = "Main Street 5"
NUMBER = 4242


@pytest.mark.parametrize("secret", [SECRET, NUMBER, [SECRET], {"street": SECRET}, {"iban": {"street": SECRET}}])
def test_no_value_is_left_in_the_clear_where_a_record_with_sensitive_fields_belongs(
    sent: RecordType, secret: object
) -> None:
    places = {
        "payer": secret,
        "many": [secret, secret],
        "named": {"a": secret},
        "maybe": secret,
        "deep": {"a": [secret], "b": secret},
    }
    for value in ({**places, "note": "hello", "count": 7}, dict.fromkeys(places, secret)):
        sealed = encrypt_json(json.dumps(value).encode(), sent, lambda path, plain: KEY.encrypt(plain, path))
        assert sealed is not None
        assert SECRET not in sealed.decode()
        assert str(NUMBER) not in sealed.decode()
        read = json.loads(sealed)
        assert {name: read[name] for name in read if name not in places} == {
            name: value[name] for name in value if name not in places
        }


def test_a_scalar_that_the_contract_refuses_stays_readable_where_nothing_is_sensitive(sent: RecordType) -> None:
    value = json.dumps({"note": 7, "count": "many", "payer": None, "maybe": None}).encode()
    assert encrypt_json(value, sent, lambda path, plain: KEY.encrypt(plain, path)) == value


# ---------------------------------------------------------------- marks of other versions


VERSIONS: tuple[tuple[dict[str, Any], ...], ...] = (
    (field("card", "string", sensitive=True), field("payer", PAYER), field("note", "string", default="")),
    (
        field("card", "string"),
        field("payer", {**PAYER, "fields": [field("iban", "string")]}),
        field("note", "string", default="", sensitive=True),
        field("other", ["null", "Payer"], default=None),
    ),
    (
        field("number", "string", aliases=["card"]),
        field("payer", {**PAYER, "fields": [field("iban", "string")]}),
        field("note", "string", default=""),
        field("other", ["null", "Payer"], default=None),
    ),
)


@pytest.fixture
def placed(tmp_path: Path) -> Any:
    for number, fields in enumerate(VERSIONS, 1):
        more = {} if number < 3 else {"compatible": "backward_transitive"}
        write(tmp_path, schema("Placed", *fields, **more), version=number)
    return tmp_path


@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_any_version_marks_is_hidden_and_sealed_in_all(number: int, placed: Path) -> None:
    module: Any = generated(placed, "Placed" if number == 3 else f"Placed.v{number}")
    cls = module.Placed if number == 3 else getattr(module, f"PlacedV{number}")
    binding, payer = binding_of(cls), next(made for name, made in vars(module).items() if name.startswith("Payer"))
    fields = {"number" if number == 3 else "card": "SECRET-1", "note": "SECRET-3"}
    if number > 1:
        fields["other"] = payer(iban="SECRET-4")
    event = cls(order_id=SAGA, payer=payer(iban="SECRET-2"), **fields)
    assert sorted(collect_secrets(event)) == [f"SECRET-{n}" for n in range(1, 4 + (number > 1))]
    assert "SECRET" not in repr(event)
    value = encrypt_fields(codec.encode(event), binding.version, SAGA, KEY)
    assert b"SECRET" not in value
    assert codec.decode(decrypt_fields(value, binding.library, SAGA, lambda _: KEY), cls, binding.library) == event


def test_every_text_inside_of_a_sensitive_map_of_records_is_a_secret(tmp_path: Path) -> None:
    """A reason is searched for these texts before people see it."""
    named, listed = {"type": "map", "values": PAYER}, {"type": "array", "items": {"type": "map", "values": "Payer"}}
    write(tmp_path, schema("Said", field("named", named, sensitive=True), field("listed", listed, sensitive=True)))
    module: Any = generated(tmp_path, "Said")
    payer = module.Payer
    event = module.Said(order_id=SAGA, named={"ada": payer(iban="CH1")}, listed=({"bob": payer(iban="CH2")},))
    assert collect_secrets(event) == ["ada", "CH1", "bob", "CH2"]


def test_check_names_each_mark_that_a_later_version_lacks(placed: Path) -> None:
    module: Any = generated(placed, "Placed")
    contracts = binding_of(module.Placed).library.contracts.values()
    lacking = [(p.file, p.at) for p in find_incompatible(list(contracts)) if p.rule == "sensitive"]
    assert lacking == [
        ("orders/Placed.v2.avsc", "card"),
        ("orders/Placed.v2.avsc", "payer.iban"),
        ("orders/Placed.v2.avsc", "other.iban"),
        ("orders/Placed.v3.avsc", "number"),
        ("orders/Placed.v3.avsc", "payer.iban"),
        ("orders/Placed.v3.avsc", "note"),
        ("orders/Placed.v3.avsc", "other.iban"),
    ]


@pytest.fixture
def renamed(tmp_path: Path) -> Any:
    """A contract whose sensitive fields, one of them in a nested record, were renamed twice, and marked only at
    first."""
    names = (("ssn", "iban"), ("tax_id", "account"), ("tax", "bank"))
    for number, (outer, inner) in enumerate(names, 1):
        aliases = [] if number == 1 else [[name] for name in names[number - 2]]
        outer_more: dict[str, Any] = {"aliases": aliases[0]} if aliases else {"sensitive": True}
        inner_more: dict[str, Any] = {"aliases": aliases[1]} if aliases else {"sensitive": True}
        holder = {"type": "record", "name": "Holder", "fields": [field(inner, "string", **inner_more)]}
        more = {} if number == 1 else {"compatible": "backward"}
        fields = field(outer, "string", **outer_more), field("holder", holder)
        write(tmp_path, schema("Filed", *fields, **more), version=number)
    return tmp_path


def test_a_mark_survives_two_renames(renamed: Path) -> None:
    filed: Any = generated(renamed, "Filed")
    event = filed.Filed(order_id=SAGA, tax="SECRET-1", holder=filed.Holder(bank="SECRET-2"))
    binding = binding_of(filed.Filed)
    assert sorted(collect_secrets(event)) == ["SECRET-1", "SECRET-2"]
    assert b"SECRET" not in encrypt_fields(codec.encode(event), binding.version, SAGA, KEY)
    lacking = [(p.file, p.at) for p in find_incompatible([binding.contract]) if p.rule == "sensitive"]
    assert lacking == [
        ("orders/Filed.v2.avsc", "tax_id"),
        ("orders/Filed.v2.avsc", "holder.account"),
        ("orders/Filed.v3.avsc", "tax"),
        ("orders/Filed.v3.avsc", "holder.bank"),
    ]


def test_a_mark_reaches_the_first_version_from_the_third(tmp_path: Path) -> None:
    fields: list[tuple[str, dict[str, Any]]] = [
        ("ssn", {}),
        ("tax_id", {"aliases": ["ssn"]}),
        ("tax", {"aliases": ["tax_id"], "sensitive": True}),
    ]
    for number, (name, more) in enumerate(fields, 1):
        compatible = {} if number == 1 else {"compatible": "backward"}
        write(tmp_path, schema("Filed", field(name, "string", **more), **compatible), version=number)
    versions = binding_of(generated(tmp_path, "Filed").Filed).contract.versions
    assert [[each.name for each in version.record.fields if each.sensitive] for version in versions] == [
        ["ssn"],
        ["tax_id"],
        ["tax"],
    ]


def test_a_subject_is_forgotten_however_its_sender_writes_its_uuid(tmp_path: Path) -> None:
    uuid = {"type": "string", "logicalType": "uuid"}
    write(tmp_path, schema("Paid", field("who", uuid), field("card", "string", sensitive=True), subject="who"))
    paid = generated(tmp_path, "Paid").Paid
    binding = binding_of(paid)
    version = binding.version
    who = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
    raw = {"order_id": SAGA, "who": str(who).upper(), "card": "4111"}
    body = BytesIO()
    schemaless_writer(body, without_logical_types(version.schema), raw)
    value = codec.MARKER + version.fingerprint + body.getvalue()
    assert unencrypted_subject(value, version) == subject_in_json(json.dumps(raw).encode(), version) == str(who)
    shown: Any = codec.decode(value, paid, binding.library)
    assert subject_of_event(shown) == str(who)
    assert subject_in_json(b'{"who": "NOBODY"}', version) == "NOBODY", "what is no uuid is kept as it is"


def test_an_event_that_cannot_be_written_again_is_encrypted_as_a_whole(tmp_path: Path) -> None:
    """fastavro reads an int of more than 32 bits in a union, and refuses to write it."""
    count = field("count", ["null", "int"], default=None)
    write(tmp_path, schema("Paid", count, field("card", "string", sensitive=True)))
    binding = binding_of(generated(tmp_path, "Paid").Paid)
    version = binding.version
    wider = {**without_logical_types(version.schema), "fields": [
        field("order_id", "string"), field("count", ["null", "long"]), field("card", "string")
    ]}  # fmt: skip
    body = BytesIO()
    schemaless_writer(body, wider, {"order_id": SAGA, "count": 2**40, "card": "4111"})
    value = codec.MARKER + version.fingerprint + body.getvalue()
    stored = encrypt_fields(value, version, SAGA, KEY, arrived=True)
    assert split_encrypted(stored) is not None
    assert b"4111" not in stored
    assert decrypt_value(stored, "Paid", SAGA, lambda _: KEY) == value
    assert encrypt_fields(value, version, SAGA, None, arrived=True) == ERASED.encode()
    body.seek(0)
    body.truncate()
    card = KEY.encrypt(b"4111", f"Paid|card|{SAGA}")
    schemaless_writer(body, wider, {"order_id": SAGA, "count": 2**40, "card": card})
    with pytest.raises(BadInput, match="its fields cannot be decrypted"):
        decrypt_fields(codec.MARKER + version.fingerprint + body.getvalue(), binding.library, SAGA, lambda _: KEY)


@pytest.mark.parametrize(
    ("before", "card"),
    [("long", 4111), (["null", "long"], 4111), ({"type": "array", "items": "string"}, ["4111"])],
)
def test_an_older_event_with_a_sensitive_value_that_no_text_can_replace_is_encrypted_as_a_whole(
    tmp_path: Path, before: Any, card: object
) -> None:
    """The newest version marks the field and makes it text, and a sender still uses the first one."""
    write(tmp_path, schema("Paid", field("card", before)))
    write(tmp_path, schema("Paid", field("card", "string", sensitive=True), compatible="none"), version=2)
    binding = binding_of(generated(tmp_path, "Paid").Paid)
    version = binding.contract.versions[0]
    body = BytesIO()
    schemaless_writer(body, without_logical_types(version.schema), {"order_id": SAGA, "card": card})
    value = codec.MARKER + version.fingerprint + body.getvalue()
    assert unencrypted_subject(value, version) == SAGA
    stored = encrypt_fields(value, version, SAGA, KEY, arrived=True)
    assert split_encrypted(stored) is not None
    assert decrypt_value(stored, "Paid", SAGA, lambda _: KEY) == value
    assert decrypt_fields(value, binding.library, SAGA, lambda _: KEY) == value
    assert encrypt_fields(value, version, SAGA, None, arrived=True) == ERASED.encode()
