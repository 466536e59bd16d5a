"""The audit: compares the books of all services, the bank and the carrier, order by order, when a run is over.

`checks` compares, purely; `books` reads; `python -m services.audit` prints. It belongs to no service: someone from
outside runs it who may look into everybody's books.
"""
