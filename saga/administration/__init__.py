"""Tools on brokers and stores that services use: topics as the contracts want them, health, positions.

Pure: `wanted_topics` (topics that services want), `topic_plans` (changes that bring topics there), `findings` (anything
not as it should be), `position_moves` (which positions may move). `positions` and `doctor` ask the broker, and `doctor`
the stores too.
"""
