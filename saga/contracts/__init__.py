"""Contracts between services: Avro schemas in `contracts/`, the classes generated from them, and encoded messages.

Reading order: `schema` and `contract` (the values), `loading` and `schema_parser` (files and what is wrong with them),
`library` (looking up contracts), `codec` (events to bytes and back; `conversion` does the fields), `codegen` (classes
from schemas), `compatibility` and `checks` (what `saga contracts check` and `lint` report).
"""
