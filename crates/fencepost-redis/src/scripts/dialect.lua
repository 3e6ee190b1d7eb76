-- Executes one flight of operations of one client on locks in the key format of another library.
--
-- The lock itself has the key and a value of that library. Fencepost's own keys, below the prefix P:
--   h:KEY    the record of Fencepost's holder, which expires with the lock: "LENGTH BEGAN VALUE" and "OWNER TOKEN SINCE CHOSEN
--            TTL CLIENT LENGTH REST". It is valid only while the lock has exactly this VALUE. BEGAN: when the streak began
--            in which Fencepost's clients hold the lock one after the other.
--   q:KEY    the queue of Fencepost's waiters: a sorted set of owners by position.
--   t:OWNER  a ticket, which expires with its lease: "POSITION SINCE 0 TTL CLIENT LENGTH REST".
--   b:KEY    BEGAN, for a short time after a Fencepost client released the lock.
--   g:KEY    exists during a gap, in which Fencepost's waiters leave the lock to foreign clients.
--   f:KEY    "SINCE MARK": a fingerprint of the foreign value that was last seen, and since when.
--   d        tombstones: owners that have left before their acquire arrived, by the time at which the tombstone expires.
--
-- ARGV: P, the key of the last token, the client's id, the prefix of channels, the largest token that the client has seen, the
-- longest poll interval of the other library, the longest streak of Fencepost's clients (both in ms), a random number below
-- 1, and then eight arguments for each operation: kind, key, signal list, owner, ttl, token, value, tail.
--
-- Replies are those of execute.lua; {W, ms, 1} if the key of a foreign holder is to be tracked.
--
-- Any other value of the lock's key belongs to a foreign holder until the key is deleted or expires. It is neither
-- interpreted nor changed.
local call, sub = redis.call, string.sub
local P, COUNTER, CLIENT, CHANNELS, LARGEST_SEEN = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local POLL_INTERVAL, MAX_STREAK, RANDOM = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local HEADER, PER_OP = 8, 8
local MAX_AHEAD = 24 * 3600 * 1000000
-- If a lock was free for this long, in ms, foreign clients had a chance to acquire it, and a new streak begins.
local STREAK_GAP = 10
-- How much longer a streak may be because its first waiter has waited, in ms.
local MAX_CREDIT = 5 * POLL_INTERVAL
-- The shortest interval, in ms, after which the first waiter checks again: while foreign holders change quickly.
local MIN_INTERVAL = 1
-- How long a signal stays in its list, in ms, as in python-redis-lock.
local SIGNAL_TTL = 1000
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
-- No call may block the server for long: the next call for the lock continues.
local budget = 256

local function digits(number)
  return string.format('%.0f', number)
end

-- Adds jitter, so that clients do not poll at the same time.
local function jittered(duration)
  return math.max(1, math.floor(duration * (0.5 + RANDOM) + 0.5))
end

local function next_token()
  local last = tonumber(call('GET', COUNTER) or 0)
  last = math.max(last + 1, now_us, math.min(LARGEST_SEEN + 1, now_us + MAX_AHEAD))
  call('SET', COUNTER, digits(last))
  return last
end

-- Returns the holder: nil if the lock is free; with an owner if it is a Fencepost client, without one if it is foreign.
local function holder_of(key)
  local value = redis.pcall('GET', key)
  if not value then
    return nil
  end
  local left = call('PTTL', key)
  if type(value) ~= 'string' then
    return { value = 'not a string', left = left }
  end
  local record = call('GET', P .. 'h:' .. key)
  local length, streak_start, from = string.match(record or '', '^(%d+) (%d+) ()')
  if not length or sub(record, from, from + length - 1) ~= value then
    return { value = value, left = left }
  end
  local owner, token, ttl, client = string.match(sub(record, from + length), '^(%x+) (%d+) %d+ %d+ (%d+) (%x+) ')
  -- No lease is longer than its ttl: if it seems to be, the server's clock was set back.
  if left < 0 or left > tonumber(ttl) then
    call('PEXPIRE', key, ttl)
    left = tonumber(ttl)
  end
  return { owner = owner, token = token, client = client, left = left, streak_start = tonumber(streak_start) }
end

local function holds(op)
  local holder = holder_of(op.key)
  if holder and holder.owner == op.owner and holder.token == op.token then
    return holder
  end
  -- The record is about a lock that no longer exists.
  if string.match(call('GET', P .. 'h:' .. op.key) or '', op.owner .. ' ' .. op.token .. ' ') then
    call('DEL', P .. 'h:' .. op.key)
  end
end

local function renew_lease(op)
  call('PEXPIRE', op.key, op.ttl)
  call('PEXPIRE', P .. 'h:' .. op.key, op.ttl)
end

-- Returns the grant that this attempt already has, and renews it.
local function held_award(op, holder)
  if holder and holder.owner == op.owner then
    renew_lease(op)
    return { 'G', tonumber(holder.token), 0 }
  end
end

