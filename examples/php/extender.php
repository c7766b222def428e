<?php
// Extends the visibility timeouts for a worker in PHP. A handler occupies the only thread, even in calls that no
// signal interrupts. So a child process with its own connection restarts the timeouts. The child ends when its worker
// ends, also when the worker is killed.

declare(strict_types=1);

namespace Duestream;

final class Extender
{
    /** @var resource */
    private $pipe;
    private int $child = 0;
    /** @var array<string, string> what the child has to extend: entry => the line that was sent to it */
    private array $held = [];
    /** @var array<string, true> the lines that the child sent for lost messages */
    private array $lost = [];

    /** @param \Closure(): void $disconnect closes the worker's connection before the child starts, because both processes would write to it */
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
            pcntl_signal(SIGTERM, SIG_IGN); // messages that the worker finishes after a stop are still extended
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
        if (feof($this->pipe)) { // the child was killed
            fwrite(STDERR, "worker.php: the process that extends has ended, and is started again\n");
            fclose($this->pipe);
            pcntl_waitpid($this->child, $status);
            $this->start();
            fwrite($this->pipe, implode($this->held));
        }
    }

    /**
     * Runs in the child. It extends the held messages whenever a third of the visibility timeout has passed, until the worker has ended. The end of
     * the pipe does not show this reliably, because a process that a handler started may keep the pipe open.
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
                $next = now() + min($policy->get($redis, $queue, 'visibility_ms') / 3000, 5); // at most 5 s, to notice new settings
            } catch (\Throwable $e) { // errors of any kind, because this process must not end before its worker
                fwrite(STDERR, "worker.php: extend: {$e->getMessage()}\n");
                $redis = null;
                $next = now() + 0.5;
            }
        }
    }

    /** Extends entries of a queue or partition with the library, or else with XCLAIM. Returns the entries that another consumer has now. */
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
