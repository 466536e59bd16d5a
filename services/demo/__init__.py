"""The demonstration: four services run as four processes, one of them is killed, and all books are compared at the end.

`fleet` starts, kills and stops the processes; `page` runs the monitor's page, which shows the orders; `watch` follows
the progress of the orders; `python -m services.demo` runs everything.
"""
