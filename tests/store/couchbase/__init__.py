"""The Couchbase store, on Couchbase's own test server."""
