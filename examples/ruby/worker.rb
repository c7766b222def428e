#!/usr/bin/env ruby
# frozen_string_literal: true

# A duestream worker in Ruby: redis-rb 4.8 (Debian: ruby-redis) and the commands XREADGROUP, XACK and XCLAIM.
#
#   QUEUE=emails GROUP=billing ruby worker.rb
#
# The block given to Worker#run does the work of one message. When it returns, the message is acknowledged. When it raises, the message stays
# pending and is delivered again after the visibility timeout. Where the functions library of duestream is loaded, a message whose handler raises
# is delivered again after the backoff, or after the delay of a Duestream::Retry. Duestream::DeadLetter makes a dead letter of it at once.
# Each acknowledged message prints one line: ID, attempt. SIGTERM and SIGINT stop the worker after the current message.
#
# DUESTREAM_REDIS_URL  default redis://127.0.0.1:6379         DUESTREAM_PREFIX  default duestream
# QUEUE, GROUP         required                               CONSUMER          default host-process
# BATCH                messages read in one call, of each partition; default 10
# ACK_LOG              file that gets "ID attempt entry" after each acknowledgement
# FAIL_ONCE_PERCENT    this share of first attempts fails, to show that messages come back; default 0

require "erb"
require "redis"
require "socket"

module Duestream
  Message = Struct.new(:queue, :entry, :id, :payload, :attempt, :headers, :for, :lost, keyword_init: true)

  # A handler raises this to have its message dead-lettered.
  class DeadLetter < StandardError; end

  # A handler raises this to have its message delivered again after this delay, in seconds.
  class Retry < StandardError
    attr_reader :delay

    def initialize(text, delay:)
      super(text)
      @delay = delay
    end
  end

  # Reads all partitions of a queue as one consumer of a group, and handles the messages one after the other. This does not work on a cluster,
  # where each partition needs its own read and its own connection.
  class Worker
    REFRESH = 5 # seconds until a new partition, a changed setting or a loaded library is noticed
    GRACE = 5 # for so many seconds after a stop, messages that cannot be released are still begun
    TEN_YEARS = 315_360_000_000
    BUILT_IN = { "visibility_ms" => 30_000, "max_attempts" => 40, "retry_min_ms" => 1000, "retry_max_ms" => 3_600_000,
                 "retry_for_ms" => 0 }.freeze
    LIMITS = { "visibility_ms" => 100..604_800_000, "max_attempts" => 1..1_000_000,
               "retry_min_ms" => 1..TEN_YEARS, "retry_max_ms" => 1..TEN_YEARS, "retry_for_ms" => 0..TEN_YEARS }.freeze
    # The errors of a broken connection, besides redis-rb's own.
    BROKEN = [SystemCallError, IOError, SocketError, *(OpenSSL::SSL::SSLError if defined?(OpenSSL::SSL))].freeze

    def initialize(url, queue:, group:, consumer:, prefix: "duestream", batch: 10)
      @url, @queue, @group, @consumer, @prefix, @batch = url, queue, group, consumer, prefix, batch
      @redis = Redis.new(url: url)
      @queues = [queue] # the names of the partitions, as in their keys
      @starts = {} # by partition: the last entry that the group had been given before this worker began to read
      @held, @lock = [], Mutex.new # messages whose visibility timeout must not run out
      @wake, @stop = IO.pipe
      @failures = @join_at = 0
    end

    # Handles messages until stop is called, and calls acknowledged with each message that is done.
    def run(acknowledged: nil, &handler)
      extender = Thread.new { extend_held }
      extender.abort_on_exception = true
      until @stopped_at
        begin
          if now >= @join_at
            fresh = @join_at.zero? # the first time, and after an error
            join
            work_on(unseen, acknowledged, &handler) if fresh
          end
          work_on(read, acknowledged, &handler)
          @failures = 0
        rescue Redis::BaseError, *BROKEN => e
          # A lost group is always created again at 0. Before 7.2, a key that is deleted during a blocked read gives UNBLOCKED.
          @join_at = 0
          pause(e) unless e.message.start_with?("NOGROUP", "UNBLOCKED")
        end
      end
    ensure
      extender&.kill
    end

    # Makes run end. A signal handler may call it.
    def stop
      @stopped_at ||= now
      @stop.write_nonblock(".", exception: false)
    end

    private

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end

    def key(queue, name)
      "#{@prefix}:{#{queue}}:#{name}"
    end

    # Registers the queue, reads its partition count, and creates the group in each partition.
    def join
      if @redis.hsetnx("#{@prefix}:queues", @queue, "1") # the bridges do not know the queue yet
        @redis.xadd("#{@prefix}:wake", { "queues" => 1 }, maxlen: 1, approximate: false)
      end
      counts = @redis.hget("#{@prefix}:queues", @queue).to_s.split(",").map(&:to_i)
      count = [@queues.size, *counts.select { |n| n <= 256 }].max # the partitions of a deleted queue stay, too
      @queues = [@queue, *(1...count).map { |i| "#{@queue}/#{i}" }]
      @functions = library?
      @queues.each do |queue|
        @redis.xgroup(:create, key(queue, "stream"), @group, "0", mkstream: true)
        @starts[queue] = "0-0"
      rescue Redis::CommandError => e
        raise unless e.message.start_with?("BUSYGROUP")
        # only used with the library; without it the user may lack permission for XINFO
        @starts[queue] ||= last_delivered(queue) if @functions
      end
      @join_at = now + REFRESH
    end

    # Returns the ID of the last entry that the group was given.
    def last_delivered(queue)
      @redis.xinfo(:groups, key(queue, "stream")).find { |group| group["name"] == @group }["last-delivered-id"]
    end

    # Returns whether the functions library is loaded, and this user may call it.
    def library?
      !@redis.call("FCALL", "duestream_version", 0).empty?
    rescue Redis::CommandError
      false
    end

    # Returns the messages that a cut connection kept from this worker: they are pending, and nobody works on them. Without the library, they
    # cannot be distinguished from messages that have failed. Reading them again with XREADGROUP would count as an attempt. The entries that a
    # crashed worker of the same name held are before the start. The bridges take these entries back, and count that
    # as an attempt.
    def unseen
      return [] unless @functions

      @queues.flat_map do |queue|
        stream = key(queue, "stream")
        entries = @redis.xpending(stream, @group, "(#{@starts[queue]}", "+", @batch, @consumer).map { |row| row["entry_id"] }
        messages = entries.flat_map { |entry| @redis.xrange(stream, entry, entry) }.map { |entry, fields| message(queue, entry, fields) }
        messages.empty? ? [] : messages.zip(extend_all(@redis, queue, messages)).filter_map { |message, kept| message if kept }
      end
    end

    def read
      streams = @queues.to_h { |queue| [key(queue, "stream"), queue] }
      reply = @redis.xreadgroup(@group, @consumer, streams.keys, streams.map { ">" }, count: @batch, block: 1000)
      reply.flat_map { |stream, entries| entries.map { |entry, fields| message(streams[stream], entry, fields) } }
    end

    def message(queue, entry, fields)
      headers = fields.filter_map { |name, value| [name.delete_prefix("h:"), value] if name.start_with?("h:") }.to_h
      Message.new(queue: queue, entry: entry, id: fields.fetch("id", entry), payload: fields.fetch("payload", "").b,
                  attempt: fields.fetch("attempt", 1).to_i, headers: headers, for: fields.fetch("for", "").b)
    end

    def work_on(messages, acknowledged, &handler)
      hold(messages)
      messages.each do |message|
        if ![@group.b, ""].include?(message.for) # a retry for another group: it is only acknowledged
          persist { @redis.xack(key(message.queue, "stream"), @group, message.entry) }
        elsif !message.lost && (!@stopped_at || (!persist { leave("release", message) } && now < @stopped_at + GRACE))
          handle(message, acknowledged, &handler)
        end
        hold(@held.reject { |other| other.equal?(message) })
      end
    ensure
      hold([])
    end

    def handle(message, acknowledged)
      error = begin
        yield message
        nil
      rescue StandardError => e
        warn "worker.rb: #{message.id}: #{e.message}"
        e
      end
      verdict = persist { settle(message, error) }
      warn "worker.rb: #{message.id}: lost, it is delivered again" if verdict&.zero?
      acknowledged&.call(message) if verdict == 1 && !error
    end

    # Reports how the work of a message ended. Returns 0 if the message was lost meanwhile, and nil if it stays pending.
    def settle(message, error)
      return leave("ack", message, keys: %w[stream]) || @redis.xack(key(message.queue, "stream"), @group, message.entry) unless error
      return leave("dead_letter", message, error.message) if error.is_a?(DeadLetter)
      return unless @functions

      delay = error.is_a?(Retry) ? (error.delay * 1000).ceil : ""
      limits = setting(message.queue, "max_attempts").to_s
      limits += " retry_for_ms=#{setting(message.queue, "retry_for_ms")}" if setting(message.queue, "retry_for_ms").positive?
      leave("retry", message, "retry", delay, "max_attempts", error.message, options: [limits, delays(message)])
    end

    # Calls a function that takes a message out of the pending list. Returns nil if the library is not loaded.
    def leave(name, message, *args, keys: %w[stream due payload meta dead wake turns policy history], options: [])
      args = [*options, message.entry, message.id, *args]
      actor = ["worker #{@consumer}"] if keys.last == "history"
      function(@redis, name, message.queue, keys, *args, *actor)&.first
    rescue Redis::CommandError => e
      raise unless e.message.include?(" was given ")

      function(@redis, name, message.queue, keys.first(6), *args)&.first # a library of an earlier release
    end

    def function(redis, name, queue, keys, *args)
      return unless @functions

      redis.call("FCALL", "duestream_#{name}", keys.size, *keys.map { |k| key(queue, k) }, @group, *args)
    rescue Redis::CommandError => e
      raise unless e.message.start_with?("ERR Function not found", "NOPERM")

      @functions = nil
    end

    # Repeats a call that must not be lost until Redis has executed it. All these calls are harmless to repeat.
    def persist
      yield
    rescue Redis::BaseError, *BROKEN => e
      return if @stopped_at && now > @stopped_at + GRACE

      pause(e)
      retry
    end

    # Waits after an error, longer each time. A stop ends the wait.
    def pause(error)
      warn "worker.rb: #{error.message}"
      @failures += 1
      seconds = [0.1 * 2**@failures, 5].min * rand(0.5..1)
      @stopped_at ? sleep([seconds, 0.5].min) : @wake.wait_readable(seconds)
    end

    def hold(messages)
      @lock.synchronize { @held = messages }
    end

    # Restarts the visibility timeout of all held messages whenever a third of it has passed. It runs in a thread with its own connection. A C
    # extension that a handler calls may hold Ruby's lock, and this thread then has to wait.
    def extend_held
      redis = Redis.new(url: @url)
      interval = 0
      loop do
        sleep interval
        held = @lock.synchronize { @held }
        held.group_by(&:queue).each do |queue, messages|
          messages.zip(extend_all(redis, queue, messages)) { |message, kept| message.lost = true unless kept } # a long handler can check this
        end
        interval = [setting(@queue, "visibility_ms", redis) / 3000.0, REFRESH].min
      rescue Redis::BaseError, *BROKEN => e
        warn "worker.rb: extend: #{e.message}"
        interval = 0.5
      end
    end

    # Returns for each message whether it was extended. If not, another consumer has it now.
    def extend_all(redis, queue, messages)
      reply = function(redis, "extend", queue, %w[stream dead], @consumer, *messages.flat_map { |message| [message.entry, message.id] })
      return reply.map(&:positive?) if reply

      kept = redis.xclaim(key(queue, "stream"), @group, @consumer, 0, messages.map(&:entry), justid: true)
      messages.map { |message| kept.include?(message.entry) }
    end

    # Returns the delays after failed attempts, in milliseconds, separated by commas: the policy's list, or the delay after this attempt.
    def delays(message)
      list = levels(message.queue, "retry_delays_ms").grep(/\A\d+(,\d+)*\z/).first
      return list if list && list != "0"

      least, most = setting(message.queue, "retry_min_ms"), setting(message.queue, "retry_max_ms")
      [(least * 2**[message.attempt - 1, 40].min * rand(0.5..1.5)).ceil, most].min
    end

    # Returns the setting of the group, the queue or the defaults, or else the built-in value. Values outside the limits are ignored.
    def setting(queue, name, redis = @redis)
      levels(queue, name, redis).grep(/\A\d+\z/).map(&:to_i).find { |value| LIMITS[name].cover?(value) } || BUILT_IN[name]
    end

    def levels(queue, name, redis = @redis)
      values = redis.hmget(key(queue, "policy"), "group:#{ERB::Util.url_encode(@group)}:#{name}", name)
      values << redis.hget("#{@prefix}:defaults", name)
    end
  end
