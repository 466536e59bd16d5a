"""Clock, settings of adapters, addresses and printing, which every part of the toolkit may use."""
