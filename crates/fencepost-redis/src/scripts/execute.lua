-- Executes one flight of operations of one client on the locks of one prefix, each atomically, answers in order.
--
-- Keys, all below the prefix P:
--   l:NAME   who holds it. A string if exclusive: "OWNER TOKEN SINCE CHOSEN TTL CLIENT LENGTH REST", then "C" and the
--            cell's bytes if the cell ends with the grant. A hash if shared or counted: OWNER -> "MODE TOKEN UNTIL
--            SINCE CHOSEN TTL CLIENT LENGTH REST", and "=" -> "TOKEN BYTES" for such a cell.
--   q:NAME   who waits for it: a sorted set of owners by place.
--   t:OWNER  a place in line, for as long as its lease: "PLACE SINCE LENGTH WANTS" and what the client sent along,
--            "TTL CLIENT LENGTH REST". No WANTS stands for one exclusive name.
--   v:NAME   a cell that outlives its grant: "TOKEN BYTES".
--   d:NAME   the index of a hash: owners by the time before which their lease cannot have ended, and "=" by the time at which
--            the index was last changed. What it says is checked against the hash, so that it may be missing or old.
--   d        owners that have left before they came, until when.
--   c        the last token or place given out.
--   w        there as long as anybody may be waiting for anything.
--
-- ARGV: P, the client, the channels' prefix, the largest token the client has seen, for how long `c` is kept (0: for
-- ever), whether a waiter must take its lock itself (1), and then the words of each operation:
--   A, T  name, owner, ttl, tail   take an exclusive lock: or join the line, or not
--   R     name, proof              release; the proof is "OWNER TOKEN " as the value begins
--   N     name, proof, ttl         renew
--   G     name, owner, ttl, JSON   everything else: {op, wants, rule, tail, token, keep}; the bytes of a cell stand in the
--                                  place of the ttl
--
-- One answer for each, and one more if there is more to do than one call may: the names of the locks to go on with, by an
-- operation S.
--
-- Most operations are settled in bulk by the first part, with a handful of commands for all of them; what has a line, or
-- is not plain, goes through the second, one by one. Both look before they write.
local A, call, try, sub, format = ARGV, redis.call, redis.pcall, string.sub, string.format
local P, CLIENT, CHANNELS = A[1], A[2], A[3]
local HINT, RETENTION, SOFT = tonumber(A[4]), A[5], A[6] == '1'
-- A cluster forgets; see the retention of tokens.
local CLUSTER = RETENTION ~= '0'
local LOCK, LINE = P .. 'l:', P .. 'q:'
-- A client that has seen a token far ahead of this server's time is not believed.
local DAY = 24 * 3600 * 1000000
local out, slow, now_us, last = {}, nil, nil, nil
local NUMBERS = '@NUMBERS@'

