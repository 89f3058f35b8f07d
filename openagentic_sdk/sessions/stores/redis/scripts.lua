-- The scripts of the Redis store. Each is preceded by the lines up to the first one, and by `local FORMAT`, the version of a
-- session's keys and their contents, as text.

-- A script that changes a session answers 1; if the session is not as its caller read it, it changes nothing and answers 0
-- or less. Other answers are described beside the script. A field that a hash lacks is `false` here, which `or ''` turns
-- into a text; as an answer, `false` is None in Python (redis.io/docs/latest/develop/programmability/lua-api, "Data type
-- conversion"). Names of keys that are composed here, instead of passed in KEYS, begin with the hash tag of the store, so
-- that all are on one server.

-- Put the session before all others in the indexes from the key `first` on. A counter instead of a time: two sessions never
-- have the same place, and a clock may go back.
local function touch(counter, first)
    local at = redis.call('INCR', KEYS[counter])
    for place = first, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
end

-- The index of words is described in search.py; `index` is the start of the names of its keys.

-- Call `command` with the key and up to 500 members at a time: `unpack` fails beyond some 8,000. The number is even, because
-- ZADD takes pairs.
local function each(command, key, members)
    for place = 1, #members, 500 do
        redis.call(command, key, unpack(members, place, math.min(place + 499, #members)))
    end
end

local function set_bits(index, number, packed, bit)
    -- A number of a bitmap is two bytes of the text.
    for place = 1, #packed, 2 do
        local high, low = string.byte(packed, place, place + 1)
        redis.call('SETBIT', index .. 'gram:' .. (high * 256 + low), number, bit)
    end
end

-- Mark a session that the sums of families.py must count, again or for the first time.
local function mark(index, id)
    local number = redis.call('HINCRBY', index .. 'sums:note', 'marks', 1)
    redis.call('HSET', index .. 'sums:marks', id, number)
end

-- Note that a session changed without moving in the lists.
local function note_change(index, id)
    if redis.call('EXISTS', index .. 'sums:note') == 1 then mark(index, id) end
    if redis.call('EXISTS', index .. 'places') == 0 then return end
    redis.call('ZADD', index .. 'ids', 0, id)
    redis.call('SADD', index .. 'behind', id)
    redis.call('SADD', index .. 'unread', id)
end

-- Remove a session from the index.
local function forget(index, id)
    redis.call('ZREM', index .. 'ids', id)
    redis.call('SREM', index .. 'behind', id)
    redis.call('SREM', index .. 'unread', id)
    if redis.call('EXISTS', index .. 'sums:note') == 1 then mark(index, id) end
    local number = string.match(redis.call('HGET', index .. 'rows', id) or '', '^%d+')
    if not number then return end
    local docs = redis.call('HGETALL', index .. 'docs:' .. number)
    for place = 1, #docs, 2 do
        local members = {}
        for word in string.gmatch(docs[place + 1], '[^ ]+') do
            members[#members + 1] = word .. ' ' .. number .. ' ' .. docs[place]
        end
        each('ZREM', index .. 'words', members)
    end
    set_bits(index, number, redis.call('HGET', index .. 'grams', number) or '', 0)
    redis.call('DEL', index .. 'docs:' .. number)
    for _, name in ipairs({'names', 'grams'}) do redis.call('HDEL', index .. name, number) end
    for _, name in ipairs({'rows', 'upto'}) do redis.call('HDEL', index .. name, id) end
    redis.call('SADD', index .. 'free', number)
end

-- script position
-- KEYS: head, log, blobs, index of all.  ARGV: id, prefix of holders' leases, fields ...
-- The fourth field is the holder. For a session without a head, the answer shows whether anything else is left of it.
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
-- Not another writer, which would have changed the epoch or the revision: the server lost events.
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
-- KEYS: head, log, indexes.
-- ARGV: id, key, revision, last seq, metadata, updated, summary, stale indexes, start of the names of the index of words
local key, revision, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'revision', 'format'))
if format ~= FORMAT or (key or '') ~= ARGV[2] or (revision or '0') ~= ARGV[3] then return 0 end
if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[1], 'metadata', ARGV[5], 'updated', ARGV[6], 'summary', ARGV[7], 'revision', ARGV[3] + 1)
local at = redis.call('ZSCORE', KEYS[3], ARGV[1]) or 0
for name in string.gmatch(ARGV[8], '%S+') do redis.call('ZREM', name, ARGV[1]) end
for place = 3, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
note_change(ARGV[9], ARGV[1])
return 1

-- script stage
-- KEYS: staged log, staged blobs.  ARGV: length before, seconds, lines ...
-- The answer is the length: a repeated attempt adds nothing. Staged keys that are never used expire.
if redis.call('LLEN', KEYS[1]) == tonumber(ARGV[1]) and #ARGV > 2 then
    redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
end
for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[2]) end
return redis.call('LLEN', KEYS[1])

-- script stage_copy
-- KEYS: staged log, staged blobs, source's head, log and blobs.  ARGV: source's key, last place, seconds, lines ...
-- The answer is the number of events and that of blobs; -1 if the source changed, -2 if the server lost some of its blobs.
local key, blobs, format = unpack(redis.call('HMGET', KEYS[3], 'key', 'blobs', 'format'))
if (key or '') ~= ARGV[1] or format ~= FORMAT then return {-1, 0} end
if blobs and redis.call('HLEN', KEYS[5]) < tonumber(blobs) then return {-2, blobs} end
redis.call('COPY', KEYS[4], KEYS[1], 'REPLACE')
redis.call('COPY', KEYS[5], KEYS[2], 'REPLACE')
-- LTRIM with -1 would keep the whole list.
if ARGV[2] == '-1' then redis.call('DEL', KEYS[1]) else redis.call('LTRIM', KEYS[1], 0, ARGV[2]) end
if #ARGV > 3 then redis.call('RPUSH', KEYS[1], unpack(ARGV, 4)) end
for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[3]) end
return {redis.call('LLEN', KEYS[1]), redis.call('HLEN', KEYS[2])}

