#!/usr/bin/env php
<?php
// Schedules a message from PHP with phpredis (Debian: php-cli, php-redis). It uses the functions library where that is loaded, or else plain commands.
//
//   php producer.php --in 900 --payload 'close the order' --header kind=order emails order-42
//
// If a message with this ID is still scheduled, the library refuses the ID, and plain commands replace the message.
// DUESTREAM_REDIS_URL and DUESTREAM_PREFIX are as for worker.php.

declare(strict_types=1);

namespace Duestream;

require_once __DIR__ . '/connect.php';

/**
 * Schedules messages of one queue. When a broken connection or a starting server interrupts a call, it repeats the call for some seconds, and
 * then throws. The library recognizes a repeated call. Plain commands schedule a message again if it was delivered before the repetition.
 */
final class Producer
{
    private const REFRESH = 5; // seconds until a new partition is noticed

    private ?\Redis $redis = null;
    /** @var int[] the partition counts that the queue is known to have */
    private array $counts = [1];
    private float $refreshAt = 0;
    private bool $functions = true; // whether the library is tried; false after a function was not found
    /** @var array<string, string> by key prefix: the token of the last call whose reply arrived */
    private array $done = [];

    public function __construct(
        private readonly string $url,
        private readonly string $queue,
        private readonly string $prefix = 'duestream',
        private readonly float $patience = 15,
    ) {
    }

    /**
     * Returns false if the library refuses the ID: a message with this ID is scheduled, or was scheduled within its
     * $dedupMs.
     *
     * @param array<string, string> $headers
     */
    public function schedule(
        string $id, int $dueMs, string $payload = '', array $headers = [], ?int $maxAttempts = null, ?int $expiresMs = null,
        int $dedupMs = 0,
    ): bool {
        $meta = []; // all values are strings
        foreach ($headers as $name => $value) {
            $meta["h:$name"] = (string) $value;
        }
        $meta += array_map('strval', array_filter(['max_attempts' => $maxAttempts, 'expires_ms' => $expiresMs], 'is_int'));
        $json = $meta ? json_encode($meta, JSON_THROW_ON_ERROR) : '';
        $this->patiently($this->refresh(...));
        $i = crc32($id) % max($this->counts);
        $key = "$this->prefix:{{$this->queue}" . ($i ? "/$i" : '') . '}:';
        $token = bin2hex(random_bytes(16));
        return $this->patiently(fn(\Redis $redis) => $this->call($redis, $key, $token, $id, $dueMs, $payload, $json, $dedupMs)
            ?? $this->write($redis, $key, $id, $dueMs, $payload, $json));
    }

    /** Returns a point in time by the server's clock, because that clock decides. */
    public function inMs(int $delay): int
    {
        [$seconds, $micros] = $this->patiently(fn(\Redis $redis) => checked($redis, $redis->time()));
        return $seconds * 1000 + intdiv((int) $micros, 1000) + $delay;
    }

    private function refresh(\Redis $redis): void
    {
        if (now() >= $this->refreshAt) {
            $this->counts = register($redis, $this->prefix, $this->queue, $this->counts);
            $this->functions = true;
            $this->refreshAt = now() + self::REFRESH;
        }
    }

    private function write(\Redis $redis, string $key, string $id, int $dueMs, string $payload, string $meta): bool
    {
        checked($redis, $redis->multi()); // a bridge never sees only a part of it
        // The fields that an earlier message with this ID left behind are overwritten or deleted.
        checked($redis, $payload === '' ? $redis->hDel("{$key}payload", $id) : $redis->hSet("{$key}payload", $id, $payload));
        checked($redis, $meta === '' ? $redis->hDel("{$key}meta", $id) : $redis->hSet("{$key}meta", $id, $meta));
        checked($redis, $redis->zAdd("{$key}due", $dueMs, $id)); // after the body
        checked($redis, $redis->xAdd("{$key}wake", '*', ['due_ms' => $dueMs], 1, false));
        if (count(checked($redis, $redis->exec())) !== 4) {
            throw new \RedisException('the transaction was refused');
        }
        return true;
    }

    /** Does the same as write, with the library. Returns null if the library is not loaded. */
    private function call(\Redis $redis, string $key, string $token, string $id, int $dueMs, string $payload, string $meta, int $dedupMs): ?bool
    {
        $names = array_map(fn(string $name) => $key . $name, ['due', 'payload', 'meta', 'stream', 'wake', 'seen', 'policy']);
        $arguments = [$token, $this->done[$key] ?? '', 60_000, $id, $dueMs, $payload, $meta, $dedupMs];
        $reply = $this->functions ? fcall($redis, 'schedule', $names, $arguments) : null;
        $this->functions = $reply !== null;
        if ($reply === null) {
            return null;
        }
        $this->done[$key] = $token; // the next call tells the server to forget this token
        return $reply[0] >= 0 ? $reply[0] > 0 : throw new \InvalidArgumentException("malformed: $meta");
    }

    private function patiently(\Closure $do): mixed
    {
        for ($giveUpAt = now() + $this->patience, $wait = 0.1; ; $wait = min($wait * 2, 1)) {
            try {
                return $do($this->redis ??= connect($this->url));
            } catch (\RedisException $e) {
                $this->redis = null; // an unfinished transaction ends with its connection
                $this->refreshAt = 0;
                // Error replies of Redis begin with a word in capitals. Any other error is a broken connection.
                if (now() >= $giveUpAt || preg_match('/^(?!LOADING|READONLY|MASTERDOWN)[A-Z]{2,} /', $e->getMessage())) {
                    throw $e;
                }
                usleep((int) ($wait * 1e6));
            }
        }
    }
}

if (get_included_files()[0] === __FILE__) {
    $options = getopt('', ['in:', 'payload:', 'header:', 'max-attempts:'], $rest);
    if (count($argv) - $rest !== 2) {
        fwrite(STDERR, "usage: producer.php [--in SECONDS] [--payload TEXT] [--header NAME=VALUE]… [--max-attempts N] QUEUE ID\n");
        exit(2);
    }
    [$queue, $id] = array_slice($argv, $rest);
    $headers = [];
    foreach ((array) ($options['header'] ?? []) as $header) {
        [$name, $value] = explode('=', $header, 2) + [1 => ''];
        $headers[$name] = $value;
    }
    $producer = new Producer(getenv('DUESTREAM_REDIS_URL') ?: 'redis://127.0.0.1:6379', $queue, getenv('DUESTREAM_PREFIX') ?: 'duestream');
    $dueMs = $producer->inMs((int) ceil(($options['in'] ?? 0) * 1000));
    $maxAttempts = isset($options['max-attempts']) ? (int) $options['max-attempts'] : null;
    if (!$producer->schedule($id, $dueMs, $options['payload'] ?? '', $headers, $maxAttempts)) {
        fwrite(STDERR, "producer.php: $id is scheduled already\n");
        exit(1);
    }
    echo "$id is due at $dueMs\n";
}
