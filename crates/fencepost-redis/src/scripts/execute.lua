-- Executes one batch of operations of one client on the locks of one prefix. Each operation is atomic; the replies are in
-- the order of the operations.
--
-- Keys, all below the prefix P:
--   l:NAME   the holders. A string if exclusive: "OWNER TOKEN SINCE CHOSEN TTL CLIENT LENGTH REST", then "C" and the
--            bytes of the cell if the cell ends with the grant. A hash if shared or a semaphore: OWNER -> "MODE TOKEN UNTIL
--            SINCE CHOSEN TTL CLIENT LENGTH REST", and "=" -> "TOKEN BYTES" for such a cell. REST is JSON of LENGTH bytes:
--            the label, the metadata, and the names if the attempt wants all of several.
--   q:NAME   the queue: a sorted set of owners by position.
--   t:OWNER  a ticket, which expires with its lease: "POSITION SINCE LENGTH WANTS", and what the client sent,
--            "TTL CLIENT LENGTH REST". Empty WANTS stand for one exclusive name.
--   v:NAME   a cell that outlives its grant: "TOKEN BYTES".
--   d:NAME   the index of a hash: owners by a time before which their lease cannot have expired, and "=" by the time of the
--            last change of the index. It is compared with the hash, so that it may be missing or outdated.
--   d        tombstones: owners that have left before their acquire arrived, by the time at which the tombstone expires.
--   c        the last token or position that was assigned.
--   w        exists while there may be a waiter of any lock (not in a cluster).
--
-- ARGV: P, the client's id, the prefix of channels, the largest token that the client has seen, how long `c` is kept (0: for
-- ever), whether a free lock is only offered to a waiter, which must acquire it itself (1), and then for each operation:
--   A, T  name, owner, ttl, tail   acquire an exclusive lock; if it is busy, A joins the queue and T does not
--   R     name, value prefix       release; the prefix is "OWNER TOKEN ", the beginning of the stored value
--   N     name, value prefix, ttl  renew
--   G     name, owner, ttl, JSON   everything else: {op, wants, rule, tail, token, keep}; instead of the ttl the bytes of a
--                                  cell that is written. op is A, T, R or N as above, C check, L leave, B break, V read a
--                                  cell, W write a cell, or S finish hand-overs
-- The tail is "TTL CLIENT LENGTH REST", as it is stored.
--
-- One reply for each operation, and one more if a call would have blocked the server for too long: the names of the locks
-- with unfinished hand-overs, which the client continues with operation S.
--
-- Replies: 0 busy, 1 released, 2 renewed, 3 not held, 4 left, 5 no ticket, 6 cell written; a larger number is the token of a
-- grant. {G, token, chosen} granted, {H, token, chosen} already granted (to a leave), {W, ms} waiting, and when to check again,
-- {V, token, bytes} a cell, {C, name, mode, wanted} in use in an incompatible mode, {E, message} an error.
--
-- The first part executes most operations in bulk, with a few commands for all of them. The second part
-- executes the others one by one: kind G, operations on a name that an earlier operation of the batch uses, acquires and
-- releases of locks with a queue, acquires of locks that are not free, and all acquires while there are tombstones. Both
-- parts read before they write.
local A, call, try, sub, format = ARGV, redis.call, redis.pcall, string.sub, string.format
local P, CLIENT, CHANNELS = A[1], A[2], A[3]
local LARGEST_SEEN, RETENTION, OFFER_ONLY = tonumber(A[4]), A[5], A[6] == '1'
-- In a cluster the counter expires; see token_retention.
local CLUSTER = RETENTION ~= '0'
local LOCK, QUEUE = P .. 'l:', P .. 'q:'
-- The largest token that a client reports is used only up to this far ahead of the server's time, in microseconds.
local MAX_AHEAD = 24 * 3600 * 1000000
local replies, one_by_one, now_us, last_token = {}, nil, nil, nil
local NUMBERS = '@NUMBERS@'