-- Loads a ticket; nil if its lease has expired.
local function load_ticket(owner)
  local value = call('GET', P .. 't:' .. owner)
  if value then
    local position, since, ttl, client = string.match(value, '^(%d+) (%d+) 0 (%d+) (%x+) ')
    return { owner = owner, position = tonumber(position), since = tonumber(since), ttl = tonumber(ttl), client = client }
  end
end

local function delete_ticket(op)
  call('DEL', P .. 't:' .. op.owner)
  call('ZREM', P .. 'q:' .. op.key, op.owner)
end

-- Renews a ticket for its ttl; nil if there is none.
local function renew_ticket(op)
  if call('PEXPIRE', P .. 't:' .. op.owner, op.ttl) == 0 then
    return nil
  end
  local queue = P .. 'q:' .. op.key
  if call('PTTL', queue) < op.ttl then
    call('PEXPIRE', queue, op.ttl)
  end
  return true
end

local subscribed = { [CLIENT] = true }
local function is_subscribed(client)
  if subscribed[client] == nil then
    local counted = redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)
    subscribed[client] = counted.err ~= nil or counted[2] > 0
  end
  return subscribed[client]
end

-- Returns the first ticket in the queue whose client is subscribed.
local function first_waiter(key)
  local queue, skip, longest = P .. 'q:' .. key, 0, 0
  while budget > 0 do
    local owner = call('ZRANGE', queue, skip, skip)[1]
    if not owner then
      if skip > 0 then
        -- No client of the remaining tickets is subscribed: the queue expires with the last of them.
        call('PEXPIRE', queue, longest)
      end
      return nil
    end
    budget = budget - 1
    local waiter = load_ticket(owner)
    if not waiter then
      call('ZREM', queue, owner)
    elseif is_subscribed(waiter.client) then
      return waiter
    else
      skip = skip + 1
      longest = math.max(longest, call('PTTL', P .. 't:' .. owner), 1)
    end
  end
end

-- Notifies the first waiter, which acquires the lock itself or waits on.
local function notify_first(key)
  local waiter = first_waiter(key)
  if waiter then
    redis.pcall('PUBLISH', CHANNELS .. waiter.client,
      'T ' .. waiter.owner .. ' ' .. digits(waiter.ttl) .. ' x ' .. key)
  end
end

-- Grants the lock. A streak that begins with a waiter is longer the longer it has waited: foreign clients that acquire the lock
-- again at once may win nearly every race for it.
local function grant(op, waited)
  local token = digits(next_token())
  local credit = math.min(math.max(waited, 0) / 3, MAX_CREDIT)
  local streak_start = call('GET', P .. 'b:' .. op.key) or digits(now + credit)
  local record = #op.value .. ' ' .. streak_start .. ' ' .. op.value
    .. op.owner .. ' ' .. token .. ' ' .. digits(now) .. ' 0 '
  call('SET', op.key, op.value, 'PX', op.ttl)
  call('SET', P .. 'h:' .. op.key, record .. op.tail, 'PX', op.ttl)
  call('DEL', P .. 'b:' .. op.key, P .. 'f:' .. op.key)
  return { 'G', tonumber(token), 0 }
end

-- Returns after how long the first waiter checks again behind a foreign holder: soon if holders change quickly.
local function foreign_poll_interval(key, holder)
  local fingerprint = redis.sha1hex(holder.value)
  local since, known = string.match(call('GET', P .. 'f:' .. key) or '', '^(%d+) (%x+)$')
  if known ~= fingerprint then
    since = now
  end
  call('SET', P .. 'f:' .. key, digits(since) .. ' ' .. fingerprint, 'PX', 10 * POLL_INTERVAL)
  local interval = jittered(math.min(math.max((now - since) / 4, MIN_INTERVAL), POLL_INTERVAL))
  return holder.left >= 0 and math.min(interval, holder.left + 1) or interval
end

-- Returns when a waiter should check again; and a 1 if it is the first waiter behind a foreign holder, whose key the client
-- tracks.
local function check_after(op)
  local queue = P .. 'q:' .. op.key
  local rank = call('ZRANK', queue, op.owner)
  local mine = not rank and load_ticket(op.owner)
  if mine then
    -- The queue was deleted.
    call('ZADD', queue, digits(mine.position), op.owner)
    renew_ticket(op)
  end
  local first = first_waiter(op.key)
  if first and first.owner ~= op.owner then
    rank = rank or call('ZRANK', queue, op.owner) or 0
    local before = rank > 0 and call('ZRANGE', queue, rank - 1, rank - 1)[1]
    return math.max(1, before and call('PTTL', P .. 't:' .. before) or 1)
  end
  local holder = holder_of(op.key)
  if not holder then
    return math.max(0, call('PTTL', P .. 'g:' .. op.key)) + jittered(MIN_INTERVAL)
  elseif not holder.owner then
    return foreign_poll_interval(op.key, holder), 1
  end
  -- It is notified when the lock is released; this is for a notification that is lost.
  return math.min(holder.left + 1, jittered(10 * POLL_INTERVAL))
