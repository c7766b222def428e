#!/usr/bin/env bash
# A duestream worker that needs only bash and redis-cli (7.0 or later, or valkey-cli).
#
#   QUEUE=emails GROUP=billing ./worker.sh                  acknowledges every message
#   QUEUE=emails GROUP=billing ./worker.sh ./send-email     runs a command per message: the payload on its standard input,
#                                                           ID, ATTEMPT, DUE_MS, ENTRY in its environment, and in HEADERS
#                                                           the headers as a JSON object of strings
#
# If the command exits with status 0, the message is acknowledged. Otherwise it stays pending, and is delivered again after the visibility timeout.
# SIGTERM to the command means that another worker got the message. Each acknowledged message prints one line: ID, attempt.
# SIGTERM and SIGINT stop the worker after the current message.
#
# QUEUE, GROUP         required                               CONSUMER          default host-process
# ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
# FAIL_ONCE_PERCENT    this share of first attempts is left pending, to show that messages come back; default 0
# DUESTREAM_REDIS_URL, DUESTREAM_PREFIX and REDIS_CLI are described in duestream.sh
#
# One read covers all partitions, so they have to be on one server, and clusters do not work. A binary payload of 1 MiB takes bash some seconds.
# shellcheck disable=SC1003 # '\\' is two backslashes
set -uf
: "${QUEUE:?the queue to read}" "${GROUP:?the consumer group to read as}"
queue=$QUEUE
# shellcheck source=examples/shell/duestream.sh
. "$(dirname "${BASH_SOURCE[0]}")/duestream.sh"
consumer=${CONSUMER:-$(uname -n)-$$} log=${ACK_LOG:-/dev/null} percent=${FAIL_ONCE_PERCENT:-0}
stopping=''
trap 'stopping=1' TERM INT

# quote TEXT — prints an argument in the form that redis-cli reads from its standard input.
quote() { local s=${1//\\/\\\\}; printf '"%s"' "${s//\"/\\\"}"; }
group=$(quote "$GROUP") me=$(quote "$consumer")

# connect — starts the redis-cli that runs all commands. It reads one line per command and writes one line of JSON,
# even if a payload has line breaks.
connect() {
  if [ -n "${CLI_PID:-}" ]; then
    kill -KILL "$CLI_PID" 2>/dev/null
    wait "$CLI_PID" 2>/dev/null
  fi
  if [ -n "$from_cli" ]; then exec {from_cli}<&-; fi
  coproc CLI { trap '' INT TERM; exec "${cli[@]}" --json 2>&1; }
  exec {from_cli}<&"${CLI[0]}"
}
from_cli=''

# read_reply — reads the beginning of a reply. When the connection breaks, redis-cli prints the lines that are skipped here, reconnects, and
# sends the command again. Ending redis-cli at such a line would lose a message that the server has just delivered to it.
read_reply() {
  local patience=5
  while IFS= read -r -n 8192 -t "$patience" reply <&"$from_cli"; do
    case $reply in '' | 'I/O error' | 'Could not connect to '*) patience=3 ;; *) return 0 ;; esac
  done
  return 1
}

# call COMMAND — sends a command and sets reply. It fails without a usable reply; the caller then reconnects.
call() {
  reply=
  if ! { printf '%s\n' "$1" >&"${CLI[1]-}" && read_reply; } 2>/dev/null; then
    reply="error:\"no reply from redis\""
  elif [ "${#reply}" = 8192 ]; then # reading and parsing take time, so extend the entry meanwhile
    if [[ ${reply:0:1000} =~ ^\{\"([^\"\\]+)\":\[\[\"([0-9-]+)\" ]]; then
      of=("${BASH_REMATCH[1]}") entries=("${BASH_REMATCH[2]}")
      start_extending 0
    fi
    reply=$(printf '%s' "$reply"; timeout 30 head -n 1 <&"$from_cli") # faster than bash, because bash reads pipes byte by byte
    case $reply in *'}') ;; *) reply="error:\"half a reply from redis\"" ;; esac
  fi
  case $reply in '{'* | '['* | '"'* | null | [0-9]*) delay=1; return 0 ;; error:*) ;; *) reply="error:\"$reply\"" ;; esac
  return 1
}

