"""Web page of the monitor, rendered on the server. Reading order: `app`, `guards`, `operator_console`, `pages`."""
