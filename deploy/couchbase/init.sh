#!/bin/bash
# Creates in Couchbase what the services need: the cluster, a bucket, a scope for each service, and a user for each that
# may read and write there and nowhere else. What exists stays, so it is safe to repeat.
set -euo pipefail
cluster="${COUCHBASE:-http://couchbase:8091}"
bucket="${BUCKET:-saga}"
replicas="${REPLICAS:-0}"
secrets="${SECRETS:-/run/secrets}"
services=(order payment inventory shipping intake)
for name in couchbase-admin "${services[@]}" client operator intake-connector; do
  [ -s "$secrets/$name" ] || { echo "no secret $name in $secrets" >&2; exit 1; }
done
admin="$(cat "$secrets/couchbase-admin")"

# Run a command, and succeed if it was done before.
once() {
  local output
  if ! output="$(couchbase-cli "$@" 2>&1)" && ! grep -qi 'already' <<<"$output"; then
    echo "couchbase-cli $1: $output" >&2
    exit 1
  fi
}

as_admin() {
  local command="$1"
  shift
  once "$command" --cluster "$cluster" --username Administrator --password "$admin" "$@"
}

once cluster-init --cluster "$cluster" --cluster-username Administrator --cluster-password "$admin" \
  --services data --cluster-ramsize "${RAM_MB:-512}"
# Durable writes need a majority of the copies. One node has one copy, so the bucket has no replicas.
as_admin bucket-create --bucket "$bucket" --bucket-type couchbase --bucket-ramsize "${RAM_MB:-512}" \
  --bucket-replica "$replicas" --wait
for service in "${services[@]}"; do
  as_admin collection-manage --bucket "$bucket" --create-scope "$service"
  collections=(saga saga-archive)
  [ "$service" = inventory ] && collections+=(stock)
  [ "$service" = intake ] && collections+=(orders)
  for collection in "${collections[@]}"; do
    as_admin collection-manage --bucket "$bucket" --create-collection "$service.$collection"
  done
  as_admin user-manage --set --auth-domain local --rbac-username "$service" \
    --rbac-password "$(cat "$secrets/$service")" \
    --roles "data_reader[$bucket:$service],data_writer[$bucket:$service]"
done
# Read everything, for the audit and for the commands of the runbooks; write nothing.
for user in client operator; do
  as_admin user-manage --set --auth-domain local --rbac-username "$user" --rbac-password "$(cat "$secrets/$user")" \
    --roles "data_reader[$bucket]"
done
# Reads the changes of the documents that intake consumes, and sees nothing else.
as_admin user-manage --set --auth-domain local --rbac-username intake-connector \
  --rbac-password "$(cat "$secrets/intake-connector")" --roles "data_dcp_reader[$bucket:intake:orders]"
echo "bucket $bucket is ready for ${services[*]}"
