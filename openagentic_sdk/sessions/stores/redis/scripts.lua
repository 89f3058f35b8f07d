-- The scripts of the Redis store. Each runs behind the lines up to the first name, and behind `local FORMAT`, the version of a
-- session's keys and of what is in them, as text.

-- Put the session before all others in the indexes from the key `first` on.
local function touch(counter, first)
    local at = redis.call('INCR', KEYS[counter])
    for place = first, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
end

-- script position
-- KEYS: head, log, blobs, index of all.  ARGV: id, prefix of holders' leases, fields ...
-- The answer for a session without a head says whether something else is left of it.
local found = redis.call('HMGET', KEYS[1], unpack(ARGV, 3))
if not found[1] then
    local left = redis.call('EXISTS', KEYS[2], KEYS[3])
    if redis.call('ZSCORE', KEYS[4], ARGV[1]) then left = left + 1 end
    return {left}
end
local left_ms = 0
if found[4] and found[4] ~= '' then left_ms = redis.call('PTTL', ARGV[2] .. found[4]) end
return {1, redis.call('LLEN', KEYS[2]), left_ms, found}

-- script append
-- KEYS: head, log, followers, touches, indexes.
-- ARGV: id, key, epoch, holder, revision, expected seq, next epoch, next holder, updated, summary, stale indexes, lines ...
local key, epoch, holder, revision, format =
    unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder', 'revision', 'format'))
if format ~= FORMAT then return 0 end
if (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end
if (revision or '0') ~= ARGV[5] then return 0 end
local length = redis.call('LLEN', KEYS[2])
local stored = redis.call('HGET', KEYS[1], 'last_seq')
if stored and tonumber(stored) ~= length then return -1 end
if length ~= tonumber(ARGV[6]) then return 0 end
for place = 12, #ARGV, 1000 do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, place, math.min(place + 999, #ARGV)))
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[7], 'holder', ARGV[8], 'updated', ARGV[9], 'summary', ARGV[10],
           'last_seq', length + #ARGV - 11)
for name in string.gmatch(ARGV[11], '%S+') do redis.call('ZREM', name, ARGV[1]) end
touch(4, 5)
for _, channel in ipairs(redis.call('SMEMBERS', KEYS[3])) do redis.call('PUBLISH', channel, ARGV[1]) end
return 1

-- script change
-- KEYS: head, log, indexes.  ARGV: id, key, revision, last seq, metadata, updated, summary, stale indexes
local key, revision, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'revision', 'format'))
if format ~= FORMAT or (key or '') ~= ARGV[2] or (revision or '0') ~= ARGV[3] then return 0 end
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'metadata', ARGV[5], 'updated', ARGV[6], 'summary', ARGV[7], 'revision', ARGV[3] + 1)
local at = redis.call('ZSCORE', KEYS[3], ARGV[1]) or 0
for name in string.gmatch(ARGV[8], '%S+') do redis.call('ZREM', name, ARGV[1]) end
for place = 3, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
return 1

-- script stage
-- KEYS: staged log, staged blobs.  ARGV: length before, seconds, lines ...
if redis.call('LLEN', KEYS[1]) == tonumber(ARGV[1]) and #ARGV > 2 then
    redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
end
for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[2]) end
return redis.call('LLEN', KEYS[1])

-- script stage_copy
-- KEYS: staged log, staged blobs, source's head, log and blobs.  ARGV: source's key, last place, seconds, lines ...
-- The answer is the number of events and that of blobs.
local key, blobs, format = unpack(redis.call('HMGET', KEYS[3], 'key', 'blobs', 'format'))
if (key or '') ~= ARGV[1] or format ~= FORMAT then return {-1, 0} end
if blobs and redis.call('HLEN', KEYS[5]) < tonumber(blobs) then return {-2, blobs} end
redis.call('COPY', KEYS[4], KEYS[1], 'REPLACE')
redis.call('COPY', KEYS[5], KEYS[2], 'REPLACE')
if ARGV[2] == '-1' then redis.call('DEL', KEYS[1]) else redis.call('LTRIM', KEYS[1], 0, ARGV[2]) end
if #ARGV > 3 then redis.call('RPUSH', KEYS[1], unpack(ARGV, 4)) end
for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[3]) end
return {redis.call('LLEN', KEYS[1]), redis.call('HLEN', KEYS[2])}

-- script create
-- KEYS: head, log, blobs, touches, head of format 1, indexes.
-- ARGV: id, key, staged log, staged blobs, number of events, number of blobs, field, value ...
if redis.call('EXISTS', KEYS[1]) == 1 then
    if redis.call('HGET', KEYS[1], 'key') == ARGV[2] then return 1 end
    return 0
end
if redis.call('TYPE', KEYS[5]).ok == 'hash' then return 0 end
if redis.call('LLEN', ARGV[3]) ~= tonumber(ARGV[5]) or redis.call('HLEN', ARGV[4]) ~= tonumber(ARGV[6]) then
    return -1
end
redis.call('DEL', KEYS[2], KEYS[3])
for place = 2, 3 do
    if redis.call('EXISTS', ARGV[place + 1]) == 1 then
        redis.call('RENAME', ARGV[place + 1], KEYS[place])
        redis.call('PERSIST', KEYS[place])
    end