-- script create
-- KEYS: head, log, blobs, touches, head of format 1, mark of the deletion, indexes.
-- ARGV: id, key, staged log, staged blobs, number of events, number of blobs, field, value ...
-- A script whose connection broke may arrive after the session was created by a retry and then deleted.
if redis.call('EXISTS', KEYS[6]) == 1 then return 0 end
if redis.call('EXISTS', KEYS[1]) == 1 then
    if redis.call('HGET', KEYS[1], 'key') == ARGV[2] then return 1 end
    return 0
end
-- TYPE answers with a status, which is a table with the field `ok`.
if redis.call('TYPE', KEYS[5]).ok == 'hash' then return 0 end
-- The staged keys are incomplete if they expired, or if the server lost its last second.
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
-- A version of format 1 finds a text under the old name, not a hash that it could change (scripts.py).
redis.call('SET', KEYS[5], 'format ' .. FORMAT)
touch(4, 7)
return 1

-- script adopt
-- KEYS: head, log, blobs, those of format 1, index of all of format 1, indexes.
-- ARGV: id, prefix of leases of format 1, epoch, number of events, indexes of format 1, start of the names of the index of
-- words, the key for a session that has none because one of the first versions wrote it.
-- The answer is -1 if the session was moved, 0 if it has changed since, else how long its holder's lease lasts, in ms.
-- Events after `last_seq` are those of a version that did not count them.
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
    redis.call('HSETNX', KEYS[1], 'key', ARGV[7])
    if length > tonumber(stored or 0) then
        redis.call('HSET', KEYS[1], 'last_seq', length)
        if stored then redis.call('HDEL', KEYS[1], 'summary', 'checkpoint') end
    end
end
local at = redis.call('ZSCORE', KEYS[7], ARGV[1]) or 0
for place = 8, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
for name in string.gmatch(ARGV[5], '%S+') do redis.call('ZREM', name, ARGV[1]) end
redis.call('SET', KEYS[4], 'format ' .. FORMAT)
note_change(ARGV[6], ARGV[1])
return -1

