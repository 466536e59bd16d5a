"""State files: SQLite files that processes of one machine write together, below SQLite store and embedded broker.

Linux and macOS, local disks: neither `flock` nor SQLite's write-ahead log can be trusted over a network.

Reading order: `purpose` (what an owner says of its file), `opening` (made, recognised, set up), `lock` (whose turn it
is to write), `writer` (group commit), `file` (what all go through), `errors` (what SQLite's failures mean), `blobs`
(bytes as they are bound), `guard` and `tampering` (whether the file is still the one that was opened, and what is saved
when it is not).
"""