-- The first part: operations with kind A, T, R or N on names that no earlier operation of the batch uses. `offsets` is where
-- the arguments of an operation begin.
local used_names, offsets, acquires, holder_ops, holder_keys = {}, {}, {}, {}, {}
local acquire_count, holder_count = 0, 0
local offset, index, size = 6, 0, #A
while offset < size do
  index = index + 1
  local kind, name = A[offset + 1], A[offset + 2]
  offsets[index] = offset
  if used_names[name] or kind == 'G' then
    one_by_one = one_by_one or {}
    one_by_one[#one_by_one + 1] = index
    if kind == 'G' then
      for _, want in ipairs(cjson.decode(A[offset + 5]).wants) do
        used_names[want[1]] = true
      end
    end
  elseif kind == 'A' or kind == 'T' then
    acquire_count = acquire_count + 1
    acquires[acquire_count] = index
  else
    holder_count = holder_count + 1
    holder_ops[holder_count] = index
    holder_keys[holder_count] = LOCK .. name
  end
  used_names[name] = true
  offset = offset + (kind == 'R' and 3 or kind == 'N' and 4 or 5)
end

-- Which locks have a queue. Not read if no lock has one, nor for a renewal in a cluster, which reads only its lock.
local queued, has_tombstones = nil, false
local is_renewal = acquire_count == 0 and holder_count == 1 and A[offsets[holder_ops[1]] + 1] == 'N'
if CLUSTER and not is_renewal or not CLUSTER and call('EXISTS', P .. 'w', P .. 'd') > 0 then
  has_tombstones = acquire_count > 0 and call('EXISTS', P .. 'd') == 1
  local names, keys = {}, {}
  for _, group in ipairs({ acquires, holder_ops }) do
    for _, index in ipairs(group) do
      local offset = offsets[index]
      if A[offset + 1] ~= 'N' then
        names[#names + 1] = A[offset + 2]
        keys[#keys + 1] = QUEUE .. A[offset + 2]
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

if holder_count > 0 then
  local values, deleted, deleted_count = call('MGET', unpack(holder_keys)), {}, 0
  for j = 1, holder_count do
    local index = holder_ops[j]
    local offset = offsets[index]
    local kind, value_prefix, value = A[offset + 1], A[offset + 3], values[j]
    local is_ours = value and sub(value, 1, #value_prefix) == value_prefix
    if kind == 'N' then
      if is_ours then
        call('PEXPIRE', holder_keys[j], A[offset + 4])
      end
      replies[index] = is_ours and 2 or 3
    elseif queued and queued[A[offset + 2]] then
      one_by_one = one_by_one or {}
      one_by_one[#one_by_one + 1] = index
    else
      if is_ours then
        deleted_count = deleted_count + 1
        deleted[deleted_count] = holder_keys[j]
      end
      replies[index] = is_ours and 1 or 3
    end
  end
  if deleted_count > 0 then
    call('DEL', unpack(deleted))
  end
end

if acquire_count > 0 then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
  last_token = tonumber(call('GET', P .. 'c') or 0)
  local token = math.max(last_token + 1, now_us, math.min(LARGEST_SEEN + 1, now_us + MAX_AHEAD))
  last_token = token + acquire_count - 1
  local stored
  if RETENTION == '0' then
    stored = try('SET', P .. 'c', format('%.0f', last_token))
  else
    stored = try('SET', P .. 'c', format('%.0f', last_token), 'PX', RETENTION)
  end
  local since = ' ' .. format('%.0f', now_us / 1000) .. ' 0 '
  -- Formatting a number is expensive: only its thousands are formatted, the last three digits are cut out of a list.
  local thousands, last_three = nil, 1000
  for j = 1, acquire_count do
    local index = acquires[j]
    local offset = offsets[index]
    local name, result = A[offset + 2], false
    if last_three > 999 then
      thousands, last_three = format('%.0f', math.floor(token / 1000)), token % 1000
    end
    if stored.err then
      result = stored
    elseif not has_tombstones and not (queued and queued[name]) then
      local token_digits = thousands .. sub(NUMBERS, last_three * 3 + 1, last_three * 3 + 3)
      local value = A[offset + 3] .. ' ' .. token_digits .. since .. A[offset + 5]
      result = try('SET', LOCK .. name, value, 'PX', A[offset + 4], 'NX')
    end
    if not result then
      one_by_one = one_by_one or {}
      one_by_one[#one_by_one + 1] = index
    elseif result.err then
      replies[index] = { 'E', result.err }
    else
      replies[index] = token
    end
    token, last_three = token + 1, last_three + 1
  end
end
if not one_by_one then
  return replies
end
table.sort(one_by_one)

-- The second part: all rules of the lock, one operation at a time.
if not now_us then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = math.floor(now_us / 1000)
local NEVER = 2 ^ 53
-- No call may block the server for long. When the budget is used up, the call returns the unfinished locks, and the client
-- calls again.
local budget = 32
local loaded, pending_deletes, unfinished = {}, {}, {}
-- How many entries of an index or a queue are read at once.
local BATCH = 128
-- Instead of an owner: the field of a hash that is the cell, and the member of an index whose score is the time of its last
-- change.
local CELL_FIELD, CHANGED_MEMBER = '=', '='

local function digits(number)
  return format('%.0f', number)
end

local function next_token()
  last_token = last_token or tonumber(call('GET', P .. 'c') or 0)
  last_token = math.max(last_token + 1, now_us, math.min(LARGEST_SEEN + 1, now_us + MAX_AHEAD))
  if RETENTION == '0' then
    call('SET', P .. 'c', digits(last_token))
  else
    call('SET', P .. 'c', digits(last_token), 'PX', RETENTION)
  end
  return last_token
end

-- Loads a lock: `holder` is set if it is held exclusively, `hash` if several may hold it. The fields of a hash are not read
-- yet; `count_holders` does that.
local function load_lock(name)
  local known = loaded[name]
  if known then
    return known
  end
  local key = LOCK .. name
  local lock = { name = name, key = key, index = P .. 'd:' .. name, count = 0 }
  local value = try('GET', key)
  if type(value) == 'string' then
    local owner, token, since, chosen, ttl, client, length, from =
      string.match(value, '^(%x+) (%d+) (%d+) (%d+) (%d+) (%x+) (%d+) ()')
    local left = call('PTTL', key)
    lock.count, lock.mode = 1, 'x'
    if owner then
      ttl = tonumber(ttl)
      if left < 0 or left > ttl then
        call('PEXPIRE', key, ttl)
        left = ttl
      end
      local rest = sub(value, from, from + length - 1)
      lock.cell = sub(value, from + length)
      lock.head = sub(value, 1, from + length - 1)
      lock.holder = { owner = owner, token = token, mode = 'x', expires = now + left, ttl = ttl,
        client = client, chosen = tonumber(chosen), rest = rest }
    else
      lock.holder = { owner = '', token = '', mode = 'x', expires = left < 0 and NEVER or now + left }
    end
  elseif value then
    lock.hash = true
  end
  loaded[name] = lock
  return lock
end

-- Formats the field of a holder. `unchanged` is the part that a renewal does not change: "SINCE CHOSEN TTL CLIENT
-- LENGTH REST".
local function format_holder(holder)
  return holder.mode .. ' ' .. holder.token .. ' ' .. digits(holder.expires) .. ' ' .. holder.unchanged
end

-- Parses a field of a hash, whether or not its lease has expired. No lease is longer than its ttl: if it seems to be, the
-- server's clock was set back, and the field is corrected.
local function parse_holder(lock, owner, field)
  local mode, token, expires, unchanged_from = string.match(field, '^(%w+) (%d+) (%d+) ()')
  local unchanged = sub(field, unchanged_from)
  local chosen, ttl, client, length, from = string.match(unchanged, '^%d+ (%d+) (%d+) (%x+) (%d+) ()')
  expires, ttl = tonumber(expires), tonumber(ttl)
  local holder = { owner = owner, token = token, mode = mode, expires = math.min(expires, now + ttl), ttl = ttl,
    client = client, chosen = tonumber(chosen), unchanged = unchanged, rest = sub(unchanged, from, from + length - 1) }
  if expires > holder.expires then
    try('HSET', lock.key, owner, format_holder(holder))
  end
  return holder
end

-- Returns all holders of a lock, for the few operations that need each of them.
local function all_holders(lock)
  local holders = { lock.holder }
  local fields = lock.hash and call('HGETALL', lock.key) or {}
  for at = 1, #fields, 2 do
    if fields[at] ~= CELL_FIELD then
      holders[#holders + 1] = parse_holder(lock, fields[at], fields[at + 1])
    end
  end
  return holders
end

-- Calls a command with many arguments, in portions that fit on Lua's stack.
local function in_portions(command, key, arguments)
  for from = 1, #arguments, 1000 do
    call(command, key, unpack(arguments, from, math.min(from + 999, #arguments)))
  end
end

-- Rebuilds the index of a hash from its fields: there is none yet, a client of an earlier version has changed the hash, or
-- the clock was set back.
local function rebuild_index(lock)
  local known, scores = { [CHANGED_MEMBER] = true }, { digits(now), CHANGED_MEMBER }
  local expired, stale, longest = {}, {}, 0
  for _, holder in ipairs(all_holders(lock)) do
    if holder.expires > now then
      known[holder.owner], lock.mode = true, holder.mode
      scores[#scores + 1], scores[#scores + 2] = digits(holder.expires), holder.owner
      longest = math.max(longest, holder.expires - now)
    else
      expired[#expired + 1] = holder.owner
    end
  end
  for _, owner in ipairs(call('ZRANGE', lock.index, 0, -1)) do
    if not known[owner] then
      stale[#stale + 1] = owner
    end
  end
  lock.count = #scores / 2 - 1
  if lock.count > 0 then
    call('PEXPIRE', lock.key, longest)
    in_portions('HDEL', lock.key, expired)
    in_portions('ZADD', lock.index, scores)
    in_portions('ZREM', lock.index, stale)
    call('PEXPIRE', lock.index, longest)
  else
    call('DEL', lock.index)
  end
end

-- Compares these entries of the index with the hash: removes holders whose lease has expired, and stores when the others must
-- be compared again.
local function refresh(lock, owners)
  local scores, expired = { digits(now), CHANGED_MEMBER }, {}
  for at, field in ipairs(call('HMGET', lock.key, unpack(owners))) do
    if not field then
      return rebuild_index(lock)
    end
    local holder = parse_holder(lock, owners[at], field)
    lock.mode = holder.mode
    if holder.expires > now then
      scores[#scores + 1], scores[#scores + 2] = digits(holder.expires), holder.owner
    else
      expired[#expired + 1] = holder.owner
    end
  end
  if #expired > 0 then
    call('HDEL', lock.key, unpack(expired))
    call('ZREM', lock.index, unpack(expired))
    lock.count = lock.count - #expired
  end
  if #scores > 2 then
    -- PEXPIRE first: once a script has written, a full server permits its further writes. If it does not, the entries are
    -- compared again next time.
    try('PEXPIRE', lock.index, math.max(1, call('PTTL', lock.key)))
    try('ZADD', lock.index, unpack(scores))
  end
end

-- Returns owners in the index with a score in this range, and the score of the first.
local function indexed(lock, from, to, limit)
  local members, owners, score = call('ZRANGEBYSCORE', lock.index, from, to, 'WITHSCORES', 'LIMIT', 0, limit), {}, nil
  for at = 1, #members, 2 do
    if members[at] ~= CHANGED_MEMBER then
      owners[#owners + 1] = members[at]
      score = score or tonumber(members[at + 1])
    end
  end
  return owners, score
end

-- Counts the holders of a lock whose lease has not expired, and finds their mode. The index has for each holder of a hash when
-- it must be compared next, which is never after its lease expires; renewals change only the hash.
local function count_holders(lock)
  if not lock.hash or lock.is_counted then
    return lock
  end
  lock.is_counted = true
  lock.has_cell = call('HEXISTS', lock.key, CELL_FIELD) == 1
  lock.count = call('HLEN', lock.key) - (lock.has_cell and 1 or 0)
  local changed = tonumber(call('ZSCORE', lock.index, CHANGED_MEMBER) or NEVER)
  if changed > now or call('ZCARD', lock.index) ~= lock.count + 1 then
    rebuild_index(lock)
  end
  local due, is_enough
  repeat
    due = indexed(lock, '-inf', digits(now), BATCH + 1)
    if #due > 0 then
      refresh(lock, due)
      budget = budget - 3
    end
    local live = indexed(lock, '(' .. digits(now), '+inf', 1)
    if not lock.mode and #live > 0 then
      refresh(lock, live)
    end
    -- One live holder is enough to know, unless the permits of a semaphore are counted.
    is_enough = #due < BATCH or #live > 0 and lock.mode and sub(lock.mode, 1, 1) ~= 'n'
  until is_enough or budget <= 0
  lock.has_more_due = #due >= BATCH
  if not is_enough then
    unfinished[lock.name] = true
  end
  if lock.count == 0 then
    call('DEL', lock.index)
    call('DEL', lock.key)
    lock.hash, lock.mode, lock.has_cell = nil, nil, nil
  end
  return lock
end

local function holder_of(name, owner)
  local lock = load_lock(name)
  if not lock.hash then
    return lock.holder and lock.holder.owner == owner and lock.holder or nil
  end
  local field = call('HMGET', lock.key, owner)[1]
  local holder = field and parse_holder(lock, owner, field)
  if holder and holder.expires > now then
    return holder
  end
end

local function holder_with_token(name, owner, token)
  local holder = holder_of(name, owner)
  return holder and holder.token == token and holder or nil
end

-- Adds a holder to a hash, which expires no earlier than its last holder.
local function add_holder(lock, holder)
  local longest = math.max(call('PTTL', lock.key), holder.ttl)
  lock.count = lock.count + call('HSET', lock.key, holder.owner, format_holder(holder))
  call('PEXPIRE', lock.key, longest)
  call('ZADD', lock.index, digits(now), CHANGED_MEMBER, digits(holder.expires), holder.owner)
  call('PEXPIRE', lock.index, longest)
  lock.hash, lock.is_counted, lock.mode = true, true, holder.mode
end

-- Renews a lease for its ttl from now. The cost does not depend on the number of other holders. Of a hash only its own key is
-- required: while a slot migrates, the index may be on the other node.
local function renew_lease(name, holder)
  local lock = load_lock(name)
  holder.expires = now + holder.ttl
  if not lock.hash then
    call('PEXPIRE', lock.key, holder.ttl)
    return
  end
  local longest = math.max(call('PTTL', lock.key), holder.ttl)
  call('PEXPIRE', lock.key, longest)
  call('HSET', lock.key, holder.owner, format_holder(holder))
  try('PEXPIRE', lock.index, longest)
end

local function remove_holder(name, holder)
  local lock = count_holders(load_lock(name))
  if lock.count <= 1 then
    -- The key is deleted at the end of the operation, unless it has another holder by then: if anything fails before, nothing
    -- has changed; and while its slot migrates, a key that was deleted could not be created again. (PEXPIRE does not
    -- change the lease; but once a script has written, a full server permits its further writes.)
    call('PEXPIRE', lock.key, math.max(1, holder.expires - now))
    lock.pending_delete, lock.former_owner = lock.hash and 'hash' or 'x', holder.owner
    lock.count, lock.mode, lock.holder, lock.hash, lock.cell, lock.has_cell = 0, nil, nil, nil, nil, nil
    pending_deletes[#pending_deletes + 1] = lock
    return
  end
  if lock.has_cell then
    local cell = call('HMGET', lock.key, CELL_FIELD)[1]
    if sub(cell, 1, #holder.token + 1) == holder.token .. ' ' then
      call('HDEL', lock.key, CELL_FIELD)
      lock.has_cell = false
    end
  end
  call('HDEL', lock.key, holder.owner)
  call('ZREM', lock.index, holder.owner)
  lock.count = lock.count - 1
  -- It may have been the only holder that was known to be live.
  lock.is_counted = not lock.has_more_due
end

local function are_compatible(a, b)
  return a == b or (sub(a, 1, 1) ~= 'n' and sub(b, 1, 1) ~= 'n')
end

local function has_room(name, mode)
  local lock = count_holders(load_lock(name))
  if lock.count == 0 then
    return true
  end
  if mode == 'x' or lock.mode ~= mode then
    return false
  end
  return mode == 's' or lock.count < tonumber(sub(mode, 2))
end

-- Loads a ticket; nil if its lease has expired.
local function load_ticket(owner, name)
  local key = P .. 't:' .. owner
  local value = call('GET', key)
  if not value then
    return nil
  end
  local position, since, length, from = string.match(value, '^(%d+) (%d+) (%d+) ()')
  local text = tonumber(length) > 0 and sub(value, from, from + length - 1)
  local wants = text and cjson.decode(text) or { wants = { { name, 'x' } }, rule = 'all' }
  local tail = sub(value, from + length)
  local ttl, client = string.match(tail, '^(%d+) (%x+) ')
  local left = call('PTTL', key)
  if left < 0 or left > tonumber(ttl) then
    call('PEXPIRE', key, ttl)
    left = tonumber(ttl)
  end
  return { owner = owner, position = tonumber(position), wants = wants.wants, rule = wants.rule, tail = tail,
    ttl = tonumber(ttl), client = client, left = left, text = text or 'x ' .. name }
end

local function delete_ticket(owner, wants)
  call('DEL', P .. 't:' .. owner)
  for _, want in ipairs(wants) do
    call('ZREM', P .. 'q:' .. want[1], owner)
  end
end

local subscribed = {}
local function is_subscribed(client)
  if client == CLIENT then
    return true
  end
  if subscribed[client] == nil then
    local counted = try('PUBSUB', 'NUMSUB', CHANNELS .. client)
    subscribed[client] = counted.err ~= nil or counted[2] > 0
  end
  return subscribed[client]
end

-- How many tickets of clients that are not subscribed stay in the queue. A client may crash with thousands of tickets: those
-- behind these are removed from the queue. The ticket keeps the position, and its next check adds it again.
local MAX_SKIPPED = 2 * BATCH

-- Skips tickets of clients that are not subscribed, and removes those that have expired, beginning at rank `skip`. Returns
-- the rank to continue at.
local function skip_unreachable(key, skip)
  local owners = call('ZRANGE', key, skip, skip + BATCH - 1)
  local tickets, removed = {}, {}
  for at, owner in ipairs(owners) do
    tickets[at] = P .. 't:' .. owner
  end
  for at, value in ipairs(call('MGET', unpack(tickets))) do
    local length, from = string.match(value or '', '^%d+ %d+ (%d+) ()')
    if length and is_subscribed(string.match(value, '^%d+ (%x+) ', from + length)) then
      break
    end
    if length and skip < MAX_SKIPPED then
      skip = skip + 1
    else
      removed[#removed + 1] = owners[at]
    end
  end
  if #removed > 0 then
    call('ZREM', key, unpack(removed))
  end
  budget = budget - 3
  return skip
end

-- Returns the first ticket in the queue of `name` whose client is subscribed. The second result is true if the budget was used
-- up before one was found. `min_budget` is a budget for this search that is available in any case.
local function first_waiter(name, min_budget)
  local key, skip, unreachable_count, longest = QUEUE .. name, 0, 0, 0
  local floor = min_budget and math.min(0, budget - min_budget) or 0
  while budget > floor do
    budget = budget - 1
    local owner = call('ZRANGE', key, skip, skip)[1]
    if not owner then
      if skip > 0 and skip == unreachable_count then
        -- No client of the remaining tickets is subscribed: the queue expires with the last of them.
        call('PEXPIRE', key, longest)
      end
      return nil, false
    end
    local waiter = load_ticket(owner, name)
    if waiter and is_subscribed(waiter.client) then
      return waiter, false
    end
    if waiter then
      unreachable_count, longest = unreachable_count + 1, math.max(longest, waiter.left, 1)
    end
    skip = skip_unreachable(key, skip)
  end
  unfinished[name] = true
  return nil, true
end

-- Enough to skip all tickets that stay in a queue although their clients are not subscribed.
local MIN_BUDGET = 16

-- Whether no live waiter has an earlier position. Uses a budget of its own, as an attempt may want many names.
local function is_first(name, position)
  local first, is_unknown = first_waiter(name, MIN_BUDGET)
  return not is_unknown and (not first or first.position >= position)
end

-- Returns the index, from 0, of the want that can be granted to the first waiter of `name`; nil if none can.
local function grantable_want(waiter, name)
  if waiter.rule == 'any' then
    for at, want in ipairs(waiter.wants) do
      if want[1] == name then
        return has_room(name, want[2]) and at - 1 or nil
      end
    end
    return nil
  end
  for _, want in ipairs(waiter.wants) do
    if not has_room(want[1], want[2]) or (#waiter.wants > 1 and not is_first(want[1], waiter.position)) then
      return nil
    end
  end
  return 0
end

local function grant(owner, wants, rule, chosen, token, tail)
  local ttl, client, length, from = string.match(tail, '^(%d+) (%x+) (%d+) ()')
  local rest = sub(tail, from, from + length - 1)
  local unchanged = digits(now) .. ' ' .. chosen .. ' ' .. tail
  token = digits(token)
  for at, want in ipairs(wants) do
    if rule == 'all' or at == chosen + 1 then
      local lock = load_lock(want[1])
      local holder = { owner = owner, token = token, mode = want[2], expires = now + ttl, ttl = tonumber(ttl),
        client = client, chosen = chosen, unchanged = unchanged, rest = rest }
      if want[2] == 'x' then
        lock.head = owner .. ' ' .. token .. ' ' .. unchanged
        lock.cell, lock.count, lock.mode, lock.holder = '', 1, 'x', holder
        call('SET', lock.key, lock.head, 'PX', ttl)
        if lock.pending_delete == 'hash' then
          call('DEL', lock.index)
        end
      elseif lock.pending_delete == 'hash' then
        add_holder(lock, holder)
        call('HDEL', lock.key, lock.former_owner, CELL_FIELD)
        call('ZREM', lock.index, lock.former_owner)
      else
        if lock.pending_delete then
          call('DEL', lock.key)
        end
        add_holder(lock, holder)
      end
      lock.pending_delete = nil
    end
  end
end

-- Grants these locks to their first waiters as far as they are free, and continues with the other locks of each granted
-- attempt, whose queues it has left. The owner `caller` gets its grant in the reply, without a push.
local function grant_waiters(names, caller)
  while #names > 0 do
    local name = table.remove(names)
    while count_holders(load_lock(name)).mode ~= 'x' do
      local waiter = first_waiter(name)
      local chosen = waiter and grantable_want(waiter, name)
      if not chosen then
        break
      end
      local owner = waiter.owner
      if owner ~= caller and OFFER_ONLY then
        try('PUBLISH', CHANNELS .. waiter.client, 'T ' .. owner .. ' ' .. waiter.ttl .. ' ' .. waiter.text)
        break
      end
      local token = next_token()
      -- The ticket is deleted first: if that is not permitted, nothing has changed, and no owner both holds and waits.
      delete_ticket(owner, waiter.wants)
      grant(owner, waiter.wants, waiter.rule, chosen, token, waiter.tail)
      for _, want in ipairs(waiter.wants) do
        if want[1] ~= name then
          names[#names + 1] = want[1]
        end
      end
      if owner ~= caller then
        -- Published last, when the grant is stored. If this fails, the waiter's heartbeat finds the grant.
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

-- Returns a holder record of this attempt if it holds all locks that its rule requires.
local function granted_holder(op)
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

-- Returns the time until a lock with several holders may become free: until the first lease expires if it is a semaphore,
-- otherwise until the last known one does.
local function next_free_in(lock)
  if sub(lock.mode, 1, 1) ~= 'n' then
    local last = call('ZRANGE', lock.index, -1, -1)
    if last[1] and last[1] ~= CHANGED_MEMBER then
      refresh(lock, last)
    end
    return tonumber(call('ZRANGE', lock.index, -1, -1, 'WITHSCORES')[2] or now) - now
  end
  local score
  -- The first lease in the index may have been renewed. If the one that is first then was compared too, its time is exact;
  -- after a few hundred comparisons a time that may be too early is good enough.
  for _, limit in ipairs({ 1, BATCH, BATCH, BATCH }) do
    local compared, owners = {}, indexed(lock, '(' .. digits(now), '+inf', limit)
    if #owners == 0 then
      break
    end
    refresh(lock, owners)
    for _, owner in ipairs(owners) do
      compared[owner] = true
    end
    owners, score = indexed(lock, '(' .. digits(now), '+inf', 1)
    if compared[owners[1] or ''] then
      break
    end
  end
  return (score or now) - now
end

-- Returns when a waiter should check again: when the leases of the holder and of the waiter before it expire unless renewed.
local function check_after(op)
  local soonest, latest = NEVER, 1
  for _, want in ipairs(op.wants) do
    local lock = count_holders(load_lock(want[1]))
    if not lock.free_in then
      lock.free_in = lock.hash and next_free_in(lock) or lock.holder and lock.holder.expires - now or 1
    end
    local free_in = lock.free_in
    local key = QUEUE .. want[1]
    local rank = call('ZRANK', key, op.owner)
    if rank and rank > 0 then
      local before = call('ZRANGE', key, rank - 1, rank - 1)[1]
      free_in = math.max(free_in, call('PTTL', P .. 't:' .. before))
    end
    soonest, latest = math.min(soonest, free_in), math.max(latest, free_in)
  end
  return math.max(1, op.rule == 'any' and soonest or latest)
end

-- Renews a ticket for its ttl; nil if there is none.
local function renew_ticket(op)
  -- If there is no ticket, nothing is written: once a script has written, a full server permits its further writes, also
  -- those of a new ticket.
  local value = call('GET', P .. 't:' .. op.owner)
  if not value then
    return nil
  end
  call('PEXPIRE', P .. 't:' .. op.owner, op.ttl)
  for _, want in ipairs(op.wants) do
    local key = QUEUE .. want[1]
    -- The queue may have been deleted, or migrated before the ticket, or the ticket was removed as its client was not
    -- subscribed.
    call('ZADD', key, string.match(value, '^%d+'), op.owner)
    if call('PTTL', key) < op.ttl then
      call('PEXPIRE', key, op.ttl)
    end
  end
  -- It must outlive every queue.
  if not CLUSTER and call('PTTL', P .. 'w') < op.ttl then
    call('SET', P .. 'w', '1', 'PX', op.ttl)
  end
  return true
end

-- Returns the reply about the present state of an attempt: its grant, which is renewed, or if `waits` that it waits; nil
-- otherwise.
local function current_reply(op, waits)
  local granted = granted_holder(op)
  if granted then
    for at, want in ipairs(op.wants) do
      local holder = (op.rule == 'all' or at == granted.chosen + 1) and holder_of(want[1], op.owner)
      if holder then
        renew_lease(want[1], holder)
      end
    end
    return { 'G', tonumber(granted.token), granted.chosen }
  end
  return waits and { 'W', check_after(op) } or nil
end

-- Returns the reply for a lock that is in use in an incompatible mode. Waiters are compatible with holders, so the first
-- waiter is read only if there is no holder.
local function mode_conflict(want)
  local mode = count_holders(load_lock(want[1])).mode
  if not mode then
    local first = call('ZRANGE', P .. 'q:' .. want[1], 0, 0)[1]
    local waiter = first and load_ticket(first, want[1])
    for _, wanted in ipairs(waiter and waiter.wants or {}) do
      if wanted[1] == want[1] then
        mode = wanted[2]
      end
    end
  end
  if mode and not are_compatible(mode, want[2]) then
    return { 'C', want[1], mode, want[2] }
  end
end

local function acquire(op)
  local tombstone = call('ZSCORE', P .. 'd', op.owner)
  if tombstone and tonumber(tombstone) > now then
    return 0
  end
  grant_waiters(names_of(op.wants))
  local current = current_reply(op, renew_ticket(op))
  if current then
    return current
  end
  for _, want in ipairs(op.wants) do
    local conflict = mode_conflict(want)
    if conflict then
      return conflict
    end
  end
  local chosen
  for at, want in ipairs(op.wants) do
    local free = has_room(want[1], want[2]) and is_first(want[1], NEVER)
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
    local token = next_token()
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
  local position = digits(next_token())
  call('SET', P .. 't:' .. op.owner, position .. ' ' .. digits(now) .. ' ' .. #wants .. ' ' .. wants .. op.tail,
    'PX', op.ttl)
  renew_ticket(op)
  grant_waiters(names_of(op.wants), op.owner)
  return current_reply(op, true)
end

local function check(op)
  -- Renewed before it is read: a client that checks is alive.
  local waits = renew_ticket(op)
  grant_waiters(names_of(op.wants), op.owner)
  return current_reply(op, waits) or 5
end

local function leave(op)
  grant_waiters(names_of(op.wants))
  local granted = granted_holder(op)
  if granted then
    return { 'H', tonumber(granted.token), granted.chosen }
  end
  for _, want in ipairs(op.wants) do
    local holder = holder_of(want[1], op.owner)
    if holder then
      remove_holder(want[1], holder)
    end
  end
  if call('EXISTS', P .. 't:' .. op.owner) == 1 then
    delete_ticket(op.owner, op.wants)
  else
    local key = P .. 'd'
    call('ZREMRANGEBYSCORE', key, '-inf', digits(now))
    call('ZADD', key, digits(now + op.ttl), op.owner)
    if call('PTTL', key) < op.ttl then
      call('PEXPIRE', key, op.ttl)
    end
  end
  grant_waiters(names_of(op.wants))
  return 4
end

local function release(op)
  local held = false
  for _, want in ipairs(op.wants) do
    local holder = holder_with_token(want[1], op.owner, op.token)
    if holder then
      held = true
      remove_holder(want[1], holder)
    end
  end
  grant_waiters(names_of(op.wants))
  return held and 1 or 3
end

local function renew(op)
  local held = {}
  for at, want in ipairs(op.wants) do
    held[at] = holder_with_token(want[1], op.owner, op.token)
    if not held[at] then
      -- If some of several names were deleted by another program, the remaining ones are released.
      release(op)
      return 3
    end
  end
  for at, want in ipairs(op.wants) do
    renew_lease(want[1], held[at])
  end
  return 2
end

-- Continues the hand-overs that an earlier call has left unfinished.
local function finish_hand_overs(op)
  grant_waiters(names_of(op.wants))
  return 1
end

local function break_lock(op)
  local name = op.wants[1][1]
  for _, holder in ipairs(all_holders(load_lock(name))) do
    if holder.token == op.token and holder.expires > now then
      local rest = holder.rest ~= '' and cjson.decode(holder.rest) or {}
      local names = rest.names or { name }
      for _, each in ipairs(names) do
        local held = holder_of(each, holder.owner)
        if held then
          remove_holder(each, held)
        end
      end
      try('PUBLISH', CHANNELS .. holder.client, 'X ' .. holder.owner)
      grant_waiters(names)
      return 1
    end
  end
  grant_waiters({ name })
  return 3
end

local function read_cell(op)
  local name = op.wants[1][1]
  local lock = load_lock(name)
  local cell = lock.hash and call('HMGET', lock.key, CELL_FIELD)[1]
  if cell then
    local token, from = string.match(cell, '^(%d+) ()')
    for _, holder in ipairs(all_holders(lock)) do
      if holder.token == token and holder.expires > now then
        return { 'V', tonumber(token), sub(cell, from) }
      end
    end
  elseif lock.cell and lock.cell ~= '' then
    return { 'V', tonumber(lock.holder.token), sub(lock.cell, 2) }
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
  local holder = holder_with_token(name, op.owner, op.token)
  if not holder then
    return 3
  end
  local lock, kept_key = load_lock(name), P .. 'v:' .. name
  if op.keep == 'held' then
    if lock.hash then
      call('HSET', lock.key, CELL_FIELD, op.token .. ' ' .. bytes)
      lock.has_cell = true
    else
      lock.cell = 'C' .. bytes
      call('SET', lock.key, lock.head .. lock.cell, 'KEEPTTL')
    end
    call('DEL', kept_key)
    return 6
  end
  if op.keep == 'always' then
    call('SET', kept_key, op.token .. ' ' .. bytes)
  else
    call('SET', kept_key, op.token .. ' ' .. bytes, 'PX', op.keep)
  end
  if lock.hash then
    call('HDEL', lock.key, CELL_FIELD)
    lock.has_cell = false
  elseif lock.cell ~= '' then
    call('SET', lock.key, lock.head, 'KEEPTTL')
    lock.cell = ''
  end
  return 6
end

-- Deletes the keys of locks that are no longer held.
local function apply_deletes(reply)
  for _, lock in ipairs(pending_deletes) do
    if lock.pending_delete == 'hash' then
      call('DEL', lock.index)
    end
    if lock.pending_delete then
      call('DEL', lock.key)
      lock.pending_delete = nil
    end
  end
  pending_deletes = {}
  return reply
end

local handlers = { A = acquire, T = acquire, C = check, L = leave, N = renew, R = release, B = break_lock,
  S = finish_hand_overs, V = read_cell, W = write_cell }

for _, index in ipairs(one_by_one) do
  -- However much budget the others have used: the successor must be notified.
  budget = math.max(budget, MIN_BUDGET)
  local offset = offsets[index]
  local kind = A[offset + 1]
  local op
  if kind == 'G' then
    op = cjson.decode(A[offset + 5])
    op.owner, op.ttl = A[offset + 3], tonumber(A[offset + 4])
  else
    op = { op = kind, owner = A[offset + 3], ttl = tonumber(A[offset + 4]), tail = A[offset + 5], rule = 'all',
      wants = { { A[offset + 2], 'x' } } }
    if kind == 'R' or kind == 'N' then
      op.owner, op.token = string.match(op.owner, '^(%x+) (%d+) $')
    end
  end
  local succeeded, reply = pcall(handlers[op.op], op, A[offset + 4])
  if succeeded then
    succeeded, reply = pcall(apply_deletes, reply)
  end
  if succeeded then
    replies[index] = reply
  else
    -- The loaded locks may be half changed.
    loaded, pending_deletes = {}, {}
    replies[index] = { 'E', type(reply) == 'table' and reply.err or tostring(reply) }
  end
end
local names = {}
for name in pairs(unfinished) do
  names[#names + 1] = name
end
if #names > 0 then
  replies[index + 1] = names
end
return replies
