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

-- name: clock
SELECT clock_timestamp()

-- name: known_keys — a statement of its own after the locks, so that its snapshot includes what their last holders wrote
--
-- The keys of a stream are neighbours in the array, and often in the index: one scan finds them all. The sub-select with OFFSET 0
-- stays a lookup per stream, whatever the planner thinks of the table. The row without an id tells the time.
SELECT event.execution_id, event.idempotency_key, event.content_sha256, event.event_id, event.stream_version,
       event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.body
FROM unnest($1::bigint[], $2::integer[], $3::integer[]) AS asked (execution_id, low, high)
CROSS JOIN LATERAL (
    SELECT * FROM noetl.event
    WHERE event.execution_id = asked.execution_id AND event.idempotency_key = ANY (($4::text[])[asked.low : asked.high])
    OFFSET 0
) AS event
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, clock_timestamp(), NULL, NULL, NULL

-- name: aggregate_versions
SELECT asked.execution_id, asked.aggregate_id, last.aggregate_version
FROM unnest($1::bigint[], $2::text[]) AS asked (execution_id, aggregate_id)
CROSS JOIN LATERAL (
    SELECT event.aggregate_version FROM noetl.event
    WHERE event.execution_id = asked.execution_id AND event.aggregate_id = asked.aggregate_id
      AND event.aggregate_type <> 'execution'
    ORDER BY event.aggregate_version DESC LIMIT 1
) AS last

-- name: started — executions under start keys; most are new, so their first events are asked for apart
SELECT known.tenant_id, known.organization_id, known.start_key, known.execution_id
FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (tenant_id, organization_id, start_key)
JOIN noetl.start_key AS known USING (tenant_id, organization_id, start_key)

-- name: first_events
SELECT event.execution_id, event.content_sha256, event.event_id, event.stream_version, event.aggregate_version,
       event.ingest_time, event.prev_checksum, event.checksum, event.body
FROM noetl.event
WHERE event.execution_id = ANY($1::bigint[]) AND event.stream_version = 1

-- name: insert_events — for a few rows, which COPY would take longer to begin with than to write
INSERT INTO noetl.event (
    execution_id, stream_version, event_id, tenant_id, organization_id, event_type, aggregate_type, aggregate_id,
    aggregate_version, idempotency_key, content_sha256, event_time, ingest_time, node_name, stage_id, frame_id,
    command_id, loop_id, epoch_id, result, prev_checksum, checksum, body)
SELECT * FROM unnest(
    $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
    $9::bigint[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::text[], $15::text[],
    $16::text[], $17::text[], $18::text[], $19::text[], $20::jsonb[], $21::text[], $22::text[], $23::bytea[])

-- name: insert_heads — keys and ids in order, so that replicas that race for the same ones cannot deadlock
WITH created AS (
    INSERT INTO noetl.stream (execution_id, version, last_checksum, last_ingest_time, terminal, tenant_id,
                              organization_id, shard, parent_execution_id, updated_at)
    SELECT head.*, clock_timestamp()
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::boolean[], $6::text[], $7::text[],
                $8::integer[], $9::bigint[]) AS head
    ORDER BY 1
)
INSERT INTO noetl.start_key (tenant_id, organization_id, start_key, execution_id)
SELECT tenant_id, organization_id, start_key, execution_id
FROM unnest($6::text[], $7::text[], $10::text[], $1::bigint[])
     AS started (tenant_id, organization_id, start_key, execution_id)
WHERE start_key IS NOT NULL
ORDER BY tenant_id, organization_id, start_key

