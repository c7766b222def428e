#!/usr/bin/env ruby
# frozen_string_literal: true

# Schedules a message from Ruby with redis-rb 4.8 (Debian: ruby-redis). It uses the functions library where that is loaded, or else plain commands.
#
#   ruby producer.rb emails order-42 --in 900 --payload 'close the order' --header kind=order
#
# If a message with this ID is still scheduled, the library refuses the ID, and plain commands replace the message.
# DUESTREAM_REDIS_URL and DUESTREAM_PREFIX are as for worker.rb.

require "json"
require "optparse"
require "redis"
require "securerandom"
require "zlib"

module Duestream
  # Schedules messages of one queue. When a broken connection or a starting server interrupts a call, it repeats the call for some seconds, and
  # then raises. The library recognizes a repeated call. Plain commands schedule a message again if it was delivered before the repetition.
  class Producer
    REFRESH = 5 # seconds until a new partition is noticed
    # The errors of a broken connection, besides redis-rb's own.
    BROKEN = [SystemCallError, IOError, SocketError, *(OpenSSL::SSL::SSLError if defined?(OpenSSL::SSL))].freeze

    def initialize(redis, queue, prefix: "duestream", patience: 15)
      @redis, @queue, @prefix, @patience = redis, queue, prefix, patience
      @counts, @refresh_at, @done = [1], 0, {}
    end

    # Returns true if the message was scheduled, and false if the library refuses the ID: a message with this ID is
    # scheduled, or was scheduled within its dedup_ms.
    def schedule(id, due_ms, payload: "", headers: {}, max_attempts: nil, expires_ms: nil, dedup_ms: 0)
      meta = headers.to_h { |name, value| ["h:#{name}", value.to_s] } # all values are strings
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

    # Returns a point in time by the server's clock, because that clock decides.
    def in_ms(delay)
      seconds, micros = @redis.time
      seconds * 1000 + micros / 1000 + delay
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def write(key, id, due_ms, payload, meta)
      @redis.multi do |transaction| # a bridge never sees only a part of it
        # The fields that an earlier message with this ID left behind are overwritten or deleted.
        payload.empty? ? transaction.hdel("#{key}payload", id) : transaction.hset("#{key}payload", id, payload)
        meta.empty? ? transaction.hdel("#{key}meta", id) : transaction.hset("#{key}meta", id, meta)
        transaction.zadd("#{key}due", due_ms, id) # after the body
        transaction.xadd("#{key}wake", { "due_ms" => due_ms }, maxlen: 1, approximate: false)
      end
      true
    end

    # Does the same as write, with the library. Returns nil if the library is not loaded.
    def call(key, token, id, due_ms, payload, meta, dedup_ms)
      return unless @functions

      names = %w[due payload meta stream wake seen policy].map { |name| key + name }
      verdict, = @redis.call("FCALL", "duestream_schedule", 7, *names, token, @done.fetch(key, ""), 60_000, id, due_ms, payload, meta, dedup_ms)
      raise ArgumentError, "malformed: #{meta}" if verdict.negative?

      @done[key] = token # the next call tells the server to forget this token
      verdict.positive?
    rescue Redis::CommandError => e
      raise unless e.message.match?(/\A(ERR Function not found|ERR unknown command|NOPERM)/)

      @functions = nil
    end

    # Registers the queue with the bridges, which would otherwise find it within seconds or minutes, and reads its partition count.
    def refresh
      @functions = true # the library is tried until a function is not found
      @refresh_at = now + REFRESH
      if @redis.hsetnx("#{@prefix}:queues", @queue, "1")
        @redis.xadd("#{@prefix}:wake", { "queues" => 1 }, maxlen: 1, approximate: false)
      end
      registered, deleted = [@queue, "/deleted/#{@queue}"].map do |field|
        @redis.hget("#{@prefix}:queues", field).to_s.split(",").map(&:to_i).select { |n| n.between?(1, 256) }
      end
      # Keep the counts that the registry has lost. Drop the counts of a deleted queue.
      @counts = [1] | (@counts - deleted) | registered
    rescue Redis::CommandError => e
      raise unless e.message.start_with?("NOPERM") # a user who may not read the registry uses the first partition
    end

    # Returns the name of the message's partition, as in its keys.
    def partition(id)
      i = Zlib.crc32(id) % @counts.max
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
