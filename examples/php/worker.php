#!/usr/bin/env php
<?php
// A duestream worker in PHP: phpredis (Debian: php-cli, php-redis) and the commands XREADGROUP, XACK and XCLAIM.
//
//   QUEUE=emails GROUP=billing php worker.php
//
// The function given to Worker::run does the work of one message. When it returns, the message is acknowledged. When it throws, the message
// stays pending and is delivered again after the visibility timeout. Where the functions library of duestream is loaded, a message whose handler
// throws is delivered again after the backoff, or after the delay of a Duestream\Retry. Duestream\DeadLetter makes a dead letter of it at once.
// Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop the worker after the current message, and end its sleep() early.
//
// DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
// QUEUE, GROUP         required                               CONSUMER          default host-process
// BATCH                messages read in one call, of each partition; default 10
// ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
// FAIL_ONCE_PERCENT    this share of first attempts fails, to show that messages come back; default 0

declare(strict_types=1);

namespace Duestream;

require_once __DIR__ . '/connect.php';
require_once __DIR__ . '/extender.php';
require_once __DIR__ . '/policy.php';

final class Message
{
    /** @param array<string, string> $headers */
    public function __construct(
        public readonly string $queue, // the name of the queue or of one of its partitions, as in their keys
        public readonly string $entry,
        public readonly string $id,
        public readonly string $payload,
        public readonly int $attempt,
        public readonly array $headers,
        public readonly string $for,
    ) {
    }
}

/** A handler throws this to have its message dead-lettered. */
final class DeadLetter extends \Exception
{
}

/** A handler throws this to have its message delivered again after this delay, in seconds. */
final class Retry extends \Exception
{
    public function __construct(string $text, public readonly float $delay)
    {
        parent::__construct($text);
    }
}

/**
 * Reads all partitions of a queue as one consumer of a group, and handles the messages one after the other. This does not work on a cluster,
 * where each partition needs its own read and its own process.
 */
final class Worker
{
    private const REFRESH = 5; // seconds until a new partition or a loaded library is noticed
    private const GRACE = 5; // for so many seconds after a stop, messages that cannot be released are still begun

    private ?\Redis $redis = null;
    private ?Extender $extender = null;
    /** @var string[] the names of the partitions, as in their keys */
    private array $queues = [];
    /** @var array<string, string> by partition: the last entry that the group had been given before this worker began to read */
    private array $starts = [];
    private bool $functions = false; // whether the library is loaded, and this user may call it
    private float $joinAt = 0;
    private ?float $beginUntil = null;
    private int $failures = 0;
    private readonly Policy $policy;

    public function __construct(
        private readonly string $url,
        private readonly string $queue,
        private readonly string $group,
        private readonly string $consumer,
        private readonly string $prefix = 'duestream',
        private readonly int $batch = 10,
    ) {
        $this->policy = new Policy($prefix, $group);
    }

    /**
     * Handles messages until stop is called, and calls $acknowledged with each message that is done.
     *
     * @param callable(Message, self): void $handler
     * @param ?callable(Message): void $acknowledged
     */
    public function run(callable $handler, ?callable $acknowledged = null): void
    {
        $this->extender = new Extender($this->url, $this->policy, $this->queue, $this->consumer, fn() => $this->redis = null);
        while ($this->beginUntil === null) {
            try {
                $this->redis ??= connect($this->url);
                if (now() >= $this->joinAt) {
                    $fresh = $this->joinAt === 0.0; // the first time, and after an error
                    $this->join();
                    $this->workOn($fresh ? $this->unseen() : [], $handler, $acknowledged);
                }
                $this->workOn($this->read(), $handler, $acknowledged);
                $this->failures = 0;
            } catch (\RedisException $e) {
                // A lost group is always created again at 0. Before 7.2, a key that is deleted during a blocked read gives UNBLOCKED.
                $this->joinAt = 0;
                if (preg_match('/^(NOGROUP|UNBLOCKED)/', $e->getMessage())) {
                    $this->redis?->clearLastError();
                } else {
                    $this->pause($e);
                }
            }
        }
    }

    /** Makes run end. A signal handler may call it. */
    public function stop(): void
    {
        $this->beginUntil ??= now() + self::GRACE;
    }

    /** Returns whether a message was given to another worker while it is being handled. A long handler may ask this. */
    public function isLost(Message $message): bool
    {
        return $this->extender->isLost($message);
    }

