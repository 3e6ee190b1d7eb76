-- Reads the state of locks and changes nothing. Returns the server's time in ms, and then for each name {lock, time left in ms,
-- cell, number of waiters, first tickets}; see execute.lua for the values.
-- ARGV: the prefix, how many tickets to return, the names.
local call = redis.call
local P, MAX_TICKETS = ARGV[1], tonumber(ARGV[2])
-- Tickets behind this rank are counted without a check whether they have expired.
local MAX_CHECKED = 1000
local time = call('TIME')
local reply = { string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)) }
for at = 3, #ARGV do
  local name = ARGV[at]
  local key = P .. 'l:' .. name
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = call('HGETALL', key)
  end
  local queue, tickets, expired = P .. 'q:' .. name, {}, 0
  for _, owner in ipairs(call('ZRANGE', queue, 0, MAX_CHECKED - 1)) do
    local ticket = call('GET', P .. 't:' .. owner)
    if not ticket then
      expired = expired + 1
    elseif #tickets < MAX_TICKETS then
      tickets[#tickets + 1] = ticket
    end
  end
  local waiters = call('ZCARD', queue) - expired
  reply[#reply + 1] = { lock, call('PTTL', key), call('GET', P .. 'v:' .. name), waiters, tickets }
end
return reply
