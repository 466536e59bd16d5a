"""The audit: compares the data of all services, the bank and the carrier, order by order, when a run is over.

`books` reads the data, `checks` compares them in pure functions, and `python -m services.audit` prints the result. The
audit is not part of a service: it is run from outside, with access to the data of all of them.
"""
