#!/usr/bin/env bash
# Runs worker.sh or producer.sh in the form that `duestream conformance` tests.
#
#   duestream conformance --worker --level good -- examples/shell/conformance.sh worker
#   duestream conformance --producer --level complete -- examples/shell/conformance.sh producer
# shellcheck disable=SC1003 # '\\' is two backslashes
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
case ${1:-} in
  worker) exec "$here/worker.sh" "$0" handle 3>&1 >/dev/null ;;
  handle | producer) ;;
  *) sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
queue=${QUEUE:?}
# shellcheck source=examples/shell/producer.sh
. "$here/producer.sh"

# Handles one message. worker.sh runs this script for each message. File descriptor 3 is the standard output of the kit.
handle() {
  local work='' number
  printf '{"id":"%s","attempt":%s,"payload":"%s","headers":%s}\n' "$(json "$ID")" "$ATTEMPT" "$(base64 -w0)" "$HEADERS" >&3
  if [[ $HEADERS =~ \"work\":\"([a-z]+)\ ?([0-9]*)\" ]]; then work=${BASH_REMATCH[1]} number=${BASH_REMATCH[2]}; fi
  case $work in
    slow) sleep "$((number / 1000)).$(printf '%03d' $((number % 1000)))" ;;
    fail) if [ "$ATTEMPT" -le "$number" ]; then echo "asked to fail" >&2; exit 1; fi ;;
    retry) if [ "$ATTEMPT" = 1 ]; then echo "asked to retry" >&2; exit 1; fi ;;
    dead) echo "asked to die" >&2; exit 1 ;;
  esac
}

# order LINE — sets id, due, payload, dedup and the JSON fields of meta from a line of JSON. It cuts the line at the
# quotes, as worker.sh does.
order() {
  local text=${1//'\\'/$'\1'} i inside='' name value part
  text=${text//'\"'/$'\2'}
  mapfile -d '"' -t part <<<"$text"
  payload='' fields='' dedup=0
  for ((i = 1; i < ${#part[@]}; i += 2)); do
    name=${part[i]}
    value=${part[i + 1]}
    case $value in
      *:*'{'*) inside=1; continue ;;
      *: | *': ') i=$((i + 2)) value=${part[i]} ;;
      *) value=${value//[!0-9]/} ;;
    esac
    case $inside$name in
      1*) fields+=",\"h:$name\":\"$value\"" ;;
      id) id=$value ;;
      due_ms) due=$value ;;
      payload) payload=$value ;;
      dedup_ms) dedup=$value ;;
      max_attempts | expires_ms) fields+=",\"$name\":\"$value\"" ;;
    esac
    case ${part[i + 1]} in *'}'*) inside='' ;; esac
  done
  id_json=${id//$'\2'/'\"'} id_json=${id_json//$'\1'/'\\'}
  fields=${fields//$'\2'/'\"'} fields=${fields//$'\1'/'\\'}
  id=$(LC_ALL=C.UTF-8 printf '%b.' "${id_json//'\"'/'"'}")
}

produce() {
  local line file
  file=$(mktemp)
  # shellcheck disable=SC2064 # the name as it is now
  trap "rm -f '$file'" EXIT
  while IFS= read -r line; do
    order "$line"
    base64 -d <<<"$payload" >"$file"
    if schedule "${id%.}" "$due" "${fields:+"{${fields#,}}"}" "$file" "$dedup"; then
      printf '{"id":"%s","ok":true}\n' "$id_json"
    else
      printf '{"id":"%s","ok":false,"error":"%s"}\n' "$id_json" "$(json "$answer")"
    fi
  done
}

if [ "$1" = handle ]; then handle; else produce; fi