-- name: finish — moves heads, leaves word for the publisher, and wakes whoever listens once this is committed
--
-- The order of outbox ids is the order of the rows.
WITH moved AS (
    UPDATE noetl.stream AS stream
    SET version = moved.version, last_checksum = moved.checksum, last_ingest_time = moved.ingest_time,
        terminal = moved.terminal, updated_at = clock_timestamp()
    FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::timestamptz[], $5::boolean[])
         AS moved (execution_id, version, checksum, ingest_time, terminal)
    WHERE stream.execution_id = moved.execution_id
), outbox AS (
    INSERT INTO noetl.outbox (shard, execution_id, first_version, last_version, subject, message_id, headers, body)
    SELECT shard, execution_id, first_version, last_version, subject, message_id, headers, body
    FROM unnest($6::integer[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::text[], $12::jsonb[],
                $13::bytea[])
         WITH ORDINALITY AS message (shard, execution_id, first_version, last_version, subject, message_id, headers,
                                     body, place)
    ORDER BY place
)
SELECT pg_notify('noetl_commit', notice) FROM unnest($14::text[]) AS notice

-- name: look — everything that a verdict depends on, as one snapshot and without locks; `write` notices what moved since
--
-- One shape for all kinds of rows: h heads, e epochs, a versions of aggregates, k known keys, s taken start keys, t the time.
-- The sub-selects with OFFSET 0 stay lookups, whatever the planner thinks of the table.
SELECT 'h' AS kind, execution_id, tenant_id AS text1, organization_id AS text2, last_checksum AS text3, NULL AS text4,
       shard::bigint AS number1, version AS number2, parent_execution_id AS number3, last_ingest_time AS moment,
       terminal, NULL::bytea AS body
FROM noetl.stream WHERE execution_id = ANY($1::bigint[])
UNION ALL
SELECT 'e', NULL, role, NULL, NULL, NULL, shard_id, epoch, NULL, NULL, NULL, NULL
FROM noetl.execution_shard WHERE (role, shard_id) IN (SELECT * FROM unnest($2::text[], $3::integer[]))
UNION ALL
SELECT 'a', asked.execution_id, asked.aggregate_id, NULL, NULL, NULL, last.aggregate_version, NULL, NULL, NULL, NULL, NULL
FROM unnest($4::bigint[], $5::text[]) AS asked (execution_id, aggregate_id)
CROSS JOIN LATERAL (
    SELECT event.aggregate_version FROM noetl.event
    WHERE event.execution_id = asked.execution_id AND event.aggregate_id = asked.aggregate_id
      AND event.aggregate_type <> 'execution'
    ORDER BY event.aggregate_version DESC LIMIT 1
) AS last
UNION ALL
SELECT 'k', event.execution_id, event.idempotency_key, event.content_sha256, event.prev_checksum, event.checksum,
       event.event_id, event.stream_version, event.aggregate_version, event.ingest_time, NULL, event.body
FROM unnest($6::bigint[], $7::integer[], $8::integer[]) AS asked (execution_id, low, high)
CROSS JOIN LATERAL (
    SELECT * FROM noetl.event
    WHERE event.execution_id = asked.execution_id AND event.idempotency_key = ANY (($9::text[])[asked.low : asked.high])
    OFFSET 0
) AS event
UNION ALL
SELECT 's', known.execution_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest($10::text[], $11::text[], $12::text[]) AS asked (tenant_id, organization_id, start_key)
JOIN noetl.start_key AS known USING (tenant_id, organization_id, start_key)
UNION ALL
SELECT 't', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, clock_timestamp(), NULL, NULL

-- name: write — a whole batch in one statement, if its heads and epochs still are as they were seen; else nothing
--
-- As seen is a head with the same checksum: a database that was restored may have come to the same version by another way.
-- Heads are locked in id order, as everywhere. A head that somebody is just moving is waited for, and seen as it is then.
WITH head AS MATERIALIZED (
    SELECT stream.execution_id
    FROM unnest($32::bigint[], $33::bigint[], $53::text[]) AS seen (execution_id, version, checksum)
    JOIN noetl.stream AS stream USING (execution_id)
    WHERE stream.version = seen.version AND stream.last_checksum = seen.checksum
    ORDER BY stream.execution_id
    FOR UPDATE OF stream
), lease AS MATERIALIZED (
    SELECT shard.shard_id
    FROM unnest($34::text[], $35::integer[], $36::bigint[]) AS seen (role, shard_id, epoch)
    JOIN noetl.execution_shard AS shard USING (role, shard_id)
    WHERE shard.epoch = seen.epoch
    ORDER BY role, shard_id
    FOR SHARE OF shard
), verdict AS MATERIALIZED (
    SELECT (SELECT count(*) FROM head) = cardinality($32::bigint[])
       AND (SELECT count(*) FROM lease) = cardinality($34::text[]) AS unchanged
), event AS (
    INSERT INTO noetl.event (
        execution_id, stream_version, event_id, tenant_id, organization_id, event_type, aggregate_type, aggregate_id,
        aggregate_version, idempotency_key, content_sha256, event_time, ingest_time, node_name, stage_id, frame_id,
        command_id, loop_id, epoch_id, result, prev_checksum, checksum, body)
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::bigint[], $10::text[], $11::text[], $12::timestamptz[], $13::timestamptz[], $14::text[], $15::text[],
        $16::text[], $17::text[], $18::text[], $19::text[], $20::jsonb[], $21::text[], $22::text[], $23::bytea[])
    WHERE (SELECT unchanged FROM verdict)
), outbox AS (
    INSERT INTO noetl.outbox (shard, execution_id, first_version, last_version, subject, message_id, headers, body)
    SELECT shard, execution_id, first_version, last_version, subject, message_id, headers, body
    FROM unnest($24::integer[], $25::bigint[], $26::bigint[], $27::bigint[], $28::text[], $29::text[], $30::jsonb[],
                $31::bytea[])
         WITH ORDINALITY AS message (shard, execution_id, first_version, last_version, subject, message_id, headers,
                                     body, place)
    WHERE (SELECT unchanged FROM verdict)
    ORDER BY place
), moved AS (
    UPDATE noetl.stream AS stream
    SET version = moved.version, last_checksum = moved.checksum, last_ingest_time = moved.ingest_time,
        terminal = moved.terminal, updated_at = clock_timestamp()
    FROM unnest($37::bigint[], $38::bigint[], $39::text[], $40::timestamptz[], $41::boolean[])
         AS moved (execution_id, version, checksum, ingest_time, terminal)
    WHERE stream.execution_id = moved.execution_id AND (SELECT unchanged FROM verdict)
), created AS (
    INSERT INTO noetl.stream (execution_id, version, last_checksum, last_ingest_time, terminal, tenant_id,
                              organization_id, shard, parent_execution_id, updated_at)
    SELECT head.*, clock_timestamp()
    FROM unnest($42::bigint[], $43::bigint[], $44::text[], $45::timestamptz[], $46::boolean[], $47::text[], $48::text[],
                $49::integer[], $50::bigint[]) AS head
    WHERE (SELECT unchanged FROM verdict)
    ORDER BY 1
), started AS (
    INSERT INTO noetl.start_key (tenant_id, organization_id, start_key, execution_id)
    SELECT tenant_id, organization_id, start_key, execution_id
    FROM unnest($47::text[], $48::text[], $51::text[], $42::bigint[])
         AS started (tenant_id, organization_id, start_key, execution_id)
    WHERE start_key IS NOT NULL AND (SELECT unchanged FROM verdict)
    ORDER BY tenant_id, organization_id, start_key
)
SELECT pg_notify('noetl_commit', notice), clock_timestamp() AS now
FROM unnest($52::text[]) AS notice WHERE (SELECT unchanged FROM verdict)

