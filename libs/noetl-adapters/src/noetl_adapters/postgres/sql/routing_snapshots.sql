-- name: find
SELECT execution_id, stream_version, event_checksum, rules, state_format, body, body_sha256
FROM noetl.routing_snapshot
WHERE execution_id = $1

-- name: keep — under the fence, as appends are; tells what it was judged by besides
--
-- One that is beyond the head is of a log that is lost, and in nobody's way.
WITH lease AS MATERIALIZED (
    SELECT epoch FROM noetl.execution_shard WHERE role = $8 AND shard_id = $9 AND epoch = $10 FOR SHARE
), head AS MATERIALIZED (
    SELECT stream.version
    FROM noetl.stream AS stream CROSS JOIN lease
    WHERE stream.execution_id = $1 AND stream.shard = $9 AND stream.version >= $2 AND NOT stream.terminal
), kept AS (
    INSERT INTO noetl.routing_snapshot AS known (
        execution_id, stream_version, event_checksum, rules, state_format, body, body_sha256)
    SELECT $1, $2, $3, $4, $5, $6, $7 FROM head
    ON CONFLICT (execution_id) DO UPDATE
    SET stream_version = excluded.stream_version, event_checksum = excluded.event_checksum, rules = excluded.rules,
        state_format = excluded.state_format, body = excluded.body, body_sha256 = excluded.body_sha256,
        written_at = clock_timestamp()
    WHERE known.stream_version <= excluded.stream_version OR known.stream_version > (SELECT version FROM head)
    RETURNING true
)
SELECT EXISTS (SELECT FROM kept) AS kept,
       (SELECT epoch FROM noetl.execution_shard WHERE role = $8 AND shard_id = $9) AS epoch,
       (SELECT shard FROM noetl.stream WHERE execution_id = $1) AS shard

-- name: drop_ended — and those whose executions are gone from the log
WITH dropped AS (
    DELETE FROM noetl.routing_snapshot AS known
    WHERE NOT EXISTS (SELECT FROM noetl.stream WHERE execution_id = known.execution_id AND NOT terminal)
    RETURNING true
)
SELECT count(*) FROM dropped
