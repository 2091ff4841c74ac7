-- Where results came from, read off the log. One execution is one range of the primary key, looked at once per question.

-- name: trace — a result names the one before it; the same bytes may have come more than once, and the last one before is meant
--
-- A loop was made from what its items, or frames, were made from. What a pipeline gave is told under a node of its own,
-- which only the event itself tells apart from a step that somebody has named so.
WITH RECURSIVE told AS MATERIALIZED (
    SELECT stream_version, loop_id,
           CASE WHEN node_name LIKE '%:task_sequence'
                     AND convert_from(body, 'UTF8')::json #>> '{meta,pipeline}' = 'true'
                THEN left(node_name, -length(':task_sequence'))
                ELSE node_name
           END AS step, result #>> '{reference,ref_id}' AS ref_id,
           result #>> '{parent_ref,ref_id}' AS parent_ref_id
    FROM noetl.event
    WHERE execution_id = $1 AND event_type IN ('call.done', 'call.error', 'frame.committed', 'loop.done')
      AND result #>> '{reference,ref_id}' IS NOT NULL
), items AS MATERIALIZED (
    SELECT loop_id, (array_agg(parent_ref_id ORDER BY stream_version DESC))[1] AS parent_ref_id
    FROM told
    WHERE loop_id IS NOT NULL AND parent_ref_id IS NOT NULL
    GROUP BY loop_id
), results AS MATERIALIZED (
    SELECT told.stream_version, told.step, told.ref_id,
           coalesce(told.parent_ref_id, items.parent_ref_id) AS parent_ref_id
    FROM told
    LEFT JOIN items USING (loop_id)
), chain AS (
    (
        SELECT stream_version, parent_ref_id, 1 AS depth
        FROM results
        WHERE step = $2 AND ($3::bigint = 0 OR stream_version <= $3)
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
SELECT event.stream_version, event.aggregate_version, event.ingest_time, event.prev_checksum, event.checksum, event.body,
       chain.parent_ref_id
FROM chain
JOIN noetl.event ON event.execution_id = $1 AND event.stream_version = chain.stream_version
ORDER BY chain.depth

-- name: find
SELECT stream_version, aggregate_version, ingest_time, prev_checksum, checksum, body,
       result #>> '{parent_ref,ref_id}' AS parent_ref_id
FROM noetl.event
WHERE execution_id = $1 AND event_type IN ('call.done', 'call.error', 'frame.committed', 'loop.done') AND result #>> '{reference,ref_id}' = $2
ORDER BY stream_version DESC
LIMIT 1

-- name: owner
SELECT tenant_id, organization_id FROM noetl.stream WHERE execution_id = $1
