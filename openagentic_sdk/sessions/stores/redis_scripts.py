"""The Lua scripts of the Redis store: each change is one of them, so the server makes it whole or not at all."""

from __future__ import annotations

# Each script gets the names of its keys, and answers with what it found instead of failing.
TOUCH = """
    local at = redis.call('INCR', KEYS[4])
    for place = 5, #KEYS do redis.call('ZADD', KEYS[place], at, ARGV[1]) end
"""
# KEYS: head, log, news channel, touches, indexes.  ARGV: id, epoch, holder or '*', expected seq, fields, lines ...
APPEND = f"""
    local epoch, holder = unpack(redis.call('HMGET', KEYS[1], 'epoch', 'holder'))
    local length = redis.call('LLEN', KEYS[2])
    if epoch ~= ARGV[2] then return {{'epoch', length}} end
    if ARGV[3] ~= '*' and holder ~= ARGV[3] then return {{'held', length}} end
    if length ~= tonumber(ARGV[4]) then return {{'seq', length}} end
    for place = 7, #ARGV, 1000 do
        redis.call('RPUSH', KEYS[2], unpack(ARGV, place, math.min(place + 999, #ARGV)))
    end
    redis.call('HSET', KEYS[1], 'updated', ARGV[5], 'summary', ARGV[6])
    {TOUCH}
    redis.call('PUBLISH', KEYS[3], ARGV[1])
    return {{'ok', length}}
"""
# KEYS: head, log, blobs, touches, indexes.  ARGV: id, staged log, staged blobs, field, value ...
CREATE = f"""
    if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
    redis.call('HSET', KEYS[1], unpack(ARGV, 4))
    for place = 2, 3 do
        if redis.call('EXISTS', ARGV[place]) == 1 then
            redis.call('RENAME', ARGV[place], KEYS[place])
            redis.call('PERSIST', KEYS[place])
        end
    end
    {TOUCH}
    return 1
"""
# KEYS: staged log, staged blobs, source's log, source's blobs.  ARGV: last place, seconds, lines ...
STAGE_COPY = """
    redis.call('COPY', KEYS[3], KEYS[1])
    redis.call('COPY', KEYS[4], KEYS[2])
    if ARGV[1] == '-1' then redis.call('DEL', KEYS[1]) else redis.call('LTRIM', KEYS[1], 0, ARGV[1]) end
    if #ARGV > 2 then redis.call('RPUSH', KEYS[1], unpack(ARGV, 3)) end
    for place = 1, 2 do redis.call('EXPIRE', KEYS[place], ARGV[2]) end
    return redis.call('LLEN', KEYS[1])
"""
# KEYS: head.  ARGV: holder that is thought dead or '*', new holder
HOLD = """
    local holder = redis.call('HGET', KEYS[1], 'holder')
    if not holder then return {'missing', 0} end
    if ARGV[1] ~= '*' and holder ~= ARGV[1] then return {'held', 0} end
    redis.call('HSET', KEYS[1], 'holder', ARGV[2])
    return {'ok', redis.call('HINCRBY', KEYS[1], 'epoch', 1)}
"""
# KEYS: head.  ARGV: epoch, new holder
ATTACH = """
    if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
    redis.call('HSET', KEYS[1], 'holder', ARGV[2])
    return 1
"""
# KEYS: head.  ARGV: field, old value, new value
EXCHANGE = """
    if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    return 1
"""
# KEYS: head, log.  ARGV: seq, updated, summary
KEEP = """
    if redis.call('LLEN', KEYS[2]) ~= tonumber(ARGV[1]) then return 0 end
    redis.call('HSET', KEYS[1], 'updated', ARGV[2], 'summary', ARGV[3])
    return 1
"""
# KEYS: head, log, blobs, indexes.  ARGV: id, holder
DELETE = """
    if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[2] then return 0 end
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
    for place = 4, #KEYS do redis.call('ZREM', KEYS[place], ARGV[1]) end
    return 1
"""
