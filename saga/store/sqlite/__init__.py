"""Store on one SQLite file, and the state files on which it is built. The embedded broker uses state files, too.

State files are written by several processes of one machine. They need Linux or macOS and a local disk, because neither
`flock` nor SQLite's write-ahead log is reliable over a network.

Suggested reading order. The store: `adapter` (addresses and settings), `store` (the port), `documents` (tables, writes,
and triggers that record the changes of watched collections). State files: `errors` (how an owner describes its file,
and what SQLite's errors mean), `connection` (open, recognize and set up), `state_file` (locks, and the file as its
owner uses it), `writer` (group commit), `integrity` (check that the file is still the one that was opened, and save a
rescue copy if it is not).
"""
