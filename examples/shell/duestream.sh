# shellcheck shell=bash
# The code that producer.sh and worker.sh share. They set the variable queue before they call a function.
#
# DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
# REDIS_CLI            default redis-cli (7.0 or later), or valkey-cli
export LC_ALL=C # strings are bytes
prefix=${DUESTREAM_PREFIX:-duestream}
cli=("${REDIS_CLI:-redis-cli}" -u "${DUESTREAM_REDIS_URL:-redis://127.0.0.1:6379}" --no-auth-warning)

# redis COMMAND… — runs one command. It fails and prints the reason when Redis refuses the command or cannot be reached.
redis() {
  local reply
  if ! reply=$("${cli[@]}" -e "$@" 2>&1 </dev/null); then
    printf '%s: %s\n' "${0##*/}" "$reply" >&2
    return 1
  fi
  printf '%s\n' "$reply"
}

# keys PARTITION KIND… — sets keys to the names of the keys of these kinds.
keys() {
  local n=${1#0} kind
  keys=()
  for kind in "${@:2}"; do keys+=("$prefix:{${queue:?}${n:+/$n}}:$kind"); done
}

# partitions — sets count to the largest partition count that the queue has had since it was last deleted. It reads
# the registry every 5 s. A queue that the registry lacks is added, and the bridges are told. Otherwise the bridges
# would find the queue only after seconds or minutes.
count=1 look_again=0
partitions() {
  local known deleted n
  [ "$SECONDS" -ge "$look_again" ] || return 0
  known=$(redis HGET "$prefix:queues" "$queue") || return
  if [ -z "$known" ] && [ "$(redis HSETNX "$prefix:queues" "$queue" 1)" = 1 ]; then
    redis XADD "$prefix:wake" MAXLEN 1 '*' queues 1 >/dev/null
  fi
  if [[ ,1,$known, != *,$count,* ]]; then # the registry lost it, or the queue was deleted
    deleted=$(redis HGET "$prefix:queues" "/deleted/$queue") || return
    if [[ ,$deleted, = *,$count,* ]]; then count=1; fi
  fi
  for n in ${known//,/ }; do
    case $n in 0* | *[!0-9]* | ????*) ;; *) if [ "$n" -le 256 ] && [ "$n" -gt "$count" ]; then count=$n; fi ;; esac
  done
  look_again=$((SECONDS + 5))
}
