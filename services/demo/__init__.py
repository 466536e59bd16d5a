"""The demonstration: four services as four processes, one of them killed in the middle, all books compared at the end.

`fleet` starts, kills and stops processes; `watch` tells how far the orders are; `python -m services.demo` is the story.
"""
