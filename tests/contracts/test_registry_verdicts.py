"""What the checker of a real schema registry says of the table of changes: the same as that of Avro's library."""

import urllib.error

from tests.contracts.changes import ALIAS, CHANGES
from tests.contracts.folders import schema
from tests.contracts.test_other_checkers import reads
from tests.servers.registry import RegistryServer

INVALID = ["a field takes the alias of one that was beside it", "the same, behind it"]
"""Changes whose new version it holds to be no valid schema: two fields of the old one would be one."""


def test_the_registrys_checker_agrees_or_the_table_says_why_not(schema_registry: RegistryServer) -> None:
    invalid = []
    for number, change in enumerate(CHANGES):
        subject, old, new = f"verdicts-{number}", schema("Said", *change.old), schema("Said", *change.new)
        schema_registry.register(subject, old)
        try:
            theirs = [schema_registry.is_compatible(subject, new, mode) for mode in ("BACKWARD", "FORWARD")]
        except urllib.error.HTTPError as why:
            invalid.append((change.what, b"invalid Avro schema" in why.read()))
            continue
        ours = [verdict in ("fine", "default") for verdict in (change.backward, change.forward)]
        assert theirs == [reads(old, new), reads(new, old)], change.what
        assert (theirs != ours) is bool(change.avro), change.what
    assert invalid == [(what, True) for what in INVALID]
    assert all(change.avro == ALIAS for change in CHANGES if change.what in INVALID)
