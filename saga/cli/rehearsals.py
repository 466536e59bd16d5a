"""Rehearsals of replays, printed: `saga dead replay --dry-run --code`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from msgspec.structs import asdict as fields_of

from saga.cli.printing import tell, tell_json, tell_trouble
from saga.declarations.values import Declared
from saga.encryption.port import Keys
from saga.errors import SagaError
from saga.messages import Message
from saga.ops.dead_letters import DeadLetterRecord
from saga.ops.operator_commands import CommandRequest
from saga.ops.rehearsal import RehearsalResult, rehearse
from saga.ops.sources import open_stores
from saga.support.clock import Clock


async def tell_rehearsals(  # what the command line says
    declared: Declared,
    letters: Sequence[DeadLetterRecord],
    originals: Mapping[str, Message],
    wish: CommandRequest,
    addresses: Sequence[str],
    clock: Clock,
    keys: Keys | None,
    as_json: bool,
) -> bool:
    """Print what each replay would do; true if none would die again, or cannot be rehearsed."""
    whole = True
    async with open_stores(addresses, clock, (declared.name,)) as sources:
        store = next((source.store for source in sources if source.service == declared.name), None)
        if store is None:
            tell_trouble(f"no store of {declared.name} is found")
            return False
        for letter in letters:
            try:
                done = await rehearse(declared, letter, wish, store, clock, originals.get(letter.id), keys)
            except SagaError as why:
                tell_trouble(f"{letter.saga} cannot be rehearsed: {why}")
                whole = False
                continue
            whole = whole and all(outcome != "dead" for _, outcome, _ in done.did)
            _print(done, as_json)
    return whole


def _print(done: RehearsalResult, as_json: bool) -> None:
    letter = done.letter
    if as_json:
        told = {**asdict(done), "letter": letter.id, "emitted": list(map(fields_of, done.emitted))}
        tell_json({"service": letter.service, "saga": letter.saga, **told})
        return
    tell(f"{letter.service}  {letter.saga}  {letter.handler}")
    tell(*(f"  {handler} would be {outcome}{f': {reason}' if reason else ''}" for handler, outcome, reason in done.did))
    for name in sorted({*done.before, *done.after}):
        before, after = done.before.get(name), done.after.get(name)
        if before != after:
            tell(f"  state    {name}: {_text(before)} -> {_text(after)}")
    for said in done.emitted:
        tell(f"  emits    {said.type} {said.problem if said.fields is None else _text(said.fields)}")
    for document in done.documents:
        tell(f"  changes  {document}")
    if done.stops is not None:
        tell(f"  stops    {done.stops}")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
