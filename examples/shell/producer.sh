#!/usr/bin/env bash
# Schedules one message with nothing but bash and redis-cli.
#
#   ./producer.sh emails order-42 15m 'close the order'     in 15 minutes; also 500ms, 30s, 2h, 7d
#   ./producer.sh emails order-42 0s < body.bin             the payload from standard input
#
# An ID that is still scheduled is overwritten. DUESTREAM_REDIS_URL, DUESTREAM_PREFIX and REDIS_CLI as for worker.sh.
set -euo pipefail
if [ $# -lt 3 ] || [ $# -gt 4 ]; then
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
fi
queue=$1 id=$2 delay=$3 prefix=${DUESTREAM_PREFIX:-duestream}
cli=("${REDIS_CLI:-redis-cli}" -u "${DUESTREAM_REDIS_URL:-redis://127.0.0.1:6379}" --no-auth-warning -e)

case $delay in
  *[!0-9]ms | ms) ;; *ms) ms=${delay%ms} ;; *s) ms=$((${delay%s} * 1000)) ;; *m) ms=$((${delay%m} * 60000)) ;;
  *h) ms=$((${delay%h} * 3600000)) ;; *d) ms=$((${delay%d} * 86400000)) ;;
esac
: "${ms:?a delay like 500ms, 30s, 15m, 2h or 7d}"

# Due times are by the server's clock, in Unix milliseconds.
mapfile -t now < <("${cli[@]}" --raw TIME)
due=$((now[0] * 1000 + now[1] / 1000 + ms))

# An argument as redis-cli reads it from its standard input; payloads go as \x…, so that any byte passes.
quote() { local s=${1//\\/\\\\}; printf '"%s"' "${s//\"/\\\"}"; }
body() { if [ $# -gt 0 ]; then printf '%s' "$1"; else cat; fi | od -An -v -tx1 | tr -d '\n' | sed 's/ /\\x/g'; }
key() { quote "$prefix:{$queue}:$1"; }

# The body before the member, and all of it at once: a bridge never sees one without the other.
reply=$(printf 'MULTI\nHSET %s %s "%s"\nHDEL %s %s\nZADD %s %s %s\nXADD %s MAXLEN 1 * due_ms %s\nEXEC\n' \
  "$(key payload)" "$(quote "$id")" "$(body "${@:4}")" "$(key meta)" "$(quote "$id")" "$(key due)" "$due" "$(quote "$id")" \
  "$(key wake)" "$due" | "${cli[@]}")
# What EXEC did ends with the ID of the wake token. Otherwise nothing was done, and the reply says why.
case ${reply##*$'\n'} in
  [0-9]*-[0-9]*) ;;
  *) printf '%s\n' "$reply" >&2; exit 1 ;;
esac
# A queue that the bridges do not know yet.
if [ "$("${cli[@]}" HSETNX "$prefix:queues" "$queue" 1)" = 1 ]; then
  "${cli[@]}" XADD "$prefix:wake" MAXLEN 1 '*' queues 1 >/dev/null
fi
printf '%s is due at %s\n' "$id" "$due"