-- The first part: plain operations on names that nobody else in this flight is about.
local seen, words, takes, held, held_keys = {}, {}, {}, {}, {}
local taking, holding = 0, 0
local o, i, size = 6, 0, #A
while o < size do
  i = i + 1
  local kind, name = A[o + 1], A[o + 2]
  words[i] = o
  if seen[name] or kind == 'G' then
    slow = slow or {}
    slow[#slow + 1] = i
    if kind == 'G' then
      for _, want in ipairs(cjson.decode(A[o + 5]).wants) do
        seen[want[1]] = true
      end
    end
  elseif kind == 'A' or kind == 'T' then
    taking = taking + 1
    takes[taking] = i
  else
    holding = holding + 1
    held[holding] = i
    held_keys[holding] = LOCK .. name
  end
  seen[name] = true
  o = o + (kind == 'R' and 3 or kind == 'N' and 4 or 5)
end

-- Who has a line, if anybody has one anywhere. A renewal in a cluster looks at nothing but its lock.
local queued, left_early = nil, false
local is_renewal = taking == 0 and holding == 1 and A[words[held[1]] + 1] == 'N'
if CLUSTER and not is_renewal or not CLUSTER and call('EXISTS', P .. 'w', P .. 'd') > 0 then
  left_early = taking > 0 and call('EXISTS', P .. 'd') == 1
  local names, keys = {}, {}
  for _, those in ipairs({ takes, held }) do
    for _, i in ipairs(those) do
      local o = words[i]
      if A[o + 1] ~= 'N' then
        names[#names + 1] = A[o + 2]
        keys[#keys + 1] = LINE .. A[o + 2]
      end
    end
  end
  if #keys > 0 and call('EXISTS', unpack(keys)) > 0 then
    queued = {}
    for at, name in ipairs(names) do
      queued[name] = call('EXISTS', keys[at]) == 1
    end
  end
end

if holding > 0 then
  local values, gone, going = call('MGET', unpack(held_keys)), {}, 0
  for j = 1, holding do
    local i = held[j]
    local o = words[i]
    local kind, proof, value = A[o + 1], A[o + 3], values[j]
    local is_ours = value and sub(value, 1, #proof) == proof
    if kind == 'N' then
      if is_ours then
        call('PEXPIRE', held_keys[j], A[o + 4])
      end
      out[i] = is_ours and 2 or 3
    elseif queued and queued[A[o + 2]] then
      slow = slow or {}
      slow[#slow + 1] = i
    else
      if is_ours then
        going = going + 1
        gone[going] = held_keys[j]
      end
      out[i] = is_ours and 1 or 3
    end
  end
  if going > 0 then
    call('DEL', unpack(gone))
  end
end

if taking > 0 then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
  last = tonumber(call('GET', P .. 'c') or 0)
  local token = math.max(last + 1, now_us, math.min(HINT + 1, now_us + DAY))
  last = token + taking - 1
  local kept
  if RETENTION == '0' then
    kept = try('SET', P .. 'c', format('%.0f', last))
  else
    kept = try('SET', P .. 'c', format('%.0f', last), 'PX', RETENTION)
  end
  local since = ' ' .. format('%.0f', now_us / 1000) .. ' 0 '
  -- Numbers are dear to format: only the thousands are, and the rest is cut out of a list.
  local thousands, rest = nil, 1000
  for j = 1, taking do
    local i = takes[j]
    local o = words[i]
    local name, done = A[o + 2], false
    if rest > 999 then
      thousands, rest = format('%.0f', math.floor(token / 1000)), token % 1000
    end
    if kept.err then
      done = kept
    elseif not left_early and not (queued and queued[name]) then
      local value = A[o + 3] .. ' ' .. thousands .. sub(NUMBERS, rest * 3 + 1, rest * 3 + 3) .. since .. A[o + 5]
      done = try('SET', LOCK .. name, value, 'PX', A[o + 4], 'NX')
    end
    if not done then
      slow = slow or {}
      slow[#slow + 1] = i
    elseif done.err then
      out[i] = { 'E', done.err }
    else
      out[i] = token
    end
    token, rest = token + 1, rest + 1
  end
end
if not slow then
  return out
end
table.sort(slow)

-- The second part: the rules of the lock, one operation at a time.
if not now_us then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = math.floor(now_us / 1000)
local FAR = 2 ^ 53
-- No call may occupy the server for long. What a call leaves undone it names in its answer, and the client calls again.
local patience = 32
local loaded, doomed, unsettled = {}, {}, {}
-- How many entries of an index or a queue are read at once.
local CROWD = 128
-- The field of a hash that is no owner but the cell, and the member of an index that is no owner but the time of its last
-- change.
local MARK = '='

local function digits(number)
  return format('%.0f', number)
end

local function mint()
  last = last or tonumber(call('GET', P .. 'c') or 0)
  last = math.max(last + 1, now_us, math.min(HINT + 1, now_us + DAY))
  if RETENTION == '0' then
    call('SET', P .. 'c', digits(last))
  else
    call('SET', P .. 'c', digits(last), 'PX', RETENTION)
  end
  return last
end

-- The lock as it is stored: nothing, `holder` if it is exclusive, `hash` if several may hold it. Of a hash nothing is
-- read yet; `census` counts its holders.
local function lock_of(name)
  local known = loaded[name]
  if known then
    return known
  end
  local key = LOCK .. name
  local found = { name = name, key = key, index = P .. 'd:' .. name, count = 0 }
  local value = try('GET', key)
  if type(value) == 'string' then
    local owner, token, since, chosen, ttl, client, length, from =
      string.match(value, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%x+) (%d+) ()')
    local left = call('PTTL', key)
    found.count, found.mode = 1, 'x'
    if owner then
      ttl = tonumber(ttl)
      if left < 0 or left > ttl then
        call('PEXPIRE', key, ttl)
        left = ttl
      end
      local rest = sub(value, from, from + length - 1)
      found.cell = sub(value, from + length)
      found.head = sub(value, 1, from + length - 1)
      found.holder = { owner = owner, token = token, mode = 'x', ends = now + left, ttl = ttl,
        client = client, chosen = tonumber(chosen), rest = rest }
    else
      found.holder = { owner = '', token = '', mode = 'x', ends = left < 0 and FAR or now + left }
    end
  elseif value then
    found.hash = true
  end
  loaded[name] = found
  return found
end

local function field_of(holder)
  return holder.mode .. ' ' .. holder.token .. ' ' .. digits(holder.ends) .. ' ' .. holder.tail
end

-- A field of a hash as a holder, whether or not its lease has ended. No lease is longer than its ttl: if it seems so,
-- the server's clock was set back, and the field is corrected.
local function holder_in(found, owner, field)
  local mode, token, ends, tail_from = string.match(field, '^(%w+) (%d+) (%d+) ()')
  local tail = sub(field, tail_from)
  local chosen, ttl, client, length, from = string.match(tail, '^%d+ (%d+) (%d+) (%x+) (%d+) ()')
  ends, ttl = tonumber(ends), tonumber(ttl)
  local holder = { owner = owner, token = token, mode = mode, ends = math.min(ends, now + ttl), ttl = ttl,
    client = client, chosen = tonumber(chosen), tail = tail, rest = sub(tail, from, from + length - 1) }
  if ends > holder.ends then
    try('HSET', found.key, owner, field_of(holder))
  end
  return holder
end

-- All holders of a lock: for the few operations that must look at each of them.
local function everyone(found)
  local holders = { found.holder }
  local fields = found.hash and call('HGETALL', found.key) or {}
  for at = 1, #fields, 2 do
    if fields[at] ~= MARK then
      holders[#holders + 1] = holder_in(found, fields[at], fields[at + 1])
    end
  end
  return holders
end

-- Calls a command with many arguments, in portions that fit on Lua's stack.
local function in_portions(command, key, words)
  for from = 1, #words, 1000 do
    call(command, key, unpack(words, from, math.min(from + 999, #words)))
  end
end

-- Makes the index of a hash from its fields: there is none yet, a client of an earlier version has changed the hash, or
-- the clock was set back.
local function reindex(found)
  local known, scores, dead, stale, longest = { [MARK] = true }, { digits(now), MARK }, {}, {}, 0
  for _, holder in ipairs(everyone(found)) do
    if holder.ends > now then
      known[holder.owner], found.mode = true, holder.mode
      scores[#scores + 1], scores[#scores + 2] = digits(holder.ends), holder.owner
      longest = math.max(longest, holder.ends - now)
    else
      dead[#dead + 1] = holder.owner
    end
  end
  for _, owner in ipairs(call('ZRANGE', found.index, 0, -1)) do
    if not known[owner] then
      stale[#stale + 1] = owner
    end
  end
  found.count = #scores / 2 - 1
  if found.count > 0 then
    call('PEXPIRE', found.key, longest)
    in_portions('HDEL', found.key, dead)
    in_portions('ZADD', found.index, scores)
    in_portions('ZREM', found.index, stale)
    call('PEXPIRE', found.index, longest)
  else
    call('DEL', found.index)
  end
end

-- Compares these entries of the index with the hash: removes holders whose lease has ended, and notes when the others must
-- be looked at again.
local function refresh(found, owners)
  local scores, dead = { digits(now), MARK }, {}
  for at, field in ipairs(call('HMGET', found.key, unpack(owners))) do
    if not field then
      return reindex(found)
    end
    local holder = holder_in(found, owners[at], field)
    found.mode = holder.mode
    if holder.ends > now then
      scores[#scores + 1], scores[#scores + 2] = digits(holder.ends), holder.owner
    else
      dead[#dead + 1] = holder.owner
    end
  end
  if #dead > 0 then
    call('HDEL', found.key, unpack(dead))
    call('ZREM', found.index, unpack(dead))
    found.count = found.count - #dead
  end
  if #scores > 2 then
    -- Once a script has changed anything, a full server lets it write on. If it refuses, they are looked at again.
    try('PEXPIRE', found.index, math.max(1, call('PTTL', found.key)))
    try('ZADD', found.index, unpack(scores))
  end
end

-- Members of the index with a score in this range, and the first one's score.
local function indexed(found, from, to, limit)
  local members, owners, score = call('ZRANGEBYSCORE', found.index, from, to, 'WITHSCORES', 'LIMIT', 0, limit), {}, nil
  for at = 1, #members, 2 do
    if members[at] ~= MARK then
      owners[#owners + 1] = members[at]
      score = score or tonumber(members[at + 1])
    end
  end
  return owners, score
end

-- How many hold the lock, and as what, without those whose lease has ended. The index says of each holder of a hash when
-- it must be looked at next, which is never after the end of its lease; renewals change the hash alone.
local function census(found)
  if not found.hash or found.counted then
    return found
  end
  found.counted = true
  found.has_cell = call('HEXISTS', found.key, MARK) == 1
  found.count = call('HLEN', found.key) - (found.has_cell and 1 or 0)
  local changed = tonumber(call('ZSCORE', found.index, MARK) or FAR)
  if changed > now or call('ZCARD', found.index) ~= found.count + 1 then
    reindex(found)
  end
  local due, is_enough
  repeat
    due = indexed(found, '-inf', digits(now), CROWD + 1)
    if #due > 0 then
      refresh(found, due)
      patience = patience - 3
    end
    local alive = indexed(found, '(' .. digits(now), '+inf', 1)
    if not found.mode and #alive > 0 then
      refresh(found, alive)
    end
    -- One that is alive is enough, unless slots are counted.
    is_enough = #due < CROWD or #alive > 0 and found.mode and sub(found.mode, 1, 1) ~= 'n'
  until is_enough or patience <= 0
  found.has_due = #due >= CROWD
  if not is_enough then
    unsettled[found.name] = true
  end
  if found.count == 0 then
    call('DEL', found.index)
    call('DEL', found.key)
    found.hash, found.mode, found.has_cell = nil, nil, nil
  end
  return found
end

local function holder_of(name, owner)
  local found = lock_of(name)
  if not found.hash then
    return found.holder and found.holder.owner == owner and found.holder or nil
  end
  local field = call('HMGET', found.key, owner)[1]
  local holder = field and holder_in(found, owner, field)
  if holder and holder.ends > now then
    return holder
  end
end

local function holds(name, owner, token)
  local holder = holder_of(name, owner)
  return holder and holder.token == token and holder or nil
end

-- A hash lives at least as long as its last holder.
local function put(found, holder)
  local longest = math.max(call('PTTL', found.key), holder.ttl)
  found.count = found.count + call('HSET', found.key, holder.owner, field_of(holder))
  call('PEXPIRE', found.key, longest)
  call('ZADD', found.index, digits(now), MARK, digits(holder.ends), holder.owner)
  call('PEXPIRE', found.index, longest)
  found.hash, found.counted, found.mode = true, true, holder.mode
end

-- The lease runs for its ttl from now. What it costs does not depend on how many others hold the lock, and of a hash
-- nothing else is needed than its key: while a slot moves, the index may be on the other node.
local function extend(name, holder)
  local found = lock_of(name)
  holder.ends = now + holder.ttl
  if not found.hash then
    call('PEXPIRE', found.key, holder.ttl)
    return
  end
  local longest = math.max(call('PTTL', found.key), holder.ttl)
  call('PEXPIRE', found.key, longest)
  call('HSET', found.key, holder.owner, field_of(holder))
  try('PEXPIRE', found.index, longest)
end

local function remove(name, holder)
  local found = census(lock_of(name))
  if found.count <= 1 then
    -- It goes at the end, unless another holds it by then: if anything fails on the way, nothing has happened. And
    -- what is not there cannot be made while its slot moves. (The lease stays as it is; but once a script has changed
    -- anything, a full server lets it write on.)
    call('PEXPIRE', found.key, math.max(1, holder.ends - now))
    found.doomed, found.former = found.hash and 'hash' or 'x', holder.owner
    found.count, found.mode, found.holder, found.hash, found.cell, found.has_cell = 0, nil, nil, nil, nil, nil
    doomed[#doomed + 1] = found
    return
  end
  if found.has_cell then
    local cell = call('HMGET', found.key, MARK)[1]
    if sub(cell, 1, #holder.token + 1) == holder.token .. ' ' then
      call('HDEL', found.key, MARK)
      found.has_cell = false
    end
  end
  call('HDEL', found.key, holder.owner)
  call('ZREM', found.index, holder.owner)
  found.count = found.count - 1
  -- It may have been the only one that was known to be alive.
  found.counted = not found.has_due
end

local function agrees(a, b)
  return a == b or (sub(a, 1, 1) ~= 'n' and sub(b, 1, 1) ~= 'n')
end

local function admits(name, mode)
  local found = census(lock_of(name))
  if found.count == 0 then
    return true
  end
  if mode == 'x' or found.mode ~= mode then
    return false
  end
  return mode == 's' or found.count < tonumber(sub(mode, 2))
end

-- A place in line, if its lease has not ended.
local function ticket(owner, name)
  local key = P .. 't:' .. owner
  local value = call('GET', key)
  if not value then
    return nil
  end
  local place, since, length, from = string.match(value, '^(%d+) (%d+) (%d+) ()')
  local text = tonumber(length) > 0 and sub(value, from, from + length - 1)
  local wants = text and cjson.decode(text) or { wants = { { name, 'x' } }, rule = 'all' }
  local tail = sub(value, from + length)
  local ttl, client = string.match(tail, '^(%d+) (%x+) ')
  local left = call('PTTL', key)
  if left < 0 or left > tonumber(ttl) then
    call('PEXPIRE', key, ttl)
    left = tonumber(ttl)
  end
  return { owner = owner, place = tonumber(place), wants = wants.wants, rule = wants.rule, tail = tail,
    ttl = tonumber(ttl), client = client, left = left, text = text or 'x ' .. name }
end

local function tear_up(owner, wants)
  call('DEL', P .. 't:' .. owner)
  for _, want in ipairs(wants) do
    call('ZREM', P .. 'q:' .. want[1], owner)
  end
end

local reach = {}
local function reachable(client)
  if client == CLIENT then
    return true
  end
  if reach[client] == nil then
    local counted = try('PUBSUB', 'NUMSUB', CHANNELS .. client)
    reach[client] = counted.err ~= nil or counted[2] > 0
  end
  return reach[client]
end

-- Of those whose client does not listen so many stay in the queue. A client may die with thousands of tickets: all behind
-- these are taken out of the queue. Their place is in the ticket, and their next check puts them back.
local ABSENT = 2 * CROWD

-- Passes over tickets that have ended, which are removed, and tickets of clients that do not listen, beginning at the rank
-- `skip`. Returns the rank at which to look next.
local function pass_over(key, skip)
  local owners = call('ZRANGE', key, skip, skip + CROWD - 1)
  local tickets, gone = {}, {}
  for at, owner in ipairs(owners) do
    tickets[at] = P .. 't:' .. owner
  end
  for at, value in ipairs(call('MGET', unpack(tickets))) do
    local length, from = string.match(value or '', '^%d+ %d+ (%d+) ()')
    if length and reachable(string.match(value, '^%d+ (%x+) ', from + length)) then
      break
    end
    if length and skip < ABSENT then
      skip = skip + 1
    else
      gone[#gone + 1] = owners[at]
    end
  end
  if #gone > 0 then
    call('ZREM', key, unpack(gone))
  end
  patience = patience - 3
  return skip
end

-- The first in the queue of `name` whose client listens. The second result is true if this call has looked at as many as
-- it may. With `least` it may look at so many in any case.
local function first_in_line(name, least)
  local key, skip, seen, longest = LINE .. name, 0, 0, 0
  local floor = least and math.min(0, patience - least) or 0
  while patience > floor do
    patience = patience - 1
    local owner = call('ZRANGE', key, skip, skip)[1]
    if not owner then
      if skip > 0 and skip == seen then
        -- No client of a ticket that is left listens: the queue ends with the last of them.
        call('PEXPIRE', key, longest)
      end
      return nil, false
    end
    local waiter = ticket(owner, name)
    if waiter and reachable(waiter.client) then
      return waiter, false
    end
    if waiter then
      seen, longest = seen + 1, math.max(longest, waiter.left, 1)
    end
    skip = pass_over(key, skip)
  end
  unsettled[name] = true
  return nil, true
end

-- Enough to pass over all tickets that stay in a queue although their clients do not listen.
local ENOUGH = 16

-- Whether none that is present stands before this place. However many names an attempt wants, each is looked at.
local function is_first(name, place)
  local first, is_unknown = first_in_line(name, ENOUGH)
  return not is_unknown and (not first or first.place >= place)
end

-- Which of the wants may be granted to whoever is first in the line of `name`; counted from 0.
local function turn_of(waiter, name)
  if waiter.rule == 'any' then
    for at, want in ipairs(waiter.wants) do
      if want[1] == name then
        return admits(name, want[2]) and at - 1 or nil
      end
    end
    return nil
  end
  for _, want in ipairs(waiter.wants) do
    if not admits(want[1], want[2]) or (#waiter.wants > 1 and not is_first(want[1], waiter.place)) then
      return nil
    end
  end
  return 0
end

local function grant(owner, wants, rule, chosen, token, tail)
  local ttl, client, length, from = string.match(tail, '^(%d+) (%x+) (%d+) ()')
  local rest = sub(tail, from, from + length - 1)
  tail = digits(now) .. ' ' .. chosen .. ' ' .. tail
  token = digits(token)
  for at, want in ipairs(wants) do
    if rule == 'all' or at == chosen + 1 then
      local found = lock_of(want[1])
      local holder = { owner = owner, token = token, mode = want[2], ends = now + ttl, ttl = tonumber(ttl),
        client = client, chosen = chosen, tail = tail, rest = rest }
      if want[2] == 'x' then
        found.head = owner .. ' ' .. token .. ' ' .. tail
        found.cell, found.count, found.mode, found.holder = '', 1, 'x', holder
        call('SET', found.key, found.head, 'PX', ttl)
        if found.doomed == 'hash' then
          call('DEL', found.index)
        end
      elseif found.doomed == 'hash' then
        put(found, holder)
        call('HDEL', found.key, found.former, MARK)
        call('ZREM', found.index, found.former)
      else
        if found.doomed then
          call('DEL', found.key)
        end
        put(found, holder)
      end
      found.doomed = nil
    end
  end
end

-- Hands on everything that is free in these lines, and in those that become free by it. `self` is whoever asks: it
-- gets its answer without a push.
local function settle(names, self)
  while #names > 0 do
    local name = table.remove(names)
    while census(lock_of(name)).mode ~= 'x' do
      local waiter = first_in_line(name)
      local chosen = waiter and turn_of(waiter, name)
      if not chosen then
        break
      end
      local owner = waiter.owner
      if owner ~= self and SOFT then
        try('PUBLISH', CHANNELS .. waiter.client, 'T ' .. owner .. ' ' .. waiter.ttl .. ' ' .. waiter.text)
        break
      end
      local token = mint()
      -- The ticket goes first: if that is not permitted, nothing has changed, and no owner both holds and waits.
      tear_up(owner, waiter.wants)
      grant(owner, waiter.wants, waiter.rule, chosen, token, waiter.tail)
      for _, want in ipairs(waiter.wants) do
        if want[1] ~= name then
          names[#names + 1] = want[1]
        end
      end
      if owner ~= self then
        -- Told last, when it is true. If this fails, its heartbeat finds out.
        try('PUBLISH', CHANNELS .. waiter.client,
          'G ' .. owner .. ' ' .. digits(token) .. ' ' .. waiter.ttl .. ' ' .. chosen .. ' ' .. waiter.text)
      end
    end
  end
end

local function names_of(wants)
  local names = {}
  for at, want in ipairs(wants) do
    names[at] = want[1]
  end
  return names
end

-- What this attempt holds, if it holds all it must.
local function award_of(op)
  local held, first = 0, nil
  for _, want in ipairs(op.wants) do
    local holder = holder_of(want[1], op.owner)
    if holder then
      held = held + 1
      first = first or holder
    end
  end
  if first and (op.rule == 'any' or held == #op.wants) then
    return first
  end
end

-- When a lock that several hold is worth another look: when one slot becomes free if it has slots, otherwise when the last
-- of the leases that are known ends.
local function room_in(found)
  if sub(found.mode, 1, 1) ~= 'n' then
    local last = call('ZRANGE', found.index, -1, -1)
    if last[1] and last[1] ~= MARK then
      refresh(found, last)
    end
    return tonumber(call('ZRANGE', found.index, -1, -1, 'WITHSCORES')[2] or now) - now
  end
  local score
  -- The soonest by the index may have been renewed. If the one that takes its place was compared too, its time is exact;
  -- after a few hundred a time that may be too early will do.
  for _, limit in ipairs({ 1, CROWD, CROWD, CROWD }) do
    local compared, owners = {}, indexed(found, '(' .. digits(now), '+inf', limit)
    if #owners == 0 then
      break
    end
    refresh(found, owners)
    for _, owner in ipairs(owners) do
      compared[owner] = true
    end
    owners, score = indexed(found, '(' .. digits(now), '+inf', 1)
    if compared[owners[1] or ''] then
      break
    end
  end
  return (score or now) - now
end

-- When the holder and the waiter just before it will have ended, should they not be renewed.
local function turn_in(op)
  local soonest, latest = FAR, 1
  for _, want in ipairs(op.wants) do
    local found = census(lock_of(want[1]))
    if not found.room then
      found.room = found.hash and room_in(found) or found.holder and found.holder.ends - now or 1
    end
    local room = found.room
    local key = LINE .. want[1]
    local rank = call('ZRANK', key, op.owner)
    if rank and rank > 0 then
      local before = call('ZRANGE', key, rank - 1, rank - 1)[1]
      room = math.max(room, call('PTTL', P .. 't:' .. before))
    end
    soonest, latest = math.min(soonest, room), math.max(latest, room)
  end
  return math.max(1, op.rule == 'any' and soonest or latest)
end

-- The place in line lives for another ttl; nil if there is none.
local function touch(op)
  -- Only looked at if it is not there: once a script has changed anything, a full server lets it write on.
  local value = call('GET', P .. 't:' .. op.owner)
  if not value then
    return nil
  end
  call('PEXPIRE', P .. 't:' .. op.owner, op.ttl)
  for _, want in ipairs(op.wants) do
    local key = LINE .. want[1]
    -- The queue may have been deleted, or moved to another node before the ticket was, or its client did not listen.
    call('ZADD', key, string.match(value, '^%d+'), op.owner)
    if call('PTTL', key) < op.ttl then
      call('PEXPIRE', key, op.ttl)
    end
  end
  -- It must outlive every line.
  if not CLUSTER and call('PTTL', P .. 'w') < op.ttl then
    call('SET', P .. 'w', '1', 'PX', op.ttl)
  end
  return true
end

-- What this attempt has: a grant, which is renewed, or a place in line if `waits`.
local function standing(op, waits)
  local award = award_of(op)
  if award then
    for at, want in ipairs(op.wants) do
      local holder = (op.rule == 'all' or at == award.chosen + 1) and holder_of(want[1], op.owner)
      if holder then
        extend(want[1], holder)
      end
    end
    return { 'G', tonumber(award.token), award.chosen }
  end
  return waits and { 'W', turn_in(op) } or nil
end

-- Whether those who are there take the lock for something else. Whoever waits agrees with whoever holds.
local function conflict(want)
  local mode = census(lock_of(want[1])).mode
  if not mode then
    local first = call('ZRANGE', P .. 'q:' .. want[1], 0, 0)[1]
    local waiter = first and ticket(first, want[1])
    for _, wanted in ipairs(waiter and waiter.wants or {}) do
      if wanted[1] == want[1] then
        mode = wanted[2]
      end
    end
  end
  if mode and not agrees(mode, want[2]) then
    return { 'C', want[1], mode, want[2] }
  end
end

local function acquire(op)
  local left = call('ZSCORE', P .. 'd', op.owner)
  if left and tonumber(left) > now then
    return 0
  end
  settle(names_of(op.wants))
  local answer = standing(op, touch(op))
  if answer then
    return answer
  end
  for _, want in ipairs(op.wants) do
    local against = conflict(want)
    if against then
      return against
    end
  end
  local chosen
  for at, want in ipairs(op.wants) do
    local free = admits(want[1], want[2]) and is_first(want[1], FAR)
    if op.rule == 'any' then
      chosen = chosen or (free and at - 1) or nil
    elseif not free then
      chosen = nil
      break
    else
      chosen = 0
    end
  end
  if chosen then
    local token = mint()
    grant(op.owner, op.wants, op.rule, chosen, token, op.tail)
    return { 'G', token, chosen }
  end
  if op.op == 'T' then
    return 0
  end
  local wants = ''
  if #op.wants > 1 or op.wants[1][2] ~= 'x' then
    wants = cjson.encode({ wants = op.wants, rule = op.rule })
  end
  local place = digits(mint())
  call('SET', P .. 't:' .. op.owner, place .. ' ' .. digits(now) .. ' ' .. #wants .. ' ' .. wants .. op.tail,
    'PX', op.ttl)
  touch(op)
  settle(names_of(op.wants), op.owner)
  return standing(op, true)
end

local function check(op)
  -- The ticket lives again before anybody looks whether it does: whoever asks is alive.
  local waits = touch(op)
  settle(names_of(op.wants), op.owner)
  return standing(op, waits) or 5
end

local function leave(op)
  settle(names_of(op.wants))
  local award = award_of(op)
  if award then
    return { 'H', tonumber(award.token), award.chosen }
  end
  for _, want in ipairs(op.wants) do
    local holder = holder_of(want[1], op.owner)
    if holder then
      remove(want[1], holder)
    end
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    tear_up(op.owner, op.wants)
  else
    local key = P .. 'd'
    call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
    call('ZADD', key, digits(now + op.ttl), op.owner)
    if call('PTTL', key) < op.ttl then
      call('PEXPIRE', key, op.ttl)
    end
  end
  settle(names_of(op.wants))
  return 4
end

local function release(op)
  local held = false
  for _, want in ipairs(op.wants) do
    local holder = holds(want[1], op.owner, op.token)
    if holder then
      held = true
      remove(want[1], holder)
    end
  end
  settle(names_of(op.wants))
  return held and 1 or 3
end

local function renew(op)
  local held = {}
  for at, want in ipairs(op.wants) do
    held[at] = holds(want[1], op.owner, op.token)
    if not held[at] then
      -- Of several names some may be left, if others were taken away behind our back.
      release(op)
      return 3
    end
  end
  for at, want in ipairs(op.wants) do
    extend(want[1], held[at])
  end
  return 2
end

-- Goes on with what an earlier call has left undone.
local function go_on(op)
  settle(names_of(op.wants))
  return 1
end

local function break_lock(op)
  local name = op.wants[1][1]
  for _, holder in ipairs(everyone(lock_of(name))) do
    if holder.token == op.token and holder.ends > now then
      local rest = holder.rest ~= '' and cjson.decode(holder.rest) or {}
      local names = rest.names or { name }
      for _, each in ipairs(names) do
        local there = holder_of(each, holder.owner)
        if there then
          remove(each, there)
        end
      end
      try('PUBLISH', CHANNELS .. holder.client, 'X ' .. holder.owner)
      settle(names)
      return 1
    end
  end
  settle({ name })
  return 3
end

local function read_cell(op)
  local name = op.wants[1][1]
  local found = lock_of(name)
  local cell = found.hash and call('HMGET', found.key, MARK)[1]
  if cell then
    local token, from = string.match(cell, '^(%d+) ()')
    for _, holder in ipairs(everyone(found)) do
      if holder.token == token and holder.ends > now then
        return { 'V', tonumber(token), sub(cell, from) }
      end
    end
  elseif found.cell and found.cell ~= '' then
    return { 'V', tonumber(found.holder.token), sub(found.cell, 2) }
  end
  local value = call('GET', P .. 'v:' .. name)
  if not value then
    return { 'V' }
  end
  local token, from = string.match(value, '^(%d+) ()')
  return { 'V', tonumber(token), sub(value, from) }
end

local function write_cell(op, bytes)
  local name = op.wants[1][1]
  local holder = holds(name, op.owner, op.token)
  if not holder then
    return 3
  end
  local found, kept = lock_of(name), P .. 'v:' .. name
  if op.keep == 'held' then
    if found.hash then
      call('HSET', found.key, MARK, op.token .. ' ' .. bytes)
      found.has_cell = true
    else
      found.cell = 'C' .. bytes
      call('SET', found.key, found.head .. found.cell, 'KEEPTTL')
    end
    call('DEL', kept)
    return 6
  end
  if op.keep == 'always' then
    call('SET', kept, op.token .. ' ' .. bytes)
  else
    call('SET', kept, op.token .. ' ' .. bytes, 'PX', op.keep)
  end
  if found.hash then
    call('HDEL', found.key, MARK)
    found.has_cell = false
  elseif found.cell ~= '' then
    call('SET', found.key, found.head, 'KEEPTTL')
    found.cell = ''
  end
  return 6
end

-- Removes what is no longer held.
local function bury(answer)
  for _, found in ipairs(doomed) do
    if found.doomed == 'hash' then
      call('DEL', found.index)
    end
    if found.doomed then
      call('DEL', found.key)
      found.doomed = nil
    end
  end
  doomed = {}
  return answer
end

local rules = { A = acquire, T = acquire, C = check, L = leave, N = renew, R = release, B = break_lock,
  S = go_on, V = read_cell, W = write_cell }

for _, i in ipairs(slow) do
  -- However much the others took: the next in line must be told.
  patience = math.max(patience, ENOUGH)
  local o = words[i]
  local kind = A[o + 1]
  local op
  if kind == 'G' then
    op = cjson.decode(A[o + 5])
    op.owner, op.ttl = A[o + 3], tonumber(A[o + 4])
  else
    op = { op = kind, owner = A[o + 3], ttl = tonumber(A[o + 4]), tail = A[o + 5], rule = 'all',
      wants = { { A[o + 2], 'x' } } }
    if kind == 'R' or kind == 'N' then
      op.owner, op.token = string.match(op.owner, '^(%x+) (%d+) $')
    end
  end
  local fine, answer = pcall(rules[op.op], op, A[o + 4])
  if fine then
    fine, answer = pcall(bury, answer)
  end
  if fine then
    out[i] = answer
  else
    -- What was remembered of these locks may be half of a change.
    loaded, doomed = {}, {}
    out[i] = { 'E', type(answer) == 'table' and answer.err or tostring(answer) }
  end
end
local names = {}
for name in pairs(unsettled) do
  names[#names + 1] = name
end
if #names > 0 then
  out[i + 1] = names
end
return out
