"""What can be seen of a running service: the moments it reports, and those who listen to them."""
