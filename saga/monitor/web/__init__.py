"""Web page of the monitor, rendered on the server. Reading order: `app`, `guards`, `desk`, the pages beside them."""
