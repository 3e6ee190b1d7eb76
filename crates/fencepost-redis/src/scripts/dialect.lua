-- Executes one flight of operations of one client on locks that are kept in the form of another library.
--
-- The lock itself is where that library looks for it, with a value that it takes for its own. Beside it, below the
-- prefix P:
--   h:KEY    what we know of our holder, for as long as the lock: "LENGTH BEGAN VALUE" and "OWNER TOKEN SINCE CHOSEN TTL
--            CLIENT LENGTH REST". It says nothing unless the lock has that very VALUE. BEGAN: since when ours have had
--            the lock, one after the other.
--   q:KEY    which of ours wait for it: a sorted set of owners by place.
--   t:OWNER  a place in line, for as long as its lease: "PLACE SINCE 0 TTL CLIENT LENGTH REST".
--   b:KEY    for a moment after ours gave it back: BEGAN.
--   g:KEY    for as long as ours leave the lock to others.
--   f:KEY    "SINCE MARK": whom we have seen with it who is not ours, and since when.
--   d        owners that have left before they came, until when.
--
-- ARGV: P, the key of the last token, the client, the channels' prefix, the largest token the client has seen, the
-- longest pause of the others between two looks, for how long ours may have the lock in a row (both in ms), a random
-- number below 1, and then eight words for each operation: kind, key, signal, owner, ttl, token, value, tail.
--
-- Whatever is at the key and is not ours is held by somebody else, until it is gone: it is never judged, never changed.
local call, sub = redis.call, string.sub
local P, COUNTER, CLIENT, CHANNELS, HINT = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local PAUSE, TURN, CHANCE = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local BASE, WORDS = 8, 8
local DAY = 24 * 3600 * 1000000
local FAR = 2 ^ 53
-- A lock that was free for so long has had its chance to be taken by others.
local AIRED = 10
-- The first in line looks again after so long, if the lock goes from hand to hand.
local QUICK = 1
-- For how long a signal waits to be heard, as python-redis-lock has it.
local SIGNAL = 1000
local time = call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
-- No call may occupy the server for long: whoever comes by next goes on with what is left.
local patience = 256

local function digits(number)
  return string.format('%.0f', number)
end

-- Not all at the same time.
local function about(duration)
  return math.max(1, math.floor(duration * (0.5 + CHANCE) + 0.5))
end

local function mint()
  local last = tonumber(call('GET', COUNTER) or 0)
  last = math.max(last + 1, now_us, math.min(HINT + 1, now_us + DAY))
  call('SET', COUNTER, digits(last))
  return last
end

-- Who has the lock: nobody, one of ours (with an owner), or somebody else.
local function holder_of(key)
  local value = redis.pcall('GET', key)
  if not value then
    return nil
  end
  local left = call('PTTL', key)
  if type(value) ~= 'string' then
    return { value = 'not a string', left = left }
  end
  local known = call('GET', P .. 'h:' .. key)
  local length, began, from = string.match(known or '', '^(%d+) (%d+) ()')
  if not length or sub(known, from, from + length - 1) ~= value then
    return { value = value, left = left }
  end
  local owner, token, ttl, client = string.match(sub(known, from + length), '^(%x+) (%d+) %d+ %d+ (%d+) (%x+) ')
  -- No lease is longer than its ttl: if it seems so, the server's clock was set back.
  if left < 0 or left > tonumber(ttl) then
    call('PEXPIRE', key, ttl)
    left = tonumber(ttl)
  end
  return { owner = owner, token = token, client = client, left = left, began = tonumber(began) }
end

local function holds(op)
  local holder = holder_of(op.key)
  if holder and holder.owner == op.owner and holder.token == op.token then
    return holder
  end
  -- What we know of it is about a lock that is gone.
  if string.match(call('GET', P .. 'h:' .. op.key) or '', op.owner .. ' ' .. op.token .. ' ') then
    call('DEL', P .. 'h:' .. op.key)
  end
end

local function extend(op)
  call('PEXPIRE', op.key, op.ttl)
  call('PEXPIRE', P .. 'h:' .. op.key, op.ttl)
end

-- What this attempt holds already; it is renewed.
local function award(op, holder)
  if holder and holder.owner == op.owner then
    extend(op)
    return { 'G', tonumber(holder.token), 0 }
  end
end

