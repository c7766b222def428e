<?php
// What worker.php and extender.php look up.

declare(strict_types=1);

namespace Duestream;

/** Key names, and the settings of a group. */
final class Policy
{
    private const TEN_YEARS = 315_360_000_000;
    private const SETTINGS = [ // built in, least, most
        'visibility_ms' => [30_000, 100, 604_800_000],
        'max_attempts' => [40, 1, 1_000_000],
        'retry_min_ms' => [1000, 1, self::TEN_YEARS],
        'retry_max_ms' => [3_600_000, 1, self::TEN_YEARS],
    ];

    public function __construct(private readonly string $prefix, public readonly string $group)
    {
    }

    public function key(string $queue, string $name): string
    {
        return "$this->prefix:{{$queue}}:$name";
    }

    /** The group's own setting, the queue's, the defaults', or the built-in one. What is outside its limits is passed over. */
    public function get(\Redis $redis, string $queue, string $name): int
    {
        [$builtIn, $least, $most] = self::SETTINGS[$name];
        $own = checked($redis, $redis->hMGet($this->key($queue, 'policy'), ['group:' . rawurlencode($this->group) . ":$name", $name]));
        $defaults = checked($redis, $redis->hMGet("$this->prefix:defaults", [$name]));
        foreach ([...array_values($own), ...array_values($defaults)] as $value) {
            if (is_string($value) && ctype_digit($value) && $value >= $least && $value <= $most) {
                return (int) $value;
            }
        }
        return $builtIn;
    }

    /** The delay after a failed attempt, in milliseconds. */
    public function backoff(\Redis $redis, Message $message): int
    {
        $least = $this->get($redis, $message->queue, 'retry_min_ms');
        $most = $this->get($redis, $message->queue, 'retry_max_ms');
        return min((int) ceil($least * 2 ** min($message->attempt - 1, 40) * random_int(50, 150) / 100), $most);
    }
}
