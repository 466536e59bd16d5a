"""Contracts between services: Avro schemas in `contracts/`, the classes made of them, and the bytes that travel.

Reading order: `contract` (the values), `library` (finding and looking up), `loading` (files and what is wrong with
them), `codec` (events to bytes and back), `codegen` (classes from schemas).
"""
