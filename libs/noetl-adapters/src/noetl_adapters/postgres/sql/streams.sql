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

-- name: count_open — no further than asked, from the index of what is open
SELECT count(*) FROM (SELECT FROM noetl.stream WHERE NOT terminal LIMIT $1) AS found

-- name: clock
SELECT clock_timestamp()