end

if $PROGRAM_NAME == __FILE__
  queue, group = %w[QUEUE GROUP].map { |name| ENV[name] || abort("worker.rb: set #{name}; see the beginning of this file") }
  worker = Duestream::Worker.new(
    ENV.fetch("DUESTREAM_REDIS_URL", "redis://127.0.0.1:6379"), queue: queue, group: group,
    consumer: ENV.fetch("CONSUMER") { "#{Socket.gethostname}-#{Process.pid}" },
    prefix: ENV.fetch("DUESTREAM_PREFIX", "duestream"), batch: ENV.fetch("BATCH", 10).to_i
  )
  %w[TERM INT].each { |signal| trap(signal) { worker.stop } }

  $stdout.sync = true
  log = File.open(ENV["ACK_LOG"], "a").tap { |file| file.sync = true } if ENV["ACK_LOG"]
  done = lambda do |message|
    puts "#{message.id} #{message.attempt}"
    log&.puts "#{message.id} #{message.attempt} #{message.entry}"
  end
  percent = ENV.fetch("FAIL_ONCE_PERCENT", 0).to_f
  worker.run(acknowledged: done) do |message|
    # The work of one message. A message may be delivered again, so doing the work twice must be harmless.
    raise "failing once, as asked" if message.attempt == 1 && rand * 100 < percent
  end
end