-- A place in line, if its lease has not ended.
local function ticket(owner)
  local value = call('GET', P .. 't:' .. owner)
  if value then
    local place, ttl, client = string.match(value, '^(%d+) %d+ 0 (%d+) (%x+) ')
    return { owner = owner, place = tonumber(place), ttl = tonumber(ttl), client = client }
  end
end

local function tear_up(op)
  call('DEL', P .. 't:' .. op.owner)
  call('ZREM', P .. 'q:' .. op.key, op.owner)
end

-- The place in line lives for another ttl; nil if there is none.
local function touch(op)
  if call('PEXPIRE', P .. 't:' .. op.owner, op.ttl) == 0 then
    return nil
  end
  local line = P .. 'q:' .. op.key
  if call('PTTL', line) < op.ttl then
    call('PEXPIRE', line, op.ttl)
  end
  return true
end

local reach = { [CLIENT] = true }
local function reachable(client)
  if reach[client] == nil then
    local counted = redis.pcall('PUBSUB', 'NUMSUB', CHANNELS .. client)
    reach[client] = counted.err ~= nil or counted[2] > 0
  end
  return reach[client]
end

-- The first of ours in line who is there.
local function first(key)
  local line, skip, longest = P .. 'q:' .. key, 0, 0
  while patience > 0 do
    local owner = call('ZRANGE', line, skip, skip)[1]
    if not owner then
      if skip > 0 then
        -- All who are left cannot be reached: the line ends with the last of them.
        call('PEXPIRE', line, longest)
      end
      return nil
    end
    patience = patience - 1
    local waiter = ticket(owner)
    if not waiter then
      call('ZREM', line, owner)
    elseif reachable(waiter.client) then
      return waiter
    else
      skip = skip + 1
      longest = math.max(longest, call('PTTL', P .. 't:' .. owner), 1)
    end
  end
end

-- Whoever is first takes the lock itself, or looks out for it.
local function tell(key)
  local waiter = first(key)
  if waiter then
    redis.pcall('PUBLISH', CHANNELS .. waiter.client,
      'T ' .. waiter.owner .. ' ' .. digits(waiter.ttl) .. ' x ' .. key)
  end
end

local function grant(op)
  local token = digits(mint())
  local began = call('GET', P .. 'b:' .. op.key) or digits(now)
  local known = #op.value .. ' ' .. began .. ' ' .. op.value .. op.owner .. ' ' .. token .. ' ' .. digits(now) .. ' 0 '
  call('SET', op.key, op.value, 'PX', op.ttl)
  call('SET', P .. 'h:' .. op.key, known .. op.tail, 'PX', op.ttl)
  call('DEL', P .. 'b:' .. op.key, P .. 'f:' .. op.key)
  return { 'G', tonumber(token), 0 }
end

-- How soon the first in line looks again while somebody else has the lock: soon if it goes from hand to hand.
local function look_again(key, holder)
  local mark = redis.sha1hex(holder.value)
  local since, seen = string.match(call('GET', P .. 'f:' .. key) or '', '^(%d+) (%x+)$')
  if seen ~= mark then
    since = now
  end
  call('SET', P .. 'f:' .. key, digits(since) .. ' ' .. mark, 'PX', 10 * PAUSE)
  local pause = about(math.min(math.max((now - since) / 4, QUICK), PAUSE))
  return holder.left >= 0 and math.min(pause, holder.left + 1) or pause
end

-- When this waiter should look again; and a 1 if it is the first in line behind a holder that is not ours, whose end the
-- client listens for.
local function turn_in(op)
  local line = P .. 'q:' .. op.key
  local rank = call('ZRANK', line, op.owner)
  local mine = not rank and ticket(op.owner)
  if mine then
    -- The line was taken away.
    call('ZADD', line, digits(mine.place), op.owner)
    touch(op)
  end
  local head = first(op.key)
  if head and head.owner ~= op.owner then
    rank = rank or call('ZRANK', line, op.owner) or 0
    local before = rank > 0 and call('ZRANGE', line, rank - 1, rank - 1)[1]
    return math.max(1, before and call('PTTL', P .. 't:' .. before) or 1)
  end
  local holder = holder_of(op.key)
  if not holder then
    return math.max(0, call('PTTL', P .. 'g:' .. op.key)) + about(QUICK)
  elseif not holder.owner then
    return look_again(op.key, holder), 1
  end
  -- It is told when the lock is given back; this is for the case that it does not hear it.
  return math.min(holder.left + 1, about(10 * PAUSE))
end

local function is_left_alone(key)
  return call('EXISTS', P .. 'g:' .. key) == 1
