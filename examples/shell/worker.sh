#!/usr/bin/env bash
# A duestream worker in nothing but bash and redis-cli (7.0 or later, or valkey-cli).
#
#   QUEUE=emails GROUP=billing ./worker.sh                  acknowledges every message
#   QUEUE=emails GROUP=billing ./worker.sh ./send-email     runs a command per message: the payload on its standard input,
#                                                           the fields as ID, ATTEMPT, DUE_MS, ENTRY in its environment
#
# Exit status 0 of the command acknowledges the message. Any other leaves it pending: it is delivered again after the
# visibility timeout. Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop after the message in hand.
#
# DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
# QUEUE, GROUP         required                               CONSUMER          default host-process
# ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
# FAIL_ONCE_PERCENT    this share of first attempts is left pending, to show that they come back; default 0
# REDIS_CLI            default redis-cli
#
# bash reads pipes byte by byte: a payload of 1 MiB takes about a second.
# shellcheck disable=SC1003 # '\\' is two backslashes
set -uf
export LC_ALL=C
: "${QUEUE:?the queue to read}" "${GROUP:?the consumer group to read as}"
url=${DUESTREAM_REDIS_URL:-redis://127.0.0.1:6379} prefix=${DUESTREAM_PREFIX:-duestream} log=${ACK_LOG:-/dev/null}
consumer=${CONSUMER:-$(uname -n)-$$} percent=${FAIL_ONCE_PERCENT:-0}
cli=("${REDIS_CLI:-redis-cli}" -u "$url" --no-auth-warning)
stopping=
trap 'stopping=1' TERM INT

# An argument as redis-cli reads it from its standard input.
quote() { local s=${1//\\/\\\\}; printf '"%s"' "${s//\"/\\\"}"; }
stream=$(quote "$prefix:{$QUEUE}:stream") group=$(quote "$GROUP") me=$(quote "$consumer")

# One redis-cli serves all commands: a line in, a line of JSON out, also when a payload has line breaks.
connect() {
  if [ -n "${CLI_PID:-}" ]; then
    kill -KILL "$CLI_PID" 2>/dev/null
    wait "$CLI_PID" 2>/dev/null
  fi
  coproc CLI { trap '' INT TERM; exec "${cli[@]}" --json 2>&1; }
}

# call COMMAND — sends a command and sets reply. Fails when there is no sensible one; the connection is then made anew.
call() {
  reply=
  if ! { printf '%s\n' "$1" >&"${CLI[1]-}" && IFS= read -r -t 30 reply <&"${CLI[0]-}"; } 2>/dev/null; then
    reply="error:\"no reply from redis\""
  fi
  case $reply in '{'* | '['* | '"'* | null | [0-9]*) return 0 ;; error:*) ;; *) reply="error:\"$reply\"" ;; esac
  return 1
}

# recover — after an error: a lost group is created again, at 0; anything else is given a second.
recover() {
  case $reply in
    error:\"NOGROUP* | error:\"UNBLOCKED*) call "XGROUP CREATE $stream $group 0 MKSTREAM" && return ;;
  esac
  case $reply in error:\"BUSYGROUP*) return ;; esac
  printf 'worker.sh: %s\n' "$reply" >&2
  sleep 1
  connect
}

# parse — sets entry and the fields of the one entry in reply; fails when it holds none. What stands in quotes is told from what
# does not by cutting at the quotes; escaped ones are put aside before, as bytes that JSON never holds.
parse() {
  local text=${reply//'\\'/$'\1'} IFS='"' i
  text=${text//'\"'/$'\2'}
  # shellcheck disable=SC2206 # cut at IFS
  local -a part=($text)
  entry=${part[3]:-} id=${part[3]:-} attempt=1 due_ms='' for='' payload=''
  [ -n "$entry" ] || return 1
  for ((i = 5; i + 2 < ${#part[@]}; i += 4)); do
    case ${part[i]} in
      id) id=${part[i + 2]} ;;
      attempt) attempt=${part[i + 2]} ;;
      due_ms) due_ms=${part[i + 2]} ;;
      for) for=${part[i + 2]} ;;
      payload) payload=${part[i + 2]} ;;
    esac
  done
  plain "$id" && id=$text_of
  plain "$for" && for=$text_of
}

# plain TEXT — sets text_of to what a JSON string says, but for its \n, \t, \u…, which printf %b knows.
plain() {
  text_of=${1//$'\2'/'"'}
  text_of=${text_of//$'\1'/'\\'}
  case $text_of in *\\*) text_of=$(printf '%b.' "$text_of") && text_of=${text_of%.} ;; esac
}

# extend — starts the visibility timeout of the entry anew, again and again, while its command runs.
extend() {
  exec 9<> <(:)
  while ! IFS= read -r -t "$third" -u 9; do
    "${cli[@]}" XCLAIM "$prefix:{$QUEUE}:stream" "$GROUP" "$consumer" 0 "$entry" JUSTID >/dev/null 2>&1
  done
}

# work COMMAND… — whether the message in hand is done.
work() {
  if [ "$attempt" = 1 ] && [ $((RANDOM % 100)) -lt "$percent" ]; then return 1; fi
  [ $# -gt 0 ] || return 0
  local extender status
  extend </dev/null >/dev/null &
  extender=$!
  local body=${payload//$'\2'/'"'}
  printf '%b' "${body//$'\1'/'\\'}" | ID=$id ATTEMPT=$attempt DUE_MS=$due_ms ENTRY=$entry "$@"
  status=$?
  kill "$extender" 2>/dev/null
  wait "$extender" 2>/dev/null
  return "$status"
}

# A third of the visibility timeout, in seconds: the group's own setting, the queue's, the defaults', or 30 s.
visibility() {
  local ms key="$prefix:{$QUEUE}:policy"
  for ms in $("${cli[@]}" HMGET "$key" "group:$GROUP:visibility_ms" visibility_ms) $("${cli[@]}" HGET "$prefix:defaults" visibility_ms) 30000; do
    case $ms in *[!0-9]* | '') ;; *) break ;; esac
  done
  printf '%d.%03d' $((ms / 3000)) $((ms / 3 % 1000))
}

connect
third=$(visibility)
if call "HSETNX $(quote "$prefix:queues") $(quote "$QUEUE") 1" && [ "$reply" = 1 ]; then
  call "XADD $(quote "$prefix:wake") MAXLEN 1 * queues 1" || recover # the bridges do not know the queue yet
fi
call "XGROUP CREATE $stream $group 0 MKSTREAM" || recover
while [ -z "$stopping" ]; do
  if ! call "XREADGROUP GROUP $group $me COUNT 1 BLOCK 2000 STREAMS $stream >"; then
    recover
    continue
  fi
  parse || continue
  if [ -z "$for" ] || [ "$for" = "$GROUP" ]; then
    work "$@" || continue
    until call "XACK $stream $group $entry" || [ -n "$stopping" ]; do recover; done
    if [ "$reply" = 1 ]; then
      printf '%s %s\n' "$id" "$attempt"
      printf '%s %s %s\n' "$id" "$attempt" "$entry" >>"$log"
    fi
  else
    call "XACK $stream $group $entry" || recover # a retry for another group
  fi
done
