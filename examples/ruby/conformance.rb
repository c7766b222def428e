#!/usr/bin/env ruby
# frozen_string_literal: true

# Runs the example's worker or producer in the form that `duestream conformance` tests. Standard output has only the
# JSON lines that the test reads.
#
#   duestream conformance --worker --level complete -- ruby examples/ruby/conformance.rb worker
#   duestream conformance --producer --level complete -- ruby examples/ruby/conformance.rb producer

require "json"
require_relative "producer"
require_relative "worker"

Encoding.default_external = Encoding::UTF_8 # independent of the locale
$stdout.sync = true
url = ENV.fetch("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379")
prefix = ENV.fetch("DUESTREAM_PREFIX", "duestream")
queue = ENV.fetch("QUEUE")

def work(message)
  kind, number = message.headers["work"].to_s.split
  case kind
  when "slow" then sleep number.to_i / 1000.0
  when "fail" then raise "asked to fail" if message.attempt <= number.to_i
  when "retry" then raise Duestream::Retry.new("asked to retry", delay: number.to_i / 1000.0) if message.attempt == 1
  when "dead" then raise Duestream::DeadLetter, "asked to die"
  end
end

case ARGV.first
when "worker"
  worker = Duestream::Worker.new(url, queue: queue, group: ENV.fetch("GROUP"), consumer: ENV.fetch("CONSUMER"), prefix: prefix)
  trap("TERM") { worker.stop }
  worker.run do |message|
    puts JSON.generate(id: message.id, attempt: message.attempt, payload: [message.payload].pack("m0"), headers: message.headers)
    work(message)
  end
when "producer"
  producer = Duestream::Producer.new(Redis.new(url: url), queue, prefix: prefix)
  $stdin.each_line do |line|
    id, due_ms, payload, headers, max_attempts, expires_ms, dedup_ms =
      JSON.parse(line).values_at(*%w[id due_ms payload headers max_attempts expires_ms dedup_ms])
    taken = producer.schedule(id, due_ms, payload: payload.to_s.unpack1("m0"), headers: headers || {}, max_attempts: max_attempts,
                              expires_ms: expires_ms, dedup_ms: dedup_ms || 0)
    puts JSON.generate(taken ? { id: id, ok: true } : { id: id, ok: false, error: "scheduled already" })
  rescue StandardError => e
    puts JSON.generate(id: id, ok: false, error: e.message)
  end
else
  abort "usage: conformance.rb worker|producer"
end
