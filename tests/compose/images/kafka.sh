#!/bin/bash
# Starts Kafka as its public image does: KAFKA_LOG_DIRS becomes the property log.dirs, and so on.
set -euo pipefail
properties=/tmp/server.properties
env | sed -n 's/^KAFKA_//p' | while IFS='=' read -r name value; do
  echo "$(tr 'A-Z_' 'a-z.' <<<"$name")=$value"
done > "$properties"
kafka=(java -Xmx512m -XX:+UseSerialGC -cp '/opt/libs/*')
if [ ! -e "$KAFKA_LOG_DIRS/meta.properties" ]; then
  "${kafka[@]}" kafka.tools.StorageTool format --cluster-id "$CLUSTER_ID" --config "$properties"
fi
exec "${kafka[@]}" kafka.Kafka "$properties"
