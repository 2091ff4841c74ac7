-- name: open_descendants — through those that have ended too, since they may have left children behind
WITH RECURSIVE below (execution_id, terminal, depth) AS (
    SELECT execution_id, terminal, 1 FROM noetl.stream WHERE parent_execution_id = $1
    UNION ALL
    SELECT child.execution_id, child.terminal, below.depth + 1
    FROM below JOIN noetl.stream AS child ON child.parent_execution_id = below.execution_id
)
SELECT execution_id FROM below WHERE NOT terminal ORDER BY depth, execution_id LIMIT $2

-- name: has_children
SELECT EXISTS (SELECT FROM noetl.stream WHERE parent_execution_id = $1)