-- script claim
-- KEYS: head.  ARGV: key, epoch, holder, next holder
-- A release ('' as the next holder) takes an epoch, too: the released writer can append no more. The holder is compared
-- because a server that lost its last second assigns the same epochs again, to other holders.
local key, epoch, holder, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder', 'format'))
if format ~= FORMAT or (key or '') ~= ARGV[1] or epoch ~= ARGV[2] or holder ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'holder', ARGV[4])
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
-- KEYS: head, log, blobs, followers, head of format 1, inbox, mark of the deletion, indexes.
-- ARGV: id, key, epoch, holder, last seq, start of the names of the index of words, seconds
local key, epoch, holder, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder', 'format'))
if redis.call('EXISTS', KEYS[1]) == 1 then
    if format ~= FORMAT or (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end
    local stored = redis.call('HGET', KEYS[1], 'last_seq') or redis.call('LLEN', KEYS[2])
    if tonumber(stored) ~= tonumber(ARGV[5]) then return 0 end
end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])
for place = 8, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
if ARGV[2] ~= '' then redis.call('SET', KEYS[7], 1, 'EX', ARGV[7]) end
forget(ARGV[6], ARGV[1])
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
each('HDEL', KEYS[2], ARGV)
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
-- The answer is the number, even if an earlier attempt stored it; 0 without a session, -1 if too many messages wait.
local key, format = unpack(redis.call('HMGET', KEYS[1], 'key', 'format'))
if format ~= FORMAT then return 0 end
local number = redis.call('GET', KEYS[5])
if number then return tonumber(number) end
-- The inbox of an earlier session with this id.
if redis.call('HGET', KEYS[2], 'key') ~= key then redis.call('DEL', KEYS[2]) end
-- The hash has one field more than there are messages: `key`.
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

