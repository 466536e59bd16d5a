#!/bin/bash
# Runs Kafka Connect. The connector's password is a file, and only in the environment of this process.
set -euo pipefail
KAFKA_COUCHBASE_PASSWORD="$(cat "${SECRETS:-/run/secrets}/intake-connector")"
export KAFKA_COUCHBASE_PASSWORD
exec "${KAFKA_HOME:-/opt/kafka}/bin/connect-distributed.sh" "${CONNECT_PROPERTIES:-/opt/saga/connect.properties}"
