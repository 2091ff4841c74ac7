-- Where results came from, read off the log. One execution is one range of the primary key, looked at once per question.

-- name: trace — a result names the one before it; the same bytes may have come more than once, and the last one before is meant
WITH RECURSIVE results AS MATERIALIZED (
    SELECT stream_version, node_name, result #>> '{reference,ref_id}' AS ref_id,
           result #>> '{parent_ref,ref_id}' AS parent_ref_id
    FROM noetl.event
    WHERE execution_id = $1 AND event_type IN ('call.done', 'call.error')
      AND result #>> '{reference,ref_id}' IS NOT NULL
), chain AS (
    (
        SELECT stream_version, parent_ref_id, 1 AS depth
        FROM results
        WHERE node_name = $2 AND ($3::bigint = 0 OR stream_version <= $3)
        ORDER BY stream_version DESC
        LIMIT 1
    )
    UNION ALL
    SELECT parent.stream_version, parent.parent_ref_id, chain.depth + 1
    FROM chain
    CROSS JOIN LATERAL (
        SELECT stream_version, parent_ref_id
        FROM results
        WHERE results.ref_id = chain.parent_ref_id AND results.stream_version < chain.stream_version
        ORDER BY results.stream_version DESC
        LIMIT 1
    ) AS parent
    WHERE chain.depth <= $4
)
SELECT event.stream_version, event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.body
FROM chain
JOIN noetl.event ON event.execution_id = $1 AND event.stream_version = chain.stream_version
ORDER BY chain.depth

-- name: find
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body
FROM noetl.event
WHERE execution_id = $1 AND event_type IN ('call.done', 'call.error') AND result #>> '{reference,ref_id}' = $2
ORDER BY stream_version DESC
LIMIT 1

-- name: owner
SELECT tenant_id, organization_id FROM noetl.stream WHERE execution_id = $1