-- script ids_beginning
-- KEYS: index of all.  ARGV: start of the names of the index of words, start of the ids, most ids
local ids, places = ARGV[1] .. 'ids', ARGV[1] .. 'places'
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or 0
local since = redis.call('HGET', places, 'ids') or 0
if tonumber(newest) > tonumber(since) then
    local members = {}
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. since, '+inf')) do
        members[#members + 1] = 0
        members[#members + 1] = id
    end
    each('ZADD', ids, members)
    redis.call('HSET', places, 'ids', newest)
end
-- All scores are 0, so the order is that of the bytes; no id contains the byte 255, so it ends the ids with this prefix.
local found, after = {}, '[' .. ARGV[2]
while #found < tonumber(ARGV[3]) do
    local page = redis.call('ZRANGEBYLEX', ids, after, '(' .. ARGV[2] .. '\255', 'LIMIT', 0, 100)
    for _, id in ipairs(page) do
        if not redis.call('ZSCORE', KEYS[1], id) then redis.call('ZREM', ids, id)
        elseif #found < tonumber(ARGV[3]) then found[#found + 1] = id end
    end
    if #page < 100 then break end
    after = '(' .. page[#page]
end
return found

-- script look_again
-- KEYS: index of all.  ARGV: start of the names of the index of words, start of the names of heads, number of sessions
-- Check a few sessions in turn: a version without this index changes and deletes them without moving them in the lists.
local places, rows = ARGV[1] .. 'places', ARGV[1] .. 'rows'
local rank, reached = unpack(redis.call('HMGET', places, 'rank', 'rows'))
rank = tonumber(rank or 0)
local ids = reached and redis.call('ZRANGE', KEYS[1], rank, rank + ARGV[3] - 1) or {}
for _, id in ipairs(ids) do
    if tonumber(redis.call('ZSCORE', KEYS[1], id)) > tonumber(reached) then break end
    local key, revision = unpack(redis.call('HMGET', ARGV[2] .. id, 'key', 'revision'))
    local row = redis.call('HGET', rows, id) or ''
    local known_revision, known_key = string.match(row, '^%d+ (%d+) %d+ (.*)$')
    if known_key ~= (key or '') or known_revision ~= (revision or '0') then note_change(ARGV[1], id) end
end
local cursor, known = unpack(redis.call('HSCAN', rows, redis.call('HGET', places, 'cursor') or 0, 'COUNT', ARGV[3]))
for place = 1, #known, 2 do
    if not redis.call('ZSCORE', KEYS[1], known[place]) then forget(ARGV[1], known[place]) end
end
redis.call('HSET', places, 'rank', #ids < tonumber(ARGV[3]) and 0 or rank + #ids, 'cursor', cursor)
return 1

-- script reached
-- KEYS: places of the index of words.  ARGV: position in the lists, parts of the index ...
for part = 2, #ARGV do
    if tonumber(redis.call('HGET', KEYS[1], ARGV[part]) or 0) < tonumber(ARGV[1]) then
        redis.call('HSET', KEYS[1], ARGV[part], ARGV[1])
    end
end
return 1

-- script rows_with
-- ARGV: start of the names of the index of words, numbers of bitmaps ...
-- The answer is a bitmap of the sessions that all of them contain.
local keys = {}
for place = 2, #ARGV do keys[place - 1] = ARGV[1] .. 'gram:' .. ARGV[place] end
redis.call('BITOP', 'AND', ARGV[1] .. 'answer', unpack(keys))
local answer = redis.call('GET', ARGV[1] .. 'answer')
redis.call('DEL', ARGV[1] .. 'answer')
return answer

-- script forget
-- KEYS: index of all.  ARGV: start of the names of the index of words, id
forget(ARGV[1], ARGV[2])
if redis.call('ZSCORE', KEYS[1], ARGV[2]) then note_change(ARGV[1], ARGV[2]) end
return 1

-- script index_row
-- KEYS: head.  ARGV: start of the names of the index of words, id, entry, revision, last seq, key, bitmaps
-- `same` instead of bitmaps: the entry is still valid. The answer is 0 if the session is not as it was read.
local index, id, packed = ARGV[1], ARGV[2], ARGV[7]
local key, revision, last_seq = unpack(redis.call('HMGET', KEYS[1], 'key', 'revision', 'last_seq'))
local entry = redis.call('HGET', index .. 'rows', id) or ''
if entry ~= ARGV[3] or (revision or '0') ~= ARGV[4] or (last_seq or '0') ~= ARGV[5] or (key or '') ~= ARGV[6] then
    return 0
end
redis.call('SREM', index .. 'behind', id)
if packed == 'same' then return 1 end
local number, known_key = string.match(entry, '^(%d+) %d+ %d+ (.*)$')
if number and known_key ~= ARGV[6] then
    forget(index, id)
    number = nil
end
if not number then
    -- Numbers are reused, because bitmaps are as long as the highest one.
    number = redis.call('SPOP', index .. 'free') or tostring(redis.call('HINCRBY', index .. 'places', 'count', 1))
    redis.call('HSET', index .. 'names', number, id)
end
local old = redis.call('HGET', index .. 'grams', number) or ''
if old ~= packed then
    set_bits(index, number, old, 0)
    set_bits(index, number, packed, 1)
    redis.call('HSET', index .. 'grams', number, packed)
end
redis.call('HSET', index .. 'rows', id, table.concat({number, ARGV[4], ARGV[5], ARGV[6]}, ' '))
return 1

-- script index_words
-- KEYS: head.
-- ARGV: start of the names of the index of words, id, what is indexed, key, revision, last seq, events, words, events ...
-- The answer is 0 if the session is not as it was read: then its words must be read again.
local index, id = ARGV[1], ARGV[2]
local key, revision = unpack(redis.call('HMGET', KEYS[1], 'key', 'revision'))
local number, known_key = string.match(redis.call('HGET', index .. 'rows', id) or '', '^(%d+) %d+ %d+ (.*)$')
if known_key ~= ARGV[4] or (key or '') ~= ARGV[4] or (revision or '0') ~= ARGV[5]
   or (redis.call('HGET', index .. 'upto', id) or '') ~= ARGV[3] then
    if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SADD', index .. 'unread', id) end
    return 0
end
for place = 7, #ARGV, 2 do
    local members = {}
    for word in string.gmatch(ARGV[place + 1], '[^ ]+') do
        members[#members + 1] = 0
        members[#members + 1] = word .. ' ' .. number .. ' ' .. ARGV[place]
    end
    each('ZADD', index .. 'words', members)
    redis.call('HSET', index .. 'docs:' .. number, ARGV[place], ARGV[place + 1])
end
redis.call('HSET', index .. 'upto', id, ARGV[6] .. ' ' .. ARGV[4])
redis.call('SREM', index .. 'unread', id)
return 1

-- script sums_begin
-- ARGV: start of the names of the index of words, version
local note = ARGV[1] .. 'sums:note'
if redis.call('HGET', note, 'version') == ARGV[2] then return 0 end
for _, part in ipairs(redis.call('SMEMBERS', ARGV[1] .. 'sums:parts')) do
    -- UNLINK, because DEL of a large hash would block the server.
    redis.call('UNLINK', ARGV[1] .. 'sums:' .. part)
end
redis.call('DEL', ARGV[1] .. 'sums:marks', ARGV[1] .. 'sums:parts')
redis.call('HSET', note, 'version', ARGV[2], 'reached', 0)
redis.call('HINCRBY', note, 'turn', 1)
return 1

-- script sums_moved
-- KEYS: index of all.  ARGV: start of the names of the index of words, most sessions
-- Mark the sessions appended to since the last time, in the order of the lists.
local note = ARGV[1] .. 'sums:note'
local reached = redis.call('HGET', note, 'reached') or '0'
local moved = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. reached, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
for place = 1, #moved, 2 do mark(ARGV[1], moved[place]) end
if #moved > 0 then redis.call('HSET', note, 'reached', moved[#moved]) end
return #moved / 2

-- script sums_other
-- KEYS: index of all.  ARGV: start of the names of the index of words, start of the names of heads, rank, most sessions
-- Mark the sessions that older versions changed without moving them in the lists.
local ids = redis.call('ZRANGE', KEYS[1], ARGV[3], ARGV[3] + ARGV[4] - 1)
for _, id in ipairs(ids) do
    local key, revision = unpack(redis.call('HMGET', ARGV[2] .. id, 'key', 'revision'))
    local counted = redis.call('HGET', ARGV[1] .. 'sums:state', id)
    if counted and counted ~= (key or '') .. ' ' .. (revision or '0') then mark(ARGV[1], id) end
end
return #ids

-- script sums_gone
-- KEYS: index of all.  ARGV: start of the names of the index of words, cursor
-- Mark the sessions that older versions deleted.
local cursor, known = unpack(redis.call('HSCAN', ARGV[1] .. 'sums:state', ARGV[2], 'COUNT', 500))
for place = 1, #known, 2 do
    if not redis.call('ZSCORE', KEYS[1], known[place]) then mark(ARGV[1], known[place]) end
end
return tonumber(cursor)

-- script sums_store
-- ARGV: start of the names of the index of words, turn, number of counted, id, mark ..., number to mark, id ...,
-- part, name, value ...; an empty value deletes the name.
local index, note = ARGV[1], ARGV[1] .. 'sums:note'
if (redis.call('HGET', note, 'turn') or '') ~= ARGV[2] then return 0 end
redis.call('HINCRBY', note, 'turn', 1)
local place = 4
for _ = 1, tonumber(ARGV[3]) do
    if redis.call('HGET', index .. 'sums:marks', ARGV[place]) == ARGV[place + 1] then
        redis.call('HDEL', index .. 'sums:marks', ARGV[place])
    end
    place = place + 2
end
local again = tonumber(ARGV[place])
for at = place + 1, place + again do mark(index, ARGV[at]) end
for at = place + again + 1, #ARGV, 3 do
    local name = index .. 'sums:' .. ARGV[at]
    redis.call('SADD', index .. 'sums:parts', ARGV[at])
    if ARGV[at + 2] == '' then redis.call('HDEL', name, ARGV[at + 1])
    else redis.call('HSET', name, ARGV[at + 1], ARGV[at + 2]) end
end
return 1
