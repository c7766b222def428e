<?php
// The code that producer.php and worker.php share: connecting to a URL, throwing error replies as exceptions, and
// calling the functions library.

declare(strict_types=1);

namespace Duestream;

/** Connects to redis://[user:password@]host[:port][/database], or rediss://… */
function connect(string $url): \Redis
{
    $at = parse_url($url);
    $redis = new \Redis();
    checked($redis, $redis->connect(($at['scheme'] === 'rediss' ? 'tls://' : '') . $at['host'], $at['port'] ?? 6379, 5, null, 0, 5));
    $redis->setOption(\Redis::OPT_MAX_RETRIES, 0); // otherwise phpredis reconnects on its own in the middle of a call
    if (isset($at['pass'])) {
        $user = urldecode($at['user'] ?? '');
        checked($redis, $redis->auth($user === '' ? urldecode($at['pass']) : [$user, urldecode($at['pass'])]));
    }
    if (($database = (int) trim($at['path'] ?? '', '/')) > 0) {
        checked($redis, $redis->select($database));
    }
    return $redis;
}

/**
 * Returns a reply, or throws the error that phpredis only keeps for getLastError. False without an error means that the
 * command could not be sent. The methods of phpredis also return false when a command finds or changes nothing. So such
 * commands are sent as HMGET, as raw commands or in a pipeline: then the reply is not false.
 */
function checked(\Redis $redis, mixed $reply): mixed
{
    $error = $redis->getLastError();
    $redis->clearLastError();
    if ($error !== null || $reply === false) {
        throw new \RedisException($error ?? 'connection lost');
    }
    return $reply;
}

/**
 * Registers a queue if the bridges do not know it yet. Returns its partition counts: those in the registry, and those
 * that the caller knew ($known), except the counts of an earlier queue of this name that was deleted. A user who may
 * not read the registry gets $known.
 *
 * @param int[] $known
 * @return int[]
 */
function register(\Redis $redis, string $prefix, string $queue, array $known): array
{
    if (checked($redis, $redis->rawCommand('HSETNX', "$prefix:queues", $queue, '1'))) {
        checked($redis, $redis->xAdd("$prefix:wake", '*', ['queues' => 1], 1, false));
    }
    try {
        $fields = checked($redis, $redis->pipeline()
            ->hGet("$prefix:queues", $queue)
            ->hGet("$prefix:queues", "/deleted/$queue")
            ->exec());
    } catch (\RedisException $e) {
        $redis->clearLastError();
        return str_starts_with($e->getMessage(), 'NOPERM') ? $known : throw $e;
    }
    [$registered, $deleted] = array_map(fn($text) => array_map('intval', explode(',', (string) $text)), $fields);
    $registered = array_filter($registered, fn(int $n) => $n >= 1 && $n <= 256);
    return array_unique([1, ...array_diff($known, $deleted), ...$registered]);
}

/** Calls a function of duestream's library. Returns null if the library is not loaded: then plain commands must be used. */
function fcall(\Redis $redis, string $function, array $keys, array $arguments): ?array
{
    try {
        $arguments = array_map('strval', [count($keys), ...$keys, ...$arguments]);
        $reply = checked($redis, $redis->rawCommand('FCALL', "duestream_$function", ...$arguments));
        return is_array($reply) ? $reply : throw new \RedisException('not a reply of a function');
    } catch (\RedisException $e) {
        $redis->clearLastError(); // an exception does not clear it
        return preg_match('/^(ERR Function not found|ERR unknown command|NOPERM)/', $e->getMessage()) ? null : throw $e;
    }
}

/** Returns the seconds of a clock that nobody can set. */
function now(): float
{
    return hrtime(true) / 1e9;
}
