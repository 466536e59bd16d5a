"""Policies without I/O, clock or randomness, one file each: retries, circuit breakers, and limits on concurrency and
call rates."""