end

local function check(op)
  -- The ticket lives again before anybody looks whether it does: whoever asks is alive.
  local waits = touch(op)
  local holder = holder_of(op.key)
  local had = award(op, holder)
  if had or not waits then
    return had or 5
  end
  if not holder and not is_left_alone(op.key) then
    local head = first(op.key)
    if head and head.owner == op.owner then
      tear_up(op)
      return grant(op)
    end
    tell(op.key)
  end
  return { 'W', turn_in(op) }
end

local function acquire(op)
  local left = call('ZSCORE', P .. 'd', op.owner)
  if left and tonumber(left) > now then
    return 0
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    return check(op)
  end
  local holder = holder_of(op.key)
  local had = award(op, holder)
  if had then
    return had
  end
  local tries = op.kind == 'T'
  if not holder and not first(op.key) and (tries or not is_left_alone(op.key)) then
    return grant(op)
  elseif tries then
    return 0
  end
  local place = digits(mint())
  call('SET', P .. 't:' .. op.owner, place .. ' ' .. digits(now) .. ' 0 ' .. op.tail, 'PX', op.ttl)
  call('ZADD', P .. 'q:' .. op.key, place, op.owner)
  touch(op)
  return { 'W', turn_in(op) }
end

-- As python-redis-lock does it.
local function signal(op)
  call('DEL', op.signal)
  call('LPUSH', op.signal, 1)
  call('PEXPIRE', op.signal, SIGNAL)
end

local function leave(op)
  local holder = holder_of(op.key)
  if holder and holder.owner == op.owner then
    return { 'H', tonumber(holder.token), 0 }
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    tear_up(op)
    if op.signal ~= '' and not holder then
      -- It may have heard the signal, which is then meant for somebody else.
      signal(op)
    end
    tell(op.key)
    return 4
  end
  local gone = P .. 'd'
  call('ZREMRANGEBYSCORE', gone, '-inf', digits(now))
  call('ZADD', gone, digits(now + op.ttl), op.owner)
  if call('PTTL', gone) < op.ttl then
    call('PEXPIRE', gone, op.ttl)
  end
  return 4
end

-- The lock is free, and all who wait are told in their own way.
local function free(op, holder)
  call('DEL', op.key, P .. 'h:' .. op.key)
  if op.signal ~= '' then
    signal(op)
    if first(op.key) then
      -- Ours hear the signal too, in their turn: telling them now would let them overtake the others every time.
      return 1
    end
  end
  local had_for = now - holder.began
  if had_for < TURN then
    call('SET', P .. 'b:' .. op.key, digits(holder.began), 'PX', AIRED)
  else
    call('SET', P .. 'g:' .. op.key, '', 'PX', about(math.min(had_for, PAUSE)))
  end
  tell(op.key)
  return 1
end

local function release(op)
  local holder = holds(op)
  return holder and free(op, holder) or 3
end

local function renew(op)
  if not holds(op) then
    return 3
  end
  extend(op)
  return 2
end

local function break_lock(op)
  local holder = holder_of(op.key)
  if not holder or holder.token ~= op.token then
    return 3
  end
  redis.pcall('PUBLISH', CHANNELS .. holder.client, 'X ' .. holder.owner)
  return free(op, holder)
end

local rules = { A = acquire, T = acquire, C = check, L = leave, N = renew, R = release, B = break_lock }
local ops, out = {}, {}
for i = 1, (#ARGV - BASE) / WORDS do
  local o = BASE + (i - 1) * WORDS
  local op = { kind = ARGV[o + 1], key = ARGV[o + 2], signal = ARGV[o + 3], owner = ARGV[o + 4],
    ttl = tonumber(ARGV[o + 5]), token = ARGV[o + 6], value = ARGV[o + 7], tail = ARGV[o + 8] }
  -- However much the others took: whoever is next in line must be told.
  patience = math.max(patience, 8)
  local fine, answer = pcall(rules[op.kind], op)
  ops[i] = op
  out[i] = fine and answer or { 'E', type(answer) == 'table' and answer.err or tostring(answer) }
end
-- Whoever joined the line in this flight may have been told already, when it did not listen yet.
for i, op in ipairs(ops) do
  if op.kind == 'A' and type(out[i]) == 'table' and out[i][1] == 'W' then
    local fine, pause, is_foreign = pcall(turn_in, op)
    out[i] = fine and { 'W', pause, is_foreign } or { 'W', 1 }
  end
end
return out