    /** Registers the queue, reads its partition count, and creates the group in each partition. */
    private function join(): void
    {
        // The partitions that this worker already serves stay, also after the queue was deleted.
        $count = max(count($this->queues), ...register($this->redis, $this->prefix, $this->queue, [1]));
        $this->queues = array_map(fn(int $i) => $i ? "$this->queue/$i" : $this->queue, range(0, $count - 1));
        $this->functions = fcall($this->redis, 'version', [], []) !== null;
        foreach ($this->queues as $queue) {
            try {
                checked($this->redis, $this->redis->xGroup('CREATE', $this->policy->key($queue, 'stream'), $this->group, '0', true));
                $this->starts[$queue] = '0-0';
            } catch (\RedisException $e) {
                str_starts_with($e->getMessage(), 'BUSYGROUP') ?: throw $e;
                if ($this->functions) { // only used with the library; without it the user may lack permission for XINFO
                    $this->starts[$queue] ??= $this->lastDelivered($queue);
                }
            }
        }
        $this->joinAt = now() + self::REFRESH;
    }

    /** Returns the ID of the last entry that the group was given. */
    private function lastDelivered(string $queue): string
    {
        $groups = checked($this->redis, $this->redis->xInfo('GROUPS', $this->policy->key($queue, 'stream')));
        return array_column($groups, 'last-delivered-id', 'name')[$this->group];
    }

    /**
     * Returns the messages that a cut connection kept from this worker: they are pending, and nobody works on them. Without the library, they
     * cannot be distinguished from messages that have failed. Reading them again with XREADGROUP would count as an attempt. The entries that a
     * crashed worker of the same name held are before the start. The bridges take these entries back, and count that
     * as an attempt.
     *
     * @return Message[]
     */
    private function unseen(): array
    {
        $messages = [];
        foreach ($this->functions ? $this->queues : [] as $queue) {
            $stream = $this->policy->key($queue, 'stream');
            $pending = checked($this->redis, $this->redis->xPending($stream, $this->group, '(' . $this->starts[$queue], '+', $this->batch, $this->consumer));
            foreach ($pending as [$entry]) {
                $keys = [$stream, $this->policy->key($queue, 'dead')];
                if (fcall($this->redis, 'extend', $keys, [$this->group, $this->consumer, $entry, '']) === [1]) {
                    foreach (checked($this->redis, $this->redis->xRange($stream, $entry, $entry)) as $fields) {
                        $messages[] = $this->message($queue, $entry, $fields);
                    }
                }
            }
        }
        return $messages;
    }

    /** @return Message[] */
    private function read(): array
    {
        $this->redis ??= connect($this->url); // a restart of the extending process may have closed the connection
        $messages = $streams = [];
        foreach ($this->queues as $queue) {
            $streams[$this->policy->key($queue, 'stream')] = '>';
        }
        $reply = checked($this->redis, $this->redis->xReadGroup($this->group, $this->consumer, $streams, $this->batch, 1000));
        foreach ($this->queues as $queue) {
            foreach ($reply[$this->policy->key($queue, 'stream')] ?? [] as $entry => $fields) {
                $messages[] = $this->message($queue, $entry, $fields);
            }
        }
        return $messages;
    }

    private function message(string $queue, string $entry, array $fields): Message
    {
        $headers = [];
        foreach ($fields as $name => $value) {
            if (str_starts_with((string) $name, 'h:')) {
                $headers[substr($name, 2)] = $value;
            }
        }
        return new Message($queue, $entry, $fields['id'] ?? $entry, $fields['payload'] ?? '', (int) ($fields['attempt'] ?? 1), $headers,
            $fields['for'] ?? '');
    }

    /** @param Message[] $messages */
    private function workOn(array $messages, callable $handler, ?callable $acknowledged): void
    {
        $this->extender->hold($messages);
        foreach ($messages as $message) {
            // a retry for another group is only acknowledged
            if ($message->for !== '' && $message->for !== $this->group) {
                $this->persist(fn() => $this->acknowledge($message));
            } elseif (!$this->isLost($message) && ($this->beginUntil === null || !$this->release($message) && now() < $this->beginUntil)) {
                $this->handle($message, $handler, $acknowledged);
            }
            $this->extender->drop($message);
        }
    }

    private function handle(Message $message, callable $handler, ?callable $acknowledged): void
    {
        $error = null;
        try {
            $handler($message, $this);
        } catch (\Throwable $error) {
            fwrite(STDERR, "worker.php: $message->id: {$error->getMessage()}\n");
        }
        $verdict = $this->persist(fn() => $this->settle($message, $error));
        if ($verdict === 0) {
            fwrite(STDERR, "worker.php: $message->id: lost, it is delivered again\n");
        } elseif ($verdict === 1 && $error === null && $acknowledged !== null) {
            $acknowledged($message);
        }
    }

