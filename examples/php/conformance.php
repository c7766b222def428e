#!/usr/bin/env php
<?php
// Runs the example's worker or producer in the form that `duestream conformance` tests. Standard output has only the
// JSON lines that the test reads.
//
//   duestream conformance --worker --level complete -- php examples/php/conformance.php worker
//   duestream conformance --producer --level complete -- php examples/php/conformance.php producer

declare(strict_types=1);

use Duestream\{DeadLetter, Message, Producer, Retry, Worker};
use function Duestream\now;

require_once __DIR__ . '/producer.php';
require_once __DIR__ . '/worker.php';

const FLAGS = JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES;
ini_set('display_errors', 'stderr');
$url = getenv('DUESTREAM_REDIS_URL') ?: 'redis://127.0.0.1:6379';
$prefix = getenv('DUESTREAM_PREFIX') ?: 'duestream';

function work(Message $message): void
{
    // The header is KIND NUMBER, such as "slow 300" (milliseconds) or "fail 2" (attempts). Without a number it is 0.
    [$kind, $number] = explode(' ', ($message->headers['work'] ?? 'ok') . ' 0');
    for ($until = now() + ($kind === 'slow' ? (int) $number / 1000 : 0); ($left = $until - now()) > 0;) {
        usleep((int) ceil($left * 1e6)); // a signal ends usleep early
    }
    match (true) {
        $kind === 'fail' && $message->attempt <= (int) $number => throw new RuntimeException('asked to fail'),
        $kind === 'retry' && $message->attempt === 1 => throw new Retry('asked to retry', (int) $number / 1000),
        $kind === 'dead' => throw new DeadLetter('asked to die'),
        default => null,
    };
}

if (($argv[1] ?? '') === 'worker') {
    $worker = new Worker($url, getenv('QUEUE'), getenv('GROUP'), getenv('CONSUMER'), $prefix);
    pcntl_async_signals(true);
    pcntl_signal(SIGTERM, $worker->stop(...));
    $worker->run(function (Message $message): void {
        echo json_encode(['id' => $message->id, 'attempt' => $message->attempt, 'payload' => base64_encode($message->payload),
            'headers' => (object) $message->headers], FLAGS), "\n";
        work($message);
    });
} elseif (($argv[1] ?? '') === 'producer') {
    $producer = new Producer($url, getenv('QUEUE'), $prefix);
    while (($line = fgets(STDIN)) !== false) {
        $m = json_decode($line, true, flags: FLAGS);
        try {
            $taken = $producer->schedule($m['id'], $m['due_ms'], base64_decode($m['payload'] ?? ''), $m['headers'] ?? [], $m['max_attempts'] ?? null,
                $m['expires_ms'] ?? null, $m['dedup_ms'] ?? 0);
            $answer = ['id' => $m['id'], 'ok' => $taken] + ($taken ? [] : ['error' => 'scheduled already']);
        } catch (Exception $e) {
            $answer = ['id' => $m['id'], 'ok' => false, 'error' => $e->getMessage()];
        }
        echo json_encode($answer, FLAGS), "\n";
    }
} else {
    fwrite(STDERR, "usage: conformance.php worker|producer\n");
    exit(2);
}
