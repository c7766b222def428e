<?php
// How a worker in PHP extends: a handler keeps the only thread there is, also in calls that no signal interrupts, so the visibility
// timeouts are started anew by a child process with a connection of its own. It ends with its worker, however that ends.

declare(strict_types=1);

namespace Duestream;

final class Extender
{
    /** @var resource */
    private $pipe;
    private int $child = 0;
    /** @var array<string, string> what the child has to extend: entry => the line that tells it so */
    private array $held = [];
    private array $lost = [];

    /** @param \Closure(): void $disconnect closes the worker's connection before the child is started: both processes would write to it */
    public function __construct(
        private readonly string $url,
        private readonly Policy $policy,
        private readonly string $queue,
        private readonly string $consumer,
        private readonly \Closure $disconnect,
    ) {
        $this->start();
    }

    private function start(): void
    {
        ($this->disconnect)();
        $worker = getmypid();
        [$this->pipe, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        $this->child = pcntl_fork();
        if ($this->child === -1) {
            throw new \RuntimeException('no child process for extending');
        }
        if ($this->child === 0) {
            pcntl_signal(SIGTERM, SIG_IGN); // what a worker finishes after a stop is still extended
            pcntl_signal(SIGINT, SIG_IGN);
            fclose($this->pipe);
            fclose(STDOUT);
            self::extend($theirs, $worker, $this->url, $this->policy, $this->queue, $this->consumer);
            exit(0);
        }
        fclose($theirs);
    }

    /** @param Message[] $messages */
    public function hold(array $messages): void
    {
        $this->lost = $this->held = [];
        foreach ($messages as $message) {
            $this->held["$message->queue $message->entry"] = "+ $message->queue $message->entry " . rawurlencode($message->id) . "\n";
        }
        $this->tell($this->held);
    }

    public function drop(Message $message): void
    {
        unset($this->held["$message->queue $message->entry"]);
        $this->tell(["- $message->queue $message->entry\n"]);
    }

    public function isLost(Message $message): bool
    {
        $this->listen();
        return isset($this->lost["$message->queue $message->entry\n"]);
    }

    private function tell(array $lines): void
    {
        do {
            $this->listen();
        } while ($lines && @fwrite($this->pipe, implode($lines)) === false);
    }

    private function listen(): void
    {
        for ($read = [$this->pipe], $none = null; stream_select($read, $none, $none, 0) && ($line = fgets($this->pipe)) !== false;) {
            $this->lost[$line] = true;
        }
        if (feof($this->pipe)) { // somebody has killed it
            fwrite(STDERR, "worker.php: the process that extends has ended, and is started again\n");
            fclose($this->pipe);
            pcntl_waitpid($this->child, $status);
            $this->start();
            fwrite($this->pipe, implode($this->held));
        }
    }

    /**
     * The child: extends what is held at a third of the visibility timeout, until the worker has ended, whose end of the pipe may live on in
     * a process that a handler has started.
     */
    private static function extend($pipe, int $worker, string $url, Policy $policy, string $queue, string $consumer): void
    {
        $redis = null;
        for ($held = [], $next = 0; posix_getppid() === $worker;) {
            [$read, $none, $wait] = [[$pipe], null, max(0, (int) (($next - now()) * 1e6))];
            if (stream_select($read, $none, $none, intdiv($wait, 1_000_000), $wait % 1_000_000)) {
                if (($line = fgets($pipe)) === false) {
                    return;
                }
                [$sign, $of, $entry, $id] = explode(' ', rtrim($line)) + [3 => ''];
                if ($sign === '+') {
                    $held[$of][$entry] = urldecode($id);
                } else {
                    unset($held[$of][$entry]);
                }
            }
            if (now() < $next) {
                continue;
            }
            try {
                $redis ??= connect($url);
                foreach (array_filter($held) as $of => $entries) {
                    foreach (self::lost($redis, $policy, $consumer, $of, $entries) as $entry) {
                        fwrite($pipe, "$of $entry\n");
                        unset($held[$of][$entry]);
                    }
                }
                $next = now() + min($policy->get($redis, $queue, 'visibility_ms') / 3000, 5); // 5 s: until a new setting is noticed
            } catch (\Throwable $e) { // whatever it is: this process must not end before its worker
                fwrite(STDERR, "worker.php: extend: {$e->getMessage()}\n");
                $redis = null;
                $next = now() + 0.5;
            }
        }
    }

    /** Extends entries of a queue or partition, by the library or else by XCLAIM. Returns those that are somebody else's now. */
    private static function lost(\Redis $redis, Policy $policy, string $consumer, string $queue, array $ids): array
    {
        [$stream, $dead, $entries, $pairs] = [$policy->key($queue, 'stream'), $policy->key($queue, 'dead'), array_keys($ids), []];
        foreach ($ids as $entry => $id) {
            array_push($pairs, $entry, $id);
        }
        $extended = fcall($redis, 'extend', [$stream, $dead], [$policy->group, $consumer, ...$pairs]);
        if ($extended !== null) {
            return array_keys(array_combine($entries, $extended), 0);
        }
        return array_diff($entries, checked($redis, $redis->xClaim($stream, $policy->group, $consumer, 0, $entries, ['JUSTID'])));
    }
}