    /** Reports how the work of a message ended. Returns 0 if the message was lost meanwhile, and null if it stays pending. */
    private function settle(Message $message, ?\Throwable $error): ?int
    {
        if ($error === null) {
            return $this->leave('ack', $message, keys: ['stream']) ?? $this->acknowledge($message);
        }
        if ($error instanceof DeadLetter) {
            return $this->leave('dead_letter', $message, [$error->getMessage()]);
        }
        if (!$this->functions) {
            return null;
        }
        $delay = $error instanceof Retry ? (int) ceil($error->delay * 1000) : '';
        return $this->leave('retry', $message, ['retry', $delay, 'max_attempts', $error->getMessage()],
            [$this->policy->limits($this->redis, $message), $this->policy->delays($this->redis, $message)]);
    }

    private function release(Message $message): bool
    {
        return $this->persist(fn() => $this->leave('release', $message)) !== null;
    }

    private function acknowledge(Message $message): int
    {
        return checked($this->redis, $this->redis->xAck($this->policy->key($message->queue, 'stream'), $this->group, [$message->entry]));
    }

    /** Calls a function that takes a message out of the pending list. Returns null if the library is not loaded. */
    private function leave(string $function, Message $message, array $how = [], array $options = [],
        array $keys = ['stream', 'due', 'payload', 'meta', 'dead', 'wake', 'turns', 'policy', 'history']): ?int
    {
        if (!$this->functions) {
            return null;
        }
        $names = array_map(fn(string $name) => $this->policy->key($message->queue, $name), $keys);
        $arguments = [$this->group, ...$options, $message->entry, $message->id, ...$how];
        $actor = in_array('history', $keys, true) ? ["worker $this->consumer"] : [];
        try {
            $reply = fcall($this->redis, $function, $names, [...$arguments, ...$actor]);
        } catch (\RedisException $e) {
            str_contains($e->getMessage(), ' was given ') ?: throw $e;
            $reply = fcall($this->redis, $function, array_slice($names, 0, 6), $arguments); // a library of an earlier release
        }
        $this->functions = $reply !== null;
        return $reply[0] ?? null;
    }

    /** Repeats a call that must not be lost until Redis has executed it. All these calls are harmless to repeat. */
    private function persist(\Closure $do): ?int
    {
        while (true) {
            try {
                $this->redis ??= connect($this->url);
                return $do();
            } catch (\RedisException $e) {
                if ($this->beginUntil !== null && now() > $this->beginUntil) {
                    return null;
                }
                $this->pause($e);
            }
        }
    }

    /** Waits after an error, longer each time, and makes the next command reconnect. A signal ends the wait. */
    private function pause(\RedisException $e): void
    {
        fwrite(STDERR, "worker.php: {$e->getMessage()}\n");
        $this->redis = null;
        usleep((int) (min(0.1 * 2 ** ++$this->failures, $this->beginUntil === null ? 5 : 0.5) * random_int(500_000, 1_000_000)));
    }
}

if (get_included_files()[0] === __FILE__) {
    foreach (['QUEUE', 'GROUP'] as $name) {
        if (!getenv($name)) {
            fwrite(STDERR, "worker.php: set $name; see the beginning of this file\n");
            exit(2);
        }
    }
    $worker = new Worker(getenv('DUESTREAM_REDIS_URL') ?: 'redis://127.0.0.1:6379', getenv('QUEUE'), getenv('GROUP'),
        getenv('CONSUMER') ?: gethostname() . '-' . getmypid(), getenv('DUESTREAM_PREFIX') ?: 'duestream', (int) (getenv('BATCH') ?: 10));
    pcntl_async_signals(true);
    pcntl_signal(SIGTERM, $worker->stop(...));
    pcntl_signal(SIGINT, $worker->stop(...));

    $percent = (float) getenv('FAIL_ONCE_PERCENT');
    $log = getenv('ACK_LOG') ? fopen(getenv('ACK_LOG'), 'a') : null;
    $worker->run(
        function (Message $message) use ($percent): void {
            // The work of one message. A message may be delivered again, so doing the work twice must be harmless.
            if ($message->attempt === 1 && random_int(0, 999_999) < $percent * 10_000) {
                throw new \RuntimeException('failing once, as asked');
            }
        },
        function (Message $message) use ($log): void {
            echo "$message->id $message->attempt\n";
            if ($log) {
                fwrite($log, "$message->id $message->attempt $message->entry\n");
            }
        },
    );
}
