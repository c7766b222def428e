#!/usr/bin/env bash
# Schedules one message with nothing but bash, gzip and redis-cli (7.0 or later, or valkey-cli).
#
#   ./producer.sh emails order-42 15m 'close the order'     in 15 minutes; also 500ms, 30s, 2h, 7d
#   ./producer.sh emails order-42 0s < body.bin             the payload from standard input, any bytes
#   ./producer.sh -H kind=order -m 5 emails order-42 15m …  with headers, and at most five attempts
#
# If a message with this ID is still scheduled, the ID is refused where the functions library is loaded (duestream
# functions load). Otherwise the new message replaces it. DUESTREAM_REDIS_URL, DUESTREAM_PREFIX and REDIS_CLI are as
# for worker.sh.
set -euo pipefail
# shellcheck source=examples/shell/duestream.sh
. "$(dirname "${BASH_SOURCE[0]}")/duestream.sh"

# This replaces the library: the transaction of docs/reference/protocol.md section 7 as one script. redis-cli reconnects
# on its own, and the commands that it sends then would be outside the MULTI.
transaction='
local due = ARGV[2]
if string.sub(due, 1, 1) == "+" then
  local now = redis.call("TIME")
  due = string.format("%.0f", now[1] * 1000 + math.floor(now[2] / 1000) + due)
end
redis.call("HSET", KEYS[1], ARGV[1], ARGV[3]) -- also an empty payload, because a full server has to refuse the first command
if ARGV[4] ~= "" then redis.call("HSET", KEYS[2], ARGV[1], ARGV[4]) else redis.call("HDEL", KEYS[2], ARGV[1]) end
redis.call("ZADD", KEYS[3], due, ARGV[1])
redis.call("XADD", KEYS[4], "MAXLEN", "1", "*", "due_ms", due)
return due'

# partition_of ID COUNT — prints the CRC-32 of the ID, which gzip writes at the end of a file, modulo the count.
partition_of() {
  if [ "$2" = 1 ]; then echo 0; else echo $(($(printf '%s' "$1" | gzip -c | tail -c 8 | od -An -N4 -tu4 --endian=little) % $2)); fi
}

# send ID WHEN META FILE [DEDUP] — sends the message once, and sets answer to the reply. It fails if there is no
# usable reply. The partition is decided before the first attempt: a repetition must use the same partition, even if
# the queue has grown meanwhile.
plain_until=0
send() {
  local body=@$token # redis-cli replaces this word by the payload
  answer='no connection'
  if [ -z "$partition" ]; then
    partitions || return
    partition=$(partition_of "$1" "$count")
  fi
  keys "$partition" due payload meta stream wake seen policy
  if [ "$SECONDS" -ge "$plain_until" ]; then
    answer=$("${cli[@]}" -e -X "$body" FCALL duestream_schedule 7 "${keys[@]}" "$token" '' 60000 "$1" "$2" "$body" "$3" "${5:-0}" <"$4" 2>&1) && return
    case ${answer,,} in *'function not found'* | *'unknown command'* | *noperm*) plain_until=$((SECONDS + 5)) ;; *) return 1 ;; esac
  fi
  keys "$partition" payload meta due wake
  answer=$("${cli[@]}" -e -X "$body" EVAL "$transaction" 4 "${keys[@]}" "$1" "$2" "$body" "$3" <"$4" 2>&1)
}

# schedule ID WHEN META FILE [DEDUP] — schedules a message. WHEN is Unix ms, or +ms; META is a JSON object of strings, or empty; FILE has the
# payload. The ID is refused for DEDUP ms, even after the delivery; only the functions library supports this. Sets answer to the due time, or fails
# and sets it to the reason. When the connection is lost, it repeats the call for 15 s.
schedule() {
  local partition='' token=$RANDOM-$$-$EPOCHREALTIME end=$((SECONDS + 15)) # with it, the script recognizes a repeated call
  until send "$@"; do
    case $answer in
      'no connection' | *'Could not connect'* | *'closed the connection'* | 'Error: '* | *LOADING* | *READONLY* | *'I/O error'*) ;;
      *) return 1 ;;
    esac
    [ "$SECONDS" -lt "$end" ] || return
    sleep 0.5
  done
  case $answer in # the verdict, then the due time
    0$'\n'*) answer='scheduled already, or a moment ago'; return 1 ;;
    -1$'\n'*) answer='meta is malformed'; return 1 ;;
  esac
  answer=${answer##*$'\n'}
}

# json TEXT — prints the text in the form that it has between the quotes of a JSON string.
json() {
  local s=${1//\\/\\\\}
  s=${s//\"/\\\"} s=${s//$'\n'/\\n} s=${s//$'\t'/\\t}
  printf '%s' "${s//$'\r'/\\r}"
}

main() {
  local meta='' option delay ms payload status=0
  while getopts H:m: option; do
    case $option in
      H) meta+=",\"h:$(json "${OPTARG%%=*}")\":\"$(json "${OPTARG#*=}")\"" ;;
      m) meta+=",\"max_attempts\":\"$((OPTARG))\"" ;;
      *) return 2 ;;
    esac
  done
  shift $((OPTIND - 1))
  if [ $# -lt 3 ] || [ $# -gt 4 ]; then
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
    return 2
  fi
  queue=$1 delay=$3
  case $delay in
    *[!0-9]ms | ms) ;; *ms) ms=${delay%ms} ;; *s) ms=$((${delay%s} * 1000)) ;; *m) ms=$((${delay%m} * 60000)) ;;
    *h) ms=$((${delay%h} * 3600000)) ;; *d) ms=$((${delay%d} * 86400000)) ;;
  esac
  payload=$(mktemp)
  if [ $# = 4 ]; then printf '%s' "$4"; else cat; fi >"$payload"
  schedule "$2" "+${ms:?a delay like 500ms, 30s, 15m, 2h or 7d}" "${meta:+"{${meta#,}}"}" "$payload" || status=$?
  rm -f "$payload"
  if [ "$status" != 0 ]; then
    printf 'producer.sh: %s\n' "$answer" >&2
    return "$status"
  fi
  printf '%s is due at %s\n' "$2" "$answer"
}

if [ "$0" = "${BASH_SOURCE[0]}" ]; then main "$@"; fi
