"""The demonstration: four services as four processes, one of them killed in the middle, all books compared at the end.

`fleet` starts, kills and stops processes; `page` is the monitor's, on which the orders are shown; `watch` tells how far
they are; `python -m services.demo` is the story.
"""
