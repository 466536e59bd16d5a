#!/bin/sh
# Creates the passwords for docker-compose.yml, each in a file of its own. Existing ones stay.
set -eu
folder="${ORDERS_SECRETS:-.saga/secrets}"
umask 077
mkdir -p "$folder"
for name in couchbase-admin order payment inventory shipping client operator intake intake-connector; do
  [ -s "$folder/$name" ] && continue
  # 32 hexadecimal digits: Couchbase accepts all of them, and no shell needs quotes.
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > "$folder/$name"
  # The containers read it as a user of their own; the folder keeps other users out.
  chmod 444 "$folder/$name"
done
echo "passwords are in $folder"
