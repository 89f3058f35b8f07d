"""The Lua scripts of the Redis store: each change is one of them, so the server makes it whole or not at all.

Each gets the names of its keys, and answers with what it found instead of failing. A session is known by its `key`, which no
other session of the same id ever has.
"""

from __future__ import annotations

_TOUCH = """
    local at = redis.call('INCR', KEYS[{counter}])
    for place = {first}, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
"""
# KEYS: head, log, blobs, index of all.  ARGV: id, prefix of holders' leases, fields ...
# The answer for a session without a head says whether something else is left of it.
POSITION = """
    local found = redis.call('HMGET', KEYS[1], unpack(ARGV, 3))
    if not found[1] then
        local left = redis.call('EXISTS', KEYS[2], KEYS[3])
        if redis.call('ZSCORE', KEYS[4], ARGV[1]) then left = left + 1 end
        return {left}
    end
    local left_ms = 0
    if found[4] and found[4] ~= '' then left_ms = redis.call('PTTL', ARGV[2] .. found[4]) end
    return {1, redis.call('LLEN', KEYS[2]), left_ms, found}
"""
# KEYS: head, log, followers, touches, indexes.
# ARGV: id, key, epoch, holder, revision, expected seq, next epoch, next holder, updated, summary, stale indexes, lines ...
APPEND = f"""
    local key, epoch, holder, revision = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder', 'revision'))
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
    {_TOUCH.format(counter=4, first=5)}
    for _, channel in ipairs(redis.call('SMEMBERS', KEYS[3])) do redis.call('PUBLISH', channel, ARGV[1]) end
    return 1
"""
# KEYS: head, log, indexes.  ARGV: id, key, revision, last seq, metadata, updated, summary, stale indexes
CHANGE = """
    local key, revision = unpack(redis.call('HMGET', KEYS[1], 'key', 'revision'))
    if redis.call('EXISTS', KEYS[1]) == 0 or (key or '') ~= ARGV[2] or (revision or '0') ~= ARGV[3] then return 0 end
    if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[4]) then return 0 end
    redis.call('HSET', KEYS[1], 'metadata', ARGV[5], 'updated', ARGV[6], 'summary', ARGV[7], 'revision', ARGV[3] + 1)
    local at = redis.call('ZSCORE', KEYS[3], ARGV[1]) or 0
    for name in string.gmatch(ARGV[8], '%S+') do redis.call('ZREM', name, ARGV[1]) end
    for place = 3, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
    return 1
"""
# KEYS: staged log, staged blobs.  ARGV: length before, seconds, lines ...
STAGE = """
    if redis.call('LLEN', KEYS[1]) == tonumber(ARGV[1]) and #ARGV > 2 then
        redis.call('RPUSH', KEYS[1], unpack(ARGV, 3))
    end
    for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[2]) end
    return redis.call('LLEN', KEYS[1])
"""
# KEYS: staged log, staged blobs, source's head, log and blobs.  ARGV: source's key, last place, seconds, lines ...
# The answer is the number of events and that of blobs.
STAGE_COPY = """
    local key, blobs = unpack(redis.call('HMGET', KEYS[3], 'key', 'blobs'))
    if (key or '') ~= ARGV[1] or redis.call('EXISTS', KEYS[3]) == 0 then return {-1, 0} end
    if blobs and redis.call('HLEN', KEYS[5]) < tonumber(blobs) then return {-2, blobs} end
    redis.call('COPY', KEYS[4], KEYS[1], 'REPLACE')
    redis.call('COPY', KEYS[5], KEYS[2], 'REPLACE')
    if ARGV[2] == '-1' then redis.call('DEL', KEYS[1]) else redis.call('LTRIM', KEYS[1], 0, ARGV[2]) end
    if #ARGV > 3 then redis.call('RPUSH', KEYS[1], unpack(ARGV, 4)) end
    for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[3]) end
    return {redis.call('LLEN', KEYS[1]), redis.call('HLEN', KEYS[2])}
"""
# KEYS: head, log, blobs, touches, indexes.
# ARGV: id, key, staged log, staged blobs, number of events, number of blobs, field, value ...
CREATE = f"""
    if redis.call('EXISTS', KEYS[1]) == 1 then
        if redis.call('HGET', KEYS[1], 'key') == ARGV[2] then return 1 end
        return 0
    end
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
    redis.call('HSET', KEYS[1], 'key', ARGV[2], 'blobs', redis.call('HLEN', KEYS[3]), unpack(ARGV, 7))
    {_TOUCH.format(counter=4, first=5)}
    return 1
"""
# KEYS: head.  ARGV: key, epoch, holder
CLAIM = """
    local key, epoch = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch'))
    if (key or '') ~= ARGV[1] or epoch ~= ARGV[2] then return 0 end
    redis.call('HSET', KEYS[1], 'holder', ARGV[3])
    redis.call('HINCRBY', KEYS[1], 'epoch', 1)
    return 1
"""
# KEYS: head, log, blobs, followers, indexes.  ARGV: id, key, epoch, holder, last seq
DELETE = """
    local key, epoch, holder = unpack(redis.call('HMGET', KEYS[1], 'key', 'epoch', 'holder'))
    if redis.call('EXISTS', KEYS[1]) == 1 then
        if (key or '') ~= ARGV[2] or epoch ~= ARGV[3] or holder ~= ARGV[4] then return 0 end
        local stored = redis.call('HGET', KEYS[1], 'last_seq') or redis.call('LLEN', KEYS[2])
        if tonumber(stored) ~= tonumber(ARGV[5]) then return 0 end
    end
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
    for place = 5, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
    return 1
"""
# KEYS: head, blobs.  ARGV: digest, bytes
PUT_BLOB = """
    if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
    redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
    redis.call('HSET', KEYS[1], 'blobs', redis.call('HLEN', KEYS[2]))
    return 1
"""
# KEYS: head.  ARGV: checkpoint
KEEP = """
    if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
    redis.call('HSET', KEYS[1], 'checkpoint', ARGV[1])
    return 1
"""
# KEYS: head, followers.  ARGV: channel, seconds
FOLLOW = """
    if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
    redis.call('SADD', KEYS[2], ARGV[1])
    redis.call('EXPIRE', KEYS[2], ARGV[2])
    return 1
"""