# recover — handles an error. It creates lost groups again at 0. After any other error it waits one second, then two,
# then four, and reconnects.
recover() {
  local stream
  case $reply in
    error:\"NOGROUP* | error:\"UNBLOCKED*) # Redis before 7.2 answers UNBLOCKED when the key is deleted during a blocked read
      for stream in "${streams[@]}"; do
        call "XGROUP CREATE $stream $group 0 MKSTREAM" || case $reply in error:\"BUSYGROUP*) ;; *) break ;; esac
      done
      case $reply in '"OK"' | error:\"BUSYGROUP*) return ;; esac ;;
  esac
  printf 'worker.sh: %s\n' "$reply" >&2
  sleep "$delay"
  delay=$((delay < 4 ? 2 * delay : 4))
  connect
}

# look — reads the registry and the settings, every 5 s.
look() {
  partitions || return
  while [ "${#streams[@]}" -lt "$count" ]; do
    keys "${#streams[@]}" stream
    streams+=("$(quote "${keys[0]}")")
    read_all+=" >"
  done
  period=$(extend_every)
  looked=$SECONDS
}

# extend_every — prints a third of the visibility timeout, in seconds, and at most 5. The timeout is the setting of
# the group, else of the queue, else of the defaults, else 30 s.
extend_every() {
  local ms
  keys 0 policy
  for ms in $(redis HMGET "${keys[0]}" "group:$encoded:visibility_ms" visibility_ms) $(redis HGET "$prefix:defaults" visibility_ms) 30000; do
    case $ms in *[!0-9]* | 0* | ??????????*) ;; *) if [ "$ms" -ge 100 ] && [ "$ms" -le 604800000 ]; then break; fi ;; esac
  done
  [ "$ms" -lt 15000 ] || ms=15000 # a third of it is 5 s
  printf '%d.%03d' $((ms / 3000)) $((ms / 3 % 1000))
}

# The group is percent-encoded in the names of settings.
encoded=$(printf '%s' "$GROUP" | od -An -v -tx1 | tr -d '\n' | sed 's/ /%/g' | tr a-f A-F)
for c in {0..9} {A..Z} {a..z} - . _ '~'; do printf -v hex '%%%02X' "'$c"; encoded=${encoded//$hex/$c}; done

# parse — sets entries from the reply {"stream":[["entry",["id","…",…]],…],…}, and for each entry its stream and the positions of its first and last
# field. It cuts the reply at the quotes, to separate strings from the rest. Before that, it replaces escaped quotes by bytes that JSON never contains.
parse() {
  local text i stream
  if [ "${#reply}" -lt 65536 ]; then
    text=${reply//'\\'/$'\1'} text=${text//'\"'/$'\2'}
  else
    text=$(sed 's/\\\\/\x01/g; s/\\"/\x02/g' <<<"$reply")
  fi
  mapfile -d '"' -t part <<<"$text"
  entries=() of=() first=() last=()
  for ((i = 1; i < ${#part[@]}; i += 2)); do
    case ${part[i - 1]} in
      '{' | *']]],') stream=${part[i]} ;;
      *'[[' | *'],[') entries+=("${part[i]}") of+=("$stream") first+=($((i + 2))) last+=($((i + 1))) ;;
      *) last[-1]=$i ;;
    esac
  done
}

# load N — sets the fields of the n-th entry.
load() {
  local i name headers=''
  entry=${entries[$1]} stream=${of[$1]} id=${entries[$1]} attempt=1 due_ms='' for='' payload=''
  for ((i = first[$1]; i < last[$1]; i += 4)); do
    name=${part[i]}
    case $name in
      id) id=${part[i + 2]} ;;
      attempt) attempt=${part[i + 2]} ;;
      due_ms) due_ms=${part[i + 2]} ;;
      for) for=${part[i + 2]} ;;
      payload) payload=${part[i + 2]} ;;
      h:*) headers+=",\"${name#h:}\":\"${part[i + 2]}\"" ;;
    esac
  done
  plain "$id" && id=$text_of
  plain "$for" && for=$text_of
  plain "$stream" && stream=$text_of
  escaped "{${headers#,}}" && headers_json=$text_of
}

