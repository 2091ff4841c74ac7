-- The outbox as its publishers use it, and the leases by which they share its shards.

-- name: mark_log_branch — for the session
SELECT set_config('noetl.log_branch', $1, false)

-- name: take — from the lowest id on, always: a row that commits late is found below those that were taken before it
--
-- Rows are taken whole until there are messages enough. The sub-select with OFFSET 0 stays a lookup in the log for each.
SELECT waiting.outbox_id, waiting.shard, waiting.execution_id, waiting.age_seconds, waiting.subject,
       waiting.message_id, waiting.headers, coalesce(waiting.body, event.body) AS body, event.stream_version,
       event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.event_id,
       event.tenant_id, event.organization_id, current_setting('noetl.log_branch', true) AS log_branch
FROM (
    SELECT first.*, sum(coalesce(last_version - first_version, 0) + 1) OVER (ORDER BY outbox_id) AS messages
    FROM (
        SELECT outbox_id, shard, execution_id, first_version, last_version, subject, message_id, headers, body,
               extract(epoch FROM clock_timestamp() - created_at)::float8 AS age_seconds
        FROM noetl.outbox
        WHERE shard = ANY((SELECT $1::text::integer[])::integer[])
        ORDER BY outbox_id
        LIMIT $2
    ) AS first
) AS waiting
LEFT JOIN LATERAL (
    SELECT * FROM noetl.event
    WHERE event.execution_id = waiting.execution_id
      AND event.stream_version BETWEEN waiting.first_version AND waiting.last_version OFFSET 0
) AS event ON waiting.first_version IS NOT NULL
WHERE waiting.messages - coalesce(waiting.last_version - waiting.first_version, 0) <= $2
ORDER BY waiting.outbox_id, event.stream_version

-- name: delete_and_take — what was published goes, what follows comes; both parts see the rows as they were, so those that go are left out
WITH gone AS (DELETE FROM noetl.outbox WHERE outbox_id = ANY((SELECT $3::text::bigint[])::bigint[]))
SELECT waiting.outbox_id, waiting.shard, waiting.execution_id, waiting.age_seconds, waiting.subject,
       waiting.message_id, waiting.headers, coalesce(waiting.body, event.body) AS body, event.stream_version,
       event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.event_id,
       event.tenant_id, event.organization_id, current_setting('noetl.log_branch', true) AS log_branch
FROM (
    SELECT first.*, sum(coalesce(last_version - first_version, 0) + 1) OVER (ORDER BY outbox_id) AS messages
    FROM (
        SELECT outbox_id, shard, execution_id, first_version, last_version, subject, message_id, headers, body,
               extract(epoch FROM clock_timestamp() - created_at)::float8 AS age_seconds
        FROM noetl.outbox
        WHERE shard = ANY((SELECT $1::text::integer[])::integer[])
          AND outbox_id <> ALL((SELECT $3::text::bigint[])::bigint[])
        ORDER BY outbox_id
        LIMIT $2
    ) AS first
) AS waiting
LEFT JOIN LATERAL (
    SELECT * FROM noetl.event
    WHERE event.execution_id = waiting.execution_id
      AND event.stream_version BETWEEN waiting.first_version AND waiting.last_version OFFSET 0
) AS event ON waiting.first_version IS NOT NULL
WHERE waiting.messages - coalesce(waiting.last_version - waiting.first_version, 0) <= $2
ORDER BY waiting.outbox_id, event.stream_version

-- name: delete
DELETE FROM noetl.outbox WHERE outbox_id = ANY((SELECT $1::text::bigint[])::bigint[])

-- name: backlog — counted up to a limit, so that a long backlog is not made longer by counting it
SELECT (SELECT count(*) FROM (SELECT outbox_id FROM noetl.outbox LIMIT $1) AS counted) AS waiting,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - created_at)::float8
                 FROM noetl.outbox ORDER BY outbox_id LIMIT 1), 0) AS oldest_age_seconds

-- name: shard_count
SELECT shard_count FROM noetl.installation

-- name: announce
INSERT INTO noetl.outbox_publisher (owner, seen_at) VALUES ($1, clock_timestamp())
ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at

-- name: forget_silent — whoever was silent for a whole lease has none left
DELETE FROM noetl.outbox_publisher WHERE seen_at < clock_timestamp() - make_interval(secs => $1)

-- name: publishers
SELECT owner FROM noetl.outbox_publisher ORDER BY owner

-- name: renew
UPDATE noetl.outbox_lease SET leased_until = clock_timestamp() + make_interval(secs => $2)
WHERE owner = $1
RETURNING shard

-- name: give_back
UPDATE noetl.outbox_lease SET owner = NULL, leased_until = '-infinity'
WHERE owner = $1 AND shard = ANY($2::integer[])

-- name: acquire — only what nobody holds by this clock; what another replica is just acquiring is left to it
UPDATE noetl.outbox_lease AS lease
SET owner = $1, epoch = lease.epoch + 1, leased_until = clock_timestamp() + make_interval(secs => $2)
FROM (SELECT shard FROM noetl.outbox_lease
      WHERE leased_until < clock_timestamp() AND owner IS DISTINCT FROM $1
      ORDER BY shard LIMIT $3 FOR UPDATE SKIP LOCKED) AS free
WHERE lease.shard = free.shard
RETURNING lease.shard

-- name: give_back_all
UPDATE noetl.outbox_lease SET owner = NULL, leased_until = '-infinity' WHERE owner = $1

-- name: forget
DELETE FROM noetl.outbox_publisher WHERE owner = $1

-- name: give_back_of_predecessors — an owner is `instance/incarnation`
UPDATE noetl.outbox_lease SET owner = NULL, leased_until = '-infinity'
WHERE owner <> $2 AND regexp_replace(owner, '/[^/]*$', '') = $1
RETURNING shard

-- name: forget_predecessors
DELETE FROM noetl.outbox_publisher WHERE owner <> $2 AND regexp_replace(owner, '/[^/]*$', '') = $1
