"""Contracts between services: Avro schemas in `contracts/`, the classes generated from them, and encoded messages.

Suggested reading order:

- `schema` and `contract`: the value classes for schema types, versions and contracts;
- `schema_parser` and `loading`: read a contracts folder and report all problems in it;
- `library`: finds the folder, looks contracts up, and binds event classes to their versions;
- `conversion`, `json_form` and `codec`: convert events to raw values, to JSON and to bytes, and back;
- `upcasters`: convert events of older versions that schema resolution cannot read as the newer version;
- `foreign_values`: reads messages of external senders, in a registry's wire format or as JSON;
- `sensitive_fields` and `encryption`: redact and encrypt the fields that a contract marks as sensitive;
- `codegen`: generates event classes from schemas;
- `event_classes` and `event_modules`: declare contracts as classes, and compare these with the schemas;
- `drafts` and `examples`: make the schema of a new contract, and an example of an event;
- `compatibility` and `checks`: find the problems that `saga contracts check` and `saga contracts lint` report.
"""