-- name: prepare_claim — for `CopiedAppend`: locks as `write` does, and tells its transaction whether all is as it was seen
--
-- One argument, a JSON object as bytes: it stands as hex digits in the text of a query that also has a COPY in it, and
-- such a query has no parameters.
PREPARE noetl_claim (bytea) AS
WITH asked AS MATERIALIZED (
    SELECT convert_from($1, 'UTF8')::jsonb AS given
), head AS MATERIALIZED (
    SELECT stream.execution_id
    FROM asked CROSS JOIN jsonb_to_recordset(asked.given -> 'seen')
         AS seen (execution_id bigint, version bigint, checksum text)
    JOIN noetl.stream AS stream USING (execution_id)
    WHERE stream.version = seen.version AND stream.last_checksum = seen.checksum
    ORDER BY stream.execution_id
    FOR UPDATE OF stream
), lease AS MATERIALIZED (
    SELECT shard.shard_id
    FROM asked CROSS JOIN jsonb_to_recordset(asked.given -> 'epochs') AS seen (role text, shard_id integer, epoch bigint)
    JOIN noetl.execution_shard AS shard USING (role, shard_id)
    WHERE shard.epoch = seen.epoch
    ORDER BY role, shard_id
    FOR SHARE OF shard
)
SELECT set_config('noetl.claimed',
                  CASE WHEN (SELECT count(*) FROM head) = jsonb_array_length(asked.given -> 'seen')
                        AND (SELECT count(*) FROM lease) = jsonb_array_length(asked.given -> 'epochs')
                       THEN 'yes' ELSE 'no' END,
                  true)