end

local function is_gap(key)
  return call('EXISTS', P .. 'g:' .. key) == 1
end

local function check(op)
  -- Renewed before it is read: a client that checks is alive.
  local is_waiting = renew_ticket(op)
  local holder = holder_of(op.key)
  local granted = held_award(op, holder)
  if granted or not is_waiting then
    return granted or 5
  end
  if not holder and not is_gap(op.key) then
    local first = first_waiter(op.key)
    if first and first.owner == op.owner then
      delete_ticket(op)
      return grant(op, now - first.since)
    end
    notify_first(op.key)
  end
  return { 'W', check_after(op) }
end

local function acquire(op)
  local tombstone = call('ZSCORE', P .. 'd', op.owner)
  if tombstone and tonumber(tombstone) > now then
    return 0
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    return check(op)
  end
  local holder = holder_of(op.key)
  local granted = held_award(op, holder)
  if granted then
    return granted
  end
  local is_try = op.kind == 'T'
  if not holder and not first_waiter(op.key) and (is_try or not is_gap(op.key)) then
    return grant(op, 0)
  elseif is_try then
    return 0
  end
  local position = digits(next_token())
  call('SET', P .. 't:' .. op.owner, position .. ' ' .. digits(now) .. ' 0 ' .. op.tail, 'PX', op.ttl)
  call('ZADD', P .. 'q:' .. op.key, position, op.owner)
  renew_ticket(op)
  return { 'W', check_after(op) }
end

-- Signals a release as python-redis-lock does.
local function push_signal(op)
  call('DEL', op.signal)
  call('LPUSH', op.signal, 1)
  call('PEXPIRE', op.signal, SIGNAL_TTL)
end

local function leave(op)
  local holder = holder_of(op.key)
  if holder and holder.owner == op.owner then
    return { 'H', tonumber(holder.token), 0 }
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    delete_ticket(op)
    if op.signal ~= '' and not holder then
      -- This client may have received the signal, which then must go to another client.
      push_signal(op)
    end
    notify_first(op.key)
    return 4
  end
  local tombstones = P .. 'd'
  call('ZREMRANGEBYSCORE', tombstones, '-inf', digits(now))
  call('ZADD', tombstones, digits(now + op.ttl), op.owner)
  if call('PTTL', tombstones) < op.ttl then
    call('PEXPIRE', tombstones, op.ttl)
  end
  return 4
end

-- Frees the lock, and notifies waiters: foreign ones with a signal, Fencepost's on their channel.
local function free_lock(op, holder)
  call('DEL', op.key, P .. 'h:' .. op.key)
  if op.signal ~= '' then
    push_signal(op)
    if first_waiter(op.key) then
      -- Fencepost's waiters receive the signal too, in turn: with a notification they would always overtake the others.
      return 1
    end
  end
  local streak = now - holder.streak_start
  if streak < MAX_STREAK then
    call('SET', P .. 'b:' .. op.key, digits(holder.streak_start), 'PX', STREAK_GAP)
  else
    call('SET', P .. 'g:' .. op.key, '', 'PX', jittered(math.min(streak, POLL_INTERVAL)))
  end
  notify_first(op.key)
  return 1
end

local function release(op)
  local holder = holds(op)
  return holder and free_lock(op, holder) or 3
end

local function renew(op)
  if not holds(op) then
    return 3
  end
  renew_lease(op)
  return 2
end

local function break_lock(op)
  local holder = holder_of(op.key)
  if not holder or holder.token ~= op.token then
    return 3
  end
  redis.pcall('PUBLISH', CHANNELS .. holder.client, 'X ' .. holder.owner)
  return free_lock(op, holder)
end

local rules = { A = acquire, T = acquire, C = check, L = leave, N = renew, R = release, B = break_lock }
local ops, replies = {}, {}
for i = 1, (#ARGV - HEADER) / PER_OP do
  local o = HEADER + (i - 1) * PER_OP
  local op = { kind = ARGV[o + 1], key = ARGV[o + 2], signal = ARGV[o + 3], owner = ARGV[o + 4],
    ttl = tonumber(ARGV[o + 5]), token = ARGV[o + 6], value = ARGV[o + 7], tail = ARGV[o + 8] }
  -- However much budget the others have used: the first waiter must be notified.
  budget = math.max(budget, 8)
  local succeeded, reply = pcall(rules[op.kind], op)
  ops[i] = op
  replies[i] = succeeded and reply or { 'E', type(reply) == 'table' and reply.err or tostring(reply) }
end
-- A waiter that joined the queue in this flight may have been notified before its client knew of it: its interval is computed
-- again.
for i, op in ipairs(ops) do
  if op.kind == 'A' and type(replies[i]) == 'table' and replies[i][1] == 'W' then
    local succeeded, interval, is_foreign = pcall(check_after, op)
    replies[i] = succeeded and { 'W', interval, is_foreign } or { 'W', 1 }
  end
end
return replies
