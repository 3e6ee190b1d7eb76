-- Reads the state of locks in the key format of another library and changes nothing; see dialect.lua for the keys. Returns the
-- server's time in ms, and then for each lock {the record of Fencepost's holder, "" if a foreign client holds it; time left in
-- ms; no cell; number of waiters; first tickets}.
-- ARGV: the prefix, how many tickets to return, the keys of the locks.
local call, sub = redis.call, string.sub
local P, MAX_TICKETS = ARGV[1], tonumber(ARGV[2])
-- Tickets behind this rank are counted without a check whether they have expired.
local MAX_CHECKED = 1000
local time = call('TIME')
local reply = { string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)) }
for at = 3, #ARGV do
  local key = ARGV[at]
  local lock = redis.pcall('GET', key)
  if lock then
    local record = call('GET', P .. 'h:' .. key) or ''
    local length, from = string.match(record, '^(%d+) %d+ ()')
    local is_ours = length and sub(record, from, from + length - 1) == lock
    lock = is_ours and sub(record, from + length) or ''
  end
  local queue, tickets, expired = P .. 'q:' .. key, {}, 0
  for _, owner in ipairs(call('ZRANGE', queue, 0, MAX_CHECKED - 1)) do
    local ticket = call('GET', P .. 't:' .. owner)
    if not ticket then
      expired = expired + 1
    elseif #tickets < MAX_TICKETS then
      tickets[#tickets + 1] = ticket
    end
  end
  reply[#reply + 1] = { lock, call('PTTL', key), false, call('ZCARD', queue) - expired, tickets }
end
return reply
