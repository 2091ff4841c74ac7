-- The canonical log. Every statement works on arrays: a batch costs the same number of round trips as one event.

-- name: lock_heads — in id order, so that replicas cannot deadlock
SELECT execution_id, tenant_id, organization_id, shard, version, last_checksum, last_ingest_time, terminal,
       parent_execution_id
FROM noetl.stream
WHERE execution_id = ANY($1::bigint[])
ORDER BY execution_id
FOR UPDATE

-- name: lock_epochs — shared, so that a lease cannot change hands between this check and the commit
SELECT role, shard_id, epoch
FROM noetl.execution_shard
WHERE (role, shard_id) IN (SELECT * FROM unnest($1::text[], $2::integer[]))
ORDER BY role, shard_id
FOR SHARE

-- name: known_keys — a statement of its own after the lock, so that its snapshot includes the lock's last holder
SELECT event.execution_id, event.idempotency_key, event.content_sha256, event.event_id, event.stream_version,
       event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.body
FROM unnest($1::bigint[], $2::text[]) AS asked (execution_id, idempotency_key)
JOIN noetl.event AS event
  ON event.execution_id = asked.execution_id AND event.idempotency_key = asked.idempotency_key

-- name: aggregate_versions
SELECT asked.execution_id, asked.aggregate_id,
       (SELECT event.aggregate_version FROM noetl.event AS event
        WHERE event.execution_id = asked.execution_id AND event.aggregate_id = asked.aggregate_id
          AND event.aggregate_type <> 'execution'
        ORDER BY event.aggregate_version DESC LIMIT 1) AS aggregate_version
FROM unnest($1::bigint[], $2::text[]) AS asked (execution_id, aggregate_id)

-- name: started
SELECT known.tenant_id, known.organization_id, known.start_key, event.content_sha256, event.event_id,
       event.stream_version, event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum,
       event.body
FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (tenant_id, organization_id, start_key)
JOIN noetl.start_key AS known USING (tenant_id, organization_id, start_key)
JOIN noetl.event AS event ON event.execution_id = known.execution_id AND event.stream_version = 1

-- name: clock
SELECT clock_timestamp()

-- name: insert_events
INSERT INTO noetl.event (
    execution_id, stream_version, event_id, tenant_id, organization_id, event_type, aggregate_type, aggregate_id,
    aggregate_version, idempotency_key, content_sha256, event_time, ingest_time, node_name, stage_id, frame_id,
    command_id, loop_id, epoch_id, result, prev_checksum, checksum, body)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bigint[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::text[], $15::text[],
    $16::text[], $17::text[], $18::text[], $19::text[], $20::jsonb[], $21::text[], $22::text[], $23::bytea[])

-- name: insert_outbox — WITH ORDINALITY, because the order of an execution's rows is the order of their ids
INSERT INTO noetl.outbox (shard, execution_id, subject, message_id, headers, body)
SELECT shard, execution_id, subject, message_id, headers, body
FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::jsonb[], $6::bytea[])
     WITH ORDINALITY AS row (shard, execution_id, subject, message_id, headers, body, place)
ORDER BY place

-- name: move_heads
UPDATE noetl.stream AS stream
SET version = moved.version, last_checksum = moved.checksum, last_ingest_time = moved.ingest_time,
    terminal = moved.terminal, updated_at = clock_timestamp()
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::boolean[])
     AS moved (execution_id, version, checksum, ingest_time, terminal)
WHERE stream.execution_id = moved.execution_id

-- name: insert_heads
INSERT INTO noetl.stream (execution_id, version, last_checksum, last_ingest_time, terminal, tenant_id,
                          organization_id, shard, parent_execution_id, updated_at)
SELECT created.*, clock_timestamp()
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::boolean[], $6::text[], $7::text[],
            $8::integer[], $9::bigint[]) AS created

-- name: insert_start_keys
INSERT INTO noetl.start_key (tenant_id, organization_id, start_key, execution_id)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])

-- name: notify_commit
SELECT pg_notify('noetl_commit', $1)

-- name: read_head
SELECT tenant_id, organization_id, version, terminal FROM noetl.stream WHERE execution_id = $1

-- name: read_events
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body
FROM noetl.event
WHERE execution_id = $1 AND stream_version >= $2 AND stream_version <= $3
ORDER BY stream_version
LIMIT $4

-- name: moved_heads
SELECT execution_id, tenant_id, organization_id, shard, version, terminal, updated_at, clock_timestamp() AS now
FROM noetl.stream
WHERE shard = ANY($1::integer[])
  AND updated_at >= $2
  AND ($3::timestamptz IS NULL OR (updated_at, execution_id) > ($3, $4::bigint))
  AND (NOT $5::boolean OR NOT terminal)
ORDER BY updated_at, execution_id
LIMIT $6

-- name: installation
SELECT shard_count, log_generation FROM noetl.installation

-- name: next_node
SELECT nextval('noetl.snowflake_node')

-- name: ensure_partition
SELECT noetl.ensure_event_partition($1, $2)
