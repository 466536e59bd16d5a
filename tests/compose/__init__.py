"""The whole system under a container engine: `make compose-test`, and tests of the files that deploy it.

Reading order: `engine` (docker, found or started), `stand_ins` (images where no registry can be reached), `system` (the
containers), `customers` (who orders), `faults` (what is done to the containers), `python -m tests.compose` (the story).
"""
