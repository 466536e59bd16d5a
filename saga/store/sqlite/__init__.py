"""Store on one SQLite file, and the state files below it, which the embedded broker uses too.

State files are written by several processes of one machine. They need Linux or macOS and a local disk: neither `flock`
nor SQLite's write-ahead log can be trusted over a network.

Reading order. The store: `adapter` (addresses and settings), `store` (the port), `documents` (tables and writes),
`changes` (triggers that record the changes of watched collections). State files: `errors` (what an owner says of its
file, and what SQLite's failures mean), `connection` (open, recognise, set up), `lock` (whose turn it is to write),
`writer` (group commit), `state_file` (all of it together), `integrity` (whether the file is still the one that was
opened, and a rescue copy when it is not).
"""
