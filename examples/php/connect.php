<?php
// What producer.php and worker.php share: a connection made from a URL, replies that are errors as exceptions, and the functions library.

declare(strict_types=1);

namespace Duestream;

/** Connects to redis://[user:password@]host[:port][/database], or rediss://… */
function connect(string $url): \Redis
{
    $at = parse_url($url);
    $redis = new \Redis();
    checked($redis, $redis->connect(($at['scheme'] === 'rediss' ? 'tls://' : '') . $at['host'], $at['port'] ?? 6379, 5, null, 0, 5));
    $redis->setOption(\Redis::OPT_MAX_RETRIES, 0); // else it connects again by itself in the middle of a call
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
 * Returns a reply, and throws the error that phpredis only keeps for getLastError. False with no error is a command that could not be sent:
 * no command here has it for an answer, so what may find nothing, or change nothing, is asked with HMGET, or raw.
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

/** Registers a queue with the bridges that do not know it yet, and returns how many partitions it has: 1 for a user who may not read that. */
function register(\Redis $redis, string $prefix, string $queue): int
{
    if (checked($redis, $redis->rawCommand('HSETNX', "$prefix:queues", $queue, '1'))) {
        checked($redis, $redis->xAdd("$prefix:wake", '*', ['queues' => 1], 1, false));
    }
    try {
        $known = checked($redis, $redis->hGet("$prefix:queues", $queue)); // there it is, by now
    } catch (\RedisException $e) {
        $redis->clearLastError();
        $known = str_starts_with($e->getMessage(), 'NOPERM') ? '1' : throw $e;
    }
    $counts = array_map('intval', explode(',', (string) $known));
    return max([1, ...array_filter($counts, fn(int $n) => $n <= 256)]);
}

/** Calls a function of duestream's library. null: it is not loaded, and plain commands have to do. */
function fcall(\Redis $redis, string $function, array $keys, array $arguments): ?array
{
    try {
        $arguments = array_map('strval', [count($keys), ...$keys, ...$arguments]);
        $reply = checked($redis, $redis->rawCommand('FCALL', "duestream_$function", ...$arguments));
        return is_array($reply) ? $reply : throw new \RedisException('not a reply of a function');
    } catch (\RedisException $e) {
        $redis->clearLastError(); // which an exception leaves there
        return preg_match('/^(ERR Function not found|ERR unknown command|NOPERM)/', $e->getMessage()) ? null : throw $e;
    }
}

/** Seconds on a clock that nobody sets. */
function now(): float
{
    return hrtime(true) / 1e9;
}