FROM asked

-- name: prepare_settle — what `write` does besides inserting events, for who has claimed the heads; a row for each notice
PREPARE noetl_settle (bytea) AS
WITH asked AS MATERIALIZED (
    SELECT convert_from($1, 'UTF8')::jsonb AS given WHERE current_setting('noetl.claimed', true) = 'yes'
), outbox AS (
    INSERT INTO noetl.outbox (shard, execution_id, first_version, last_version, subject, message_id, headers, body)
    SELECT (row ->> 0)::integer, (row ->> 1)::bigint, (row ->> 2)::bigint, (row ->> 3)::bigint, row ->> 4, row ->> 5,
           (row ->> 6)::jsonb, decode(row ->> 7, 'hex')
    FROM asked CROSS JOIN jsonb_array_elements(asked.given -> 'outbox') WITH ORDINALITY AS message (row, place)
    ORDER BY place
), moved AS (
    UPDATE noetl.stream AS stream
    SET version = moved.version, last_checksum = moved.checksum, last_ingest_time = moved.ingest_time,
        terminal = moved.terminal, updated_at = clock_timestamp()
    FROM asked CROSS JOIN jsonb_to_recordset(asked.given -> 'moved')
         AS moved (execution_id bigint, version bigint, checksum text, ingest_time timestamptz, terminal boolean)
    WHERE stream.execution_id = moved.execution_id
), created AS (
    INSERT INTO noetl.stream (execution_id, version, last_checksum, last_ingest_time, terminal, tenant_id,
                              organization_id, shard, parent_execution_id, updated_at)
    SELECT execution_id, version, checksum, ingest_time, terminal, tenant_id, organization_id, shard,
           parent_execution_id, clock_timestamp()
    FROM asked CROSS JOIN jsonb_to_recordset(asked.given -> 'created')
         AS head (execution_id bigint, version bigint, checksum text, ingest_time timestamptz, terminal boolean,
                  tenant_id text, organization_id text, shard integer, parent_execution_id bigint)
    ORDER BY execution_id
), started AS (
    INSERT INTO noetl.start_key (tenant_id, organization_id, start_key, execution_id)
    SELECT tenant_id, organization_id, start_key, execution_id
    FROM asked CROSS JOIN jsonb_to_recordset(asked.given -> 'created')
         AS head (tenant_id text, organization_id text, start_key text, execution_id bigint)
    WHERE start_key IS NOT NULL
    ORDER BY tenant_id, organization_id, start_key
)
SELECT pg_notify('noetl_commit', notice)
FROM asked CROSS JOIN jsonb_array_elements_text(asked.given -> 'notices') AS notice

-- name: read — the head, and with it the events of a range, as one snapshot; a row without an event if there are none
SELECT stream.tenant_id, stream.organization_id, stream.version, stream.terminal, event.*
FROM noetl.stream AS stream
LEFT JOIN LATERAL (
    SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body
    FROM noetl.event
    WHERE event.execution_id = $1 AND event.stream_version >= $2
      AND event.stream_version <= CASE $3::bigint WHEN 0 THEN stream.version ELSE $3 END
    ORDER BY event.stream_version
    LIMIT $4
) AS event ON true
WHERE stream.execution_id = $1

-- name: moved_heads
SELECT execution_id, tenant_id, organization_id, shard, version, terminal, updated_at, clock_timestamp() AS now
FROM noetl.stream
WHERE shard = ANY($1::integer[])
  AND updated_at >= $2
  AND (updated_at, execution_id) > ($3, $4::bigint)
ORDER BY updated_at, execution_id
LIMIT $5

-- name: open_heads — as moved_heads; apart from it, so that it can use the index of open executions
SELECT execution_id, tenant_id, organization_id, shard, version, terminal, updated_at, clock_timestamp() AS now
FROM noetl.stream
WHERE shard = ANY($1::integer[])
  AND NOT terminal
  AND updated_at >= $2
  AND (updated_at, execution_id) > ($3, $4::bigint)
ORDER BY updated_at, execution_id
LIMIT $5
