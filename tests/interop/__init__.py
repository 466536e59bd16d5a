"""Messages between the toolkit and the libraries of others: Java's Avro and CloudEvents SDK, Go's and Python's SDKs, a
plain consumer. What they need is fetched by their own package managers; where it cannot be had, these tests are left
out, and this is reported."""
