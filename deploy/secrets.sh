#!/bin/sh
# Makes the passwords that docker-compose.yml hands on, each in a file of its own; those that are there already stay.
set -eu
folder="${SAGA_SECRETS:-.saga/secrets}"
umask 077
mkdir -p "$folder"
for name in couchbase-admin order payment inventory shipping client operator intake intake-connector; do
  [ -s "$folder/$name" ] && continue
  # 32 hexadecimal digits: Couchbase takes them all, and no shell minds one.
  od -An -N16 -tx1 /dev/urandom | tr -d ' \n' > "$folder/$name"
  # The containers read it as a user of their own; the folder keeps everybody else out.
  chmod 444 "$folder/$name"
done
echo "passwords are in $folder"
