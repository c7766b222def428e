<?php
// The settings and key names that worker.php and extender.php look up.

declare(strict_types=1);

namespace Duestream;

/** Key names, and the settings of a group. */
final class Policy
{
    private const TEN_YEARS = 315_360_000_000;
    private const SETTINGS = [ // built-in value, minimum, maximum
        'visibility_ms' => [30_000, 100, 604_800_000],
        'max_attempts' => [40, 1, 1_000_000],
        'retry_min_ms' => [1000, 1, self::TEN_YEARS],
        'retry_max_ms' => [3_600_000, 1, self::TEN_YEARS],
        'retry_for_ms' => [0, 0, self::TEN_YEARS],
    ];

    public function __construct(private readonly string $prefix, public readonly string $group)
    {
    }

    public function key(string $queue, string $name): string
    {
        return "$this->prefix:{{$queue}}:$name";
    }

    /** Returns the setting of the group, the queue or the defaults, or else the built-in value. Values outside the limits are ignored. */
    public function get(\Redis $redis, string $queue, string $name): int
    {
        [$builtIn, $least, $most] = self::SETTINGS[$name];
        foreach ($this->levels($redis, $queue, $name) as $value) {
            if (is_string($value) && ctype_digit($value) && $value >= $least && $value <= $most) {
                return (int) $value;
            }
        }
        return $builtIn;
    }

    /** Returns the values of a setting on all levels. The first one takes precedence. */
    private function levels(\Redis $redis, string $queue, string $name): array
    {
        $own = checked($redis, $redis->hMGet($this->key($queue, 'policy'), ['group:' . rawurlencode($this->group) . ":$name", $name]));
        $defaults = checked($redis, $redis->hMGet("$this->prefix:defaults", [$name]));
        return [...array_values($own), ...array_values($defaults)];
    }

    /** Returns the limit of attempts, and the limit of a message's age if the policy has one. */
    public function limits(\Redis $redis, Message $message): string
    {
        $limit = $this->get($redis, $message->queue, 'retry_for_ms');
        return $this->get($redis, $message->queue, 'max_attempts') . ($limit > 0 ? " retry_for_ms=$limit" : '');
    }

    /** Returns the delays after failed attempts, in milliseconds, separated by commas: the policy's list, or the delay after this attempt. */
    public function delays(\Redis $redis, Message $message): string
    {
        foreach ($this->levels($redis, $message->queue, 'retry_delays_ms') as $value) {
            if (is_string($value) && preg_match('/^\d+(,\d+)*$/D', $value)) {
                if ($value === '0') { // 0 = no list; lists of further levels do not count either
                    break;
                }
                return $value;
            }
        }
        $least = $this->get($redis, $message->queue, 'retry_min_ms');
        $most = $this->get($redis, $message->queue, 'retry_max_ms');
        return (string) min((int) ceil($least * 2 ** min($message->attempt - 1, 40) * random_int(50, 150) / 100), $most);
    }
}