# escaped TEXT — sets text_of to the JSON as it was received. plain TEXT — sets it to the content of the string; printf %b decodes \n, \t, \u…
escaped() {
  text_of=${1//$'\2'/'\"'}
  text_of=${text_of//$'\1'/'\\'}
}
plain() {
  text_of=${1//$'\2'/'"'}
  text_of=${text_of//$'\1'/'\\'}
  case $text_of in *\\*) text_of=$(printf '%b.' "$text_of") && text_of=${text_of%.} ;; esac
}

# extend N [COMMAND-PID] — restarts the visibility timeouts of the n-th entry and of the entries after it, periodically, as long as this worker
# runs. Without a command, it also does so at once. It ends the command if its entry was lost.
extend() {
  local i reply round=0 looked=$SECONDS
  exec 9<> <(:) # never readable, so read only waits
  until [ "$round$#" != 01 ] && IFS= read -r -t "$period" -u 9 || ! kill -0 $$ 2>/dev/null; do
    for ((i = $1; i < ${#entries[@]}; i++)); do
      plain "${of[i]}"
      reply=$(redis XCLAIM "$text_of" "$GROUP" "$consumer" 0 "${entries[i]}" JUSTID) || continue
      if [ -z "$reply" ] && [ "$i" = "$1" ] && [ -n "${2:-}" ]; then kill "$2" 2>/dev/null; fi
    done
    round=1
    if [ $((SECONDS - looked)) -ge 2 ]; then period=$(extend_every) looked=$SECONDS; fi # settings may change
  done
}

# body — prints the payload.
body() {
  local text=$payload
  if [ "${#text}" -lt 65536 ]; then
    text=${text//$'\2'/'"'} text=${text//$'\1'/'\\'}
  else
    text=$(sed 's/\x02/"/g; s/\x01/\\\\/g' <<<"$text")
  fi
  printf '%b' "$text"
}

extender=''
start_extending() {
  stop_extending
  extend "$@" </dev/null >/dev/null &
  extender=$!
}
stop_extending() {
  [ -n "$extender" ] || return 0
  kill "$extender" 2>/dev/null
  wait "$extender" 2>/dev/null
  extender=''
}

# work N COMMAND… — runs the command for the current message, and succeeds if the message is done.
work() {
  local n=$1 command status
  shift
  if [ "$attempt" = 1 ] && [ $((RANDOM % 100)) -lt "$percent" ]; then return 1; fi
  [ $# -gt 0 ] || return 0
  body | ID=$id ATTEMPT=$attempt DUE_MS=$due_ms ENTRY=$entry HEADERS=$headers_json "$@" &
  command=$!
  start_extending "$n" "$command"
  until wait "$command"; status=$?; [ "$status" -le 128 ] || ! kill -0 "$command" 2>/dev/null; do :; done # signals interrupt wait
  stop_extending
  return "$status"
}

streams=() read_all='' delay=1 looked='' period=5
connect
until look || [ -n "$stopping" ]; do sleep 1; done
while [ -z "$stopping" ]; do
  if [ $((SECONDS - looked)) -ge 5 ]; then look; fi
  if ! call "XREADGROUP GROUP $group $me COUNT 1 BLOCK 2000 STREAMS ${streams[*]}$read_all"; then
    recover
    continue
  fi
  parse
  for ((n = 0; n < ${#entries[@]}; n++)); do # at most one per partition
    [ -z "$stopping" ] || break
    load "$n"
    own=1
    [ -z "$for" ] || [ "$for" = "$GROUP" ] || own='' # a retry for another group: acknowledged, and that is all
    status=0
    if [ -n "$own" ]; then work "$n" "$@" || status=$?; fi
    stop_extending
    [ "$status" = 0 ] || continue
    until call "XACK $(quote "$stream") $group $entry" || [ -n "$stopping" ]; do recover; done
    if [ "$reply" = 1 ] && [ -n "$own" ]; then
      printf '%s %s\n' "$id" "$attempt"
      printf '%s %s %s\n' "$id" "$attempt" "$entry" >>"$log"
    fi
  done
done
