-- Partitions of the log, and the node number under which a process makes snowflakes.

-- name: next_node
SELECT nextval('noetl.snowflake_node')

-- name: ensure_partition
SELECT noetl.ensure_event_partition($1, $2)

-- name: clock
SELECT clock_timestamp()
