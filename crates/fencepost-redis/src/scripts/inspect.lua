-- What there is to see of these locks, changing nothing: for each name {lock, time left, cell, waiters, places}.
-- ARGV: the prefix, how many places to show, the names. The first answer is the server's time in ms.
local call = redis.call
local P, SHOWN = ARGV[1], tonumber(ARGV[2])
-- Further back than this a place is counted without looking whether it still lives.
local LOOK = 1000
local time = call('TIME')
local answer = { string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)) }
for at = 3, #ARGV do
  local name = ARGV[at]
  local key = P .. 'l:' .. name
  local lock = redis.pcall('GET', key)
  if type(lock) == 'table' then
    lock = call('HGETALL', key)
  end
  local line, places, dead = P .. 'q:' .. name, {}, 0
  for _, owner in ipairs(call('ZRANGE', line, 0, LOOK - 1)) do
    local place = call('GET', P .. 't:' .. owner)
    if not place then
      dead = dead + 1
    elseif #places < SHOWN then
      places[#places + 1] = place
    end
  end
  answer[#answer + 1] = { lock, call('PTTL', key), call('GET', P .. 'v:' .. name), call('ZCARD', line) - dead, places }
end
return answer
