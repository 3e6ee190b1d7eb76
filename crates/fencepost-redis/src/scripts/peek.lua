-- What there is to see of locks in another library's form, changing nothing; see dialect.lua for the keys. For each
-- lock {what we know of our holder, "" if it is somebody else; time left; no cell; waiters; places}.
-- ARGV: the prefix, how many places to show, the locks' keys. The first answer is the server's time in ms.
local call, sub = redis.call, string.sub
local P, SHOWN = ARGV[1], tonumber(ARGV[2])
-- Further back than this a place is counted without looking whether it still lives.
local LOOK = 1000
local time = call('TIME')
local answer = { string.format('%d', time[1] * 1000 + math.floor(time[2] / 1000)) }
for at = 3, #ARGV do
  local key = ARGV[at]
  local lock = redis.pcall('GET', key)
  if lock then
    local known = call('GET', P .. 'h:' .. key) or ''
    local length, from = string.match(known, '^(%d+) %d+ ()')
    local is_ours = length and sub(known, from, from + length - 1) == lock
    lock = is_ours and sub(known, from + length) or ''
  end
  local line, places, dead = P .. 'q:' .. key, {}, 0
  for _, owner in ipairs(call('ZRANGE', line, 0, LOOK - 1)) do
    local place = call('GET', P .. 't:' .. owner)
    if not place then
      dead = dead + 1
    elseif #places < SHOWN then
      places[#places + 1] = place
    end
  end
  answer[#answer + 1] = { lock, call('PTTL', key), false, call('ZCARD', line) - dead, places }
end
return answer
