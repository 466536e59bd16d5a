"""What people ask of brokers and stores that services use: topics as the contracts want them, health, positions.

Pure: `wanted` (topics that services want), `plans` (what is to be done about them), `findings` (what is not as it
should be), `moves` (which positions may move). `positions` and `doctor` ask the broker, and `doctor` the stores too.
"""
