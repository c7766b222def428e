#!/usr/bin/env ruby
# frozen_string_literal: true

# Schedules a message from Ruby: redis-rb 4.8 (Debian: ruby-redis), with plain commands, or by the functions library where it is loaded.
#
#   ruby producer.rb emails order-42 --in 900 --payload 'close the order' --header kind=order
#
# An ID that is still scheduled is refused by the library, and written over by plain commands.
# DUESTREAM_REDIS_URL and DUESTREAM_PREFIX as for worker.rb.

require "json"
require "optparse"
require "redis"
require "securerandom"
require "zlib"

module Duestream
  # Schedules messages of one queue. It repeats what a broken connection or a starting server interrupts for some seconds, then raises.
  # The library knows a call that is repeated; plain commands schedule once more what was delivered before the repetition.
  class Producer
    REFRESH = 5 # seconds until a new partition is noticed
    # What a broken connection ends in, beside redis-rb's own errors.
    BROKEN = [SystemCallError, IOError, SocketError, *(OpenSSL::SSL::SSLError if defined?(OpenSSL::SSL))].freeze

    def initialize(redis, queue, prefix: "duestream", patience: 15)
      @redis, @queue, @prefix, @patience = redis, queue, prefix, patience
      @count, @refresh_at, @done = 1, 0, {}
    end

    # True: the message is scheduled. False: one of this ID is already, as the library says, or was within its dedup_ms.
    def schedule(id, due_ms, payload: "", headers: {}, max_attempts: nil, expires_ms: nil, dedup_ms: 0)
      meta = headers.to_h { |name, value| ["h:#{name}", value.to_s] } # strings all of them
      meta["max_attempts"] = max_attempts.to_s if max_attempts
      meta["expires_ms"] = expires_ms.to_s if expires_ms
      meta = meta.empty? ? "" : JSON.generate(meta)
      patiently { refresh if now >= @refresh_at }
      key, token = "#{@prefix}:{#{partition(id)}}:", SecureRandom.uuid
      patiently do
        taken = call(key, token, id, due_ms, payload, meta, dedup_ms)
        taken.nil? ? write(key, id, due_ms, payload, meta) : taken
      end
    end

    # A point in time by the server's clock, which decides.
    def in_ms(delay)
      seconds, micros = @redis.time
      seconds * 1000 + micros / 1000 + delay
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def write(key, id, due_ms, payload, meta)
      @redis.multi do |transaction| # a bridge never sees a part of it
        # What an earlier message of this ID has left is overwritten, or deleted.
        payload.empty? ? transaction.hdel("#{key}payload", id) : transaction.hset("#{key}payload", id, payload)
        meta.empty? ? transaction.hdel("#{key}meta", id) : transaction.hset("#{key}meta", id, meta)
        transaction.zadd("#{key}due", due_ms, id) # after the body
        transaction.xadd("#{key}wake", { "due_ms" => due_ms }, maxlen: 1, approximate: false)
      end
      true
    end

    # The same by the library. nil: it is not there.
    def call(key, token, id, due_ms, payload, meta, dedup_ms)
      return unless @functions

      names = %w[due payload meta stream wake seen policy].map { |name| key + name }
      verdict, = @redis.call("FCALL", "duestream_schedule", 7, *names, token, @done.fetch(key, ""), 60_000, id, due_ms, payload, meta, dedup_ms)
      raise ArgumentError, "malformed: #{meta}" if verdict.negative?

      @done[key] = token # need not be remembered any longer
      verdict.positive?
    rescue Redis::CommandError => e
      raise unless e.message.match?(/\A(ERR Function not found|ERR unknown command|NOPERM)/)

      @functions = nil
    end

    # Makes the queue known to the bridges, which otherwise find it by themselves within seconds or minutes, and learns its partitions.
    def refresh
      @functions = true # until one is not found
      @refresh_at = now + REFRESH
      if @redis.hsetnx("#{@prefix}:queues", @queue, "1")
        @redis.xadd("#{@prefix}:wake", { "queues" => 1 }, maxlen: 1, approximate: false)
      end
      counts = @redis.hget("#{@prefix}:queues", @queue).to_s.split(",").map(&:to_i)
      @count = [@count, *counts.select { |n| n <= 256 }].max # never fewer than before
    rescue Redis::CommandError => e
      raise unless e.message.start_with?("NOPERM") # who may not read it uses the first one
    end

    # The name under which the partition of a message has its keys.
    def partition(id)
      i = Zlib.crc32(id) % @count
      i.zero? ? @queue : "#{@queue}/#{i}"
    end

    def patiently
      give_up_at = now + @patience
      wait = 0.05
      begin
        yield
      rescue Redis::BaseError, *BROKEN => e
        broken = !e.is_a?(Redis::CommandError) || e.message.start_with?("LOADING", "READONLY", "MASTERDOWN")
        raise if !broken || now >= give_up_at

        @refresh_at = 0
        sleep(wait = [wait * 2, 1].min)
        retry
      end
    end
  end
end

if $PROGRAM_NAME == __FILE__
  delay, message = 0, { headers: {} }
  options = OptionParser.new("Usage: producer.rb QUEUE ID [options]") do |o|
    o.on("--in SECONDS", Float) { |seconds| delay = (seconds * 1000).ceil }
    o.on("--payload TEXT") { |text| message[:payload] = text }
    o.on("--header NAME=VALUE") { |header| message[:headers].store(*header.split("=", 2)) }
    o.on("--max-attempts N", Integer) { |n| message[:max_attempts] = n }
  end
  queue, id = options.parse!
  abort options.help unless id

  redis = Redis.new(url: ENV.fetch("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379"))
  producer = Duestream::Producer.new(redis, queue, prefix: ENV.fetch("DUESTREAM_PREFIX", "duestream"))
  due_ms = producer.in_ms(delay)
  producer.schedule(id, due_ms, **message) or abort "producer.rb: #{id} is scheduled already"
  puts "#{id} is due at #{due_ms}"
end
