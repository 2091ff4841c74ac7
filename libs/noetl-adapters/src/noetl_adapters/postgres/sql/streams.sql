-- name: list_streams — by key, so that a page costs what it holds; null stands for any tenant and any time
SELECT execution_id, tenant_id, organization_id, version, last_checksum, terminal, updated_at
FROM noetl.stream
WHERE execution_id > $1
  AND ($2::text IS NULL OR (tenant_id = $2 AND organization_id = $3))
  AND ($4::timestamptz IS NULL OR updated_at >= $4)
ORDER BY execution_id
LIMIT $5

-- name: find_stream
SELECT execution_id, tenant_id, organization_id, version, last_checksum, terminal, updated_at
FROM noetl.stream
WHERE execution_id = $1 AND ($2::text IS NULL OR (tenant_id = $2 AND organization_id = $3))

-- name: list_hidden — from execution to execution by the key of the log, one step each however long its history is; one
-- statement, since events and heads are committed together
WITH RECURSIVE found AS (
    (
        SELECT execution_id, tenant_id, organization_id, 1 AS place
        FROM noetl.event
        WHERE execution_id > $1
        ORDER BY execution_id, stream_version
        LIMIT 1
    )
    UNION ALL
    SELECT following.execution_id, following.tenant_id, following.organization_id, found.place + 1
    FROM found
    CROSS JOIN LATERAL (
        SELECT event.execution_id, event.tenant_id, event.organization_id
        FROM noetl.event AS event
        WHERE event.execution_id > found.execution_id
        ORDER BY event.execution_id, event.stream_version
        LIMIT 1
    ) AS following
    WHERE found.place < $4
), judged AS (
    SELECT found.execution_id, found.tenant_id, found.organization_id, found.place,
           stream.execution_id IS NOT NULL AS has_head,
           (stream.tenant_id, stream.organization_id) IS DISTINCT FROM (found.tenant_id, found.organization_id)
               AND ($2::text IS NULL OR (found.tenant_id = $2 AND found.organization_id = $3)) AS hidden
    FROM found
    LEFT JOIN noetl.stream AS stream USING (execution_id)
)
SELECT execution_id, tenant_id, organization_id, has_head, hidden, place
FROM judged
WHERE hidden OR place = $4
ORDER BY execution_id

-- name: count_open — no further than asked, from the index of what is open
SELECT count(*) FROM (SELECT FROM noetl.stream WHERE NOT terminal LIMIT $1) AS found

-- name: clock_and_branch
SELECT clock_timestamp(), noetl.log_branch()
