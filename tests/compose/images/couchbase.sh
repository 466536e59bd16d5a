#!/bin/bash
# Starts Couchbase's test server, which tells its clients to come to the name that this container has.
exec java -Xmx512m -XX:+UseSerialGC -jar /opt/libs/CouchbaseMock-*.jar --host "$(hostname)" --port 8091 --nodes 1 \
  --replicas 0 --vbuckets 64 --cccp --buckets saga::
