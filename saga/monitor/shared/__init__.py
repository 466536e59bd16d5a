"""Monitor that several processes share, on Kafka: each folds some partitions, and any of them answers for all.

Reading order: `kept.py` (what of a transition is kept), `parts.py` (folds of one partition), `sums.py` (what all make
together); then the outside: `worker.py` (Faust), `answering.py`, `web.py`, `serving.py`.
"""