end
redis.call('HSET', KEYS[1], 'format', FORMAT, 'key', ARGV[2], 'blobs', redis.call('HLEN', KEYS[3]), unpack(ARGV, 7))
redis.call('SET', KEYS[5], 'format ' .. FORMAT)
touch(4, 6)
return 1

-- script adopt
-- KEYS: head, log, blobs, those of format 1, index of all of format 1, indexes.
-- ARGV: id, prefix of leases of format 1, epoch, number of events, indexes of format 1
-- The answer is -1 when the session was moved, 0 when it is another by now, else for how long its holder lives, in ms.
-- More events than `last_seq` says are those of a version that did not count them.
if redis.call('TYPE', KEYS[4]).ok == 'string' or redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local epoch, holder, stored = unpack(redis.call('HMGET', KEYS[4], 'epoch', 'holder', 'last_seq'))
local length = redis.call('LLEN', KEYS[5])
if (epoch or '') ~= ARGV[3] or length ~= tonumber(ARGV[4]) then return 0 end
if holder and holder ~= '' then
    local left_ms = redis.call('PTTL', ARGV[2] .. holder)
    if left_ms > 0 then return left_ms end
end
for place = 1, 3 do
    if redis.call('EXISTS', KEYS[place + 3]) == 1 then redis.call('RENAME', KEYS[place + 3], KEYS[place]) end
end
if epoch then
    redis.call('HSET', KEYS[1], 'format', FORMAT)
    if length > tonumber(stored or 0) then
        redis.call('HSET', KEYS[1], 'last_seq', length)
        if stored then redis.call('HDEL', KEYS[1], 'summary', 'checkpoint') end
    end
end
local at = redis.call('ZSCORE', KEYS[7], ARGV[1]) or 0
for place = 8, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
for name in string.gmatch(ARGV[5], '%S+') do redis.call('ZREM', name, ARGV[1]) end
redis.call('SET', KEYS[4], 'format ' .. FORMAT)
return -1

-- script claim
-- KEYS: head.  ARGV: key, epoch, holder
local key, epoch, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'format'))
if format ~= FORMAT or (key or '') ~= ARGV[1] or epoch ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'holder', ARGV[3])
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
return 1

-- script claim_request
-- KEYS: request, head.  ARGV: id, start of the names of heads.  The hash tag of the prefix keeps all keys on one server.
local id, key = unpack(redis.call('HMGET', KEYS[1], 'id', 'key'))
if id and redis.call('HGET', ARGV[2] .. id, 'key') == key then return id end
local mine = redis.call('HGET', KEYS[2], 'key')
if not mine then return false end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'key', mine)
return ARGV[1]

-- script delete
-- KEYS: head, log, blobs, followers, head of format 1, inbox, indexes.  ARGV: id, key, epoch, holder, last seq
local key, epoch, holder, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder', 'format'))
if redis.call('EXISTS', KEYS[1]) == 1 then
    if format ~= FORMAT or (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end
    local stored = redis.call('HGET', KEYS[1], 'last_seq') or redis.call('LLEN', KEYS[2])
    if tonumber(stored) ~= tonumber(ARGV[5]) then return 0 end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
for place = 7, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
return 1

-- script put_blob
-- KEYS: head, blobs.  ARGV: digest, bytes
if redis.call('HGET', KEYS[1], 'format') ~= FORMAT then return 0 end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[1], 'blobs', redis.call('HLEN', KEYS[2]))
return 1

-- script drop_blobs
-- KEYS: head, blobs.  ARGV: digests ...
if redis.call('HGET', KEYS[1], 'format') ~= FORMAT then return 0 end
redis.call('HDEL', KEYS[2], unpack(ARGV))
redis.call('HSET', KEYS[1], 'blobs', redis.call('HLEN', KEYS[2]))
return 1

-- script keep
-- KEYS: head.  ARGV: checkpoint
if redis.call('HGET', KEYS[1], 'format') ~= FORMAT then return 0 end
redis.call('HSET', KEYS[1], 'checkpoint', ARGV[1])
return 1

-- script follow
-- KEYS: head, followers.  ARGV: channel, seconds
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('SADD', KEYS[2], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1

-- script put_message
-- KEYS: head, inbox, inboxes by number, counter, token, followers.  ARGV: most, seconds, id, text
-- The answer is the number, also when an earlier attempt had it; 0 without a session, -1 when too many wait.
local key, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'format'))
if format ~= FORMAT then return 0 end
local number = redis.call('GET', KEYS[5])
if number then return tonumber(number) end
if redis.call('HGET', KEYS[2], 'key') ~= key then redis.call('DEL', KEYS[2]) end
if redis.call('HLEN', KEYS[2]) > tonumber(ARGV[1]) then return -1 end
number = redis.call('INCR', KEYS[4])
redis.call('HSET', KEYS[2], 'key', key, number, ARGV[4])
redis.call('HSET', KEYS[3], number, ARGV[3])
redis.call('SET', KEYS[5], number, 'EX', ARGV[2])
for _, channel in ipairs(redis.call('SMEMBERS', KEYS[6])) do redis.call('PUBLISH', channel, ARGV[3]) end
return number

-- script remove_messages
-- KEYS: inboxes by number.  ARGV: start of the names of inboxes, numbers ...
for place = 2, #ARGV do
    local id = redis.call('HGET', KEYS[1], ARGV[place])
    if id then redis.call('HDEL', ARGV[1] .. id, ARGV[place]) end
    redis.call('HDEL', KEYS[1], ARGV[place])
end
return 1
