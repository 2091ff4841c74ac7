-- name: load_rows — the registry counts only if it was written with the version of the row: older releases leave it
SELECT execution_id, state::text, stream_version, projector_epoch,
       CASE WHEN upcasters_version = stream_version THEN upcasters END
FROM noetl.execution
WHERE execution_id = ANY((SELECT $1::text::bigint[])::bigint[])

-- name: row_versions
SELECT execution_id, stream_version FROM noetl.execution WHERE execution_id = ANY((SELECT $1::text::bigint[])::bigint[])

-- name: write_executions — in the order of ids, so that two projectors cannot deadlock; only newer wins, and no deposed owner
INSERT INTO noetl.execution AS stored (
    execution_id, tenant_id, organization_id, shard, path, version, catalog_id, parent_execution_id, status,
    last_event_type, last_node_name, start_time, end_time, error, state, stream_version, last_projected_event_id,
    event_time_watermark, projector_epoch, next_deadline, upcasters, upcasters_version, projected_at)
SELECT
    execution_id, tenant_id, organization_id, shard, path, version, catalog_id, parent_execution_id, status,
    last_event_type, last_node_name, start_time, end_time, error::json, state::json, stream_version, last_event_id,
    event_time_watermark, projector_epoch, next_deadline, upcasters, stream_version, clock_timestamp()
FROM json_to_recordset($1::json) AS incoming (
    execution_id bigint, tenant_id text, organization_id text, shard integer, path text, version integer,
    catalog_id text, parent_execution_id bigint, status text, last_event_type text, last_node_name text,
    start_time timestamptz, end_time timestamptz, error text, state text, stream_version bigint, last_event_id bigint,
    event_time_watermark timestamptz, projector_epoch bigint, base_version bigint, next_deadline timestamptz,
    upcasters text)
WHERE base_version = 0
   OR EXISTS (SELECT FROM noetl.execution AS base WHERE base.execution_id = incoming.execution_id)
ORDER BY execution_id
ON CONFLICT (execution_id) DO UPDATE SET
    path = excluded.path, version = excluded.version, catalog_id = excluded.catalog_id, status = excluded.status,
    last_event_type = excluded.last_event_type, last_node_name = excluded.last_node_name,
    start_time = excluded.start_time, end_time = excluded.end_time, error = excluded.error, state = excluded.state,
    stream_version = excluded.stream_version, last_projected_event_id = excluded.last_projected_event_id,
    event_time_watermark = excluded.event_time_watermark, projector_epoch = excluded.projector_epoch,
    next_deadline = excluded.next_deadline, upcasters = excluded.upcasters,
    upcasters_version = excluded.upcasters_version, projected_at = excluded.projected_at
WHERE stored.stream_version < excluded.stream_version AND stored.projector_epoch <= excluded.projector_epoch
  AND stored.upcasters = excluded.upcasters AND stored.upcasters_version = stored.stream_version
RETURNING execution_id, tenant_id, organization_id, projected_at

-- name: remove_replaced — in the transaction that writes them anew
SELECT noetl.remove_projections($1, $2, $3, $4)

-- name: refusals
SELECT execution_id, stream_version, projector_epoch FROM noetl.execution WHERE execution_id = ANY($1::bigint[])

-- name: clock
SELECT clock_timestamp()

-- name: checkpoints
SELECT shard_id, last_projected_event_id, last_projected_at, lag_ms, caught_up_to
FROM noetl.projection_checkpoint
WHERE shard_id = ANY($1::integer[])

-- name: write_checkpoints
INSERT INTO noetl.projection_checkpoint AS stored (
    shard_id, last_projected_event_id, last_projected_at, lag_ms, caught_up_to)
SELECT * FROM unnest(
    $1::integer[], $2::bigint[], $3::timestamptz[], $4::double precision[], $5::timestamptz[])
    AS incoming (shard_id, last_projected_event_id, last_projected_at, lag_ms, caught_up_to)
ORDER BY shard_id
ON CONFLICT (shard_id) DO UPDATE SET
    last_projected_event_id = coalesce(excluded.last_projected_event_id, stored.last_projected_event_id),
    last_projected_at = coalesce(excluded.last_projected_at, stored.last_projected_at),
    lag_ms = coalesce(excluded.lag_ms, stored.lag_ms),
    caught_up_to = greatest(stored.caught_up_to, excluded.caught_up_to)

-- name: write_barriers — of what is committed, so that no barrier is ever ahead of the rows
WITH closed AS (
    INSERT INTO noetl.checkpoint (execution_id, shard_id, epoch, last_event_id, committed_at)
    SELECT execution_id, shard, stream_version, last_projected_event_id, clock_timestamp()
    FROM noetl.execution
    WHERE execution_id = ANY((SELECT $1::text::bigint[])::bigint[])
    ORDER BY execution_id
    ON CONFLICT (execution_id, epoch) DO NOTHING
    RETURNING execution_id, shard_id, epoch, last_event_id, committed_at
), superseded AS (
    DELETE FROM noetl.checkpoint AS old USING closed
    WHERE old.execution_id = closed.execution_id AND old.epoch < closed.epoch AND NOT old.told
)
SELECT execution_id, shard_id, epoch, last_event_id, committed_at FROM closed ORDER BY execution_id

-- name: keep_barrier
UPDATE noetl.checkpoint SET told = true WHERE execution_id = $1 AND epoch = $2

-- name: barriers
SELECT execution_id, shard_id, epoch, last_event_id, committed_at
FROM noetl.checkpoint
WHERE execution_id = $1
ORDER BY epoch

-- name: find_execution — by key; whose it is, is compared by the caller
SELECT execution_id, tenant_id, organization_id, path, version, catalog_id, status, last_event_type, last_node_name,
       start_time, end_time, error::text, stream_version, parent_execution_id,
       CASE WHEN upcasters_version = stream_version THEN upcasters END, state::text
FROM noetl.execution
WHERE execution_id = $1

-- name: list_live — from execution to execution by the keys of all surfaces, one step each however many rows it has; whose
-- it is, is told by its own row, and by another one only where there is none
WITH RECURSIVE found AS (
    SELECT $1::bigint AS execution_id, 0 AS place
    UNION ALL
    SELECT following.execution_id, found.place + 1
    FROM found
    CROSS JOIN LATERAL (
        SELECT execution_id
        FROM (
            (SELECT execution_id FROM noetl.execution WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
            UNION ALL
            (SELECT execution_id FROM noetl.command WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
            UNION ALL
            (SELECT execution_id FROM noetl.loop WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
            UNION ALL
            (SELECT execution_id FROM noetl.stage WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
            UNION ALL
            (SELECT execution_id FROM noetl.frame WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
            UNION ALL
            (SELECT execution_id FROM noetl.business_object WHERE execution_id > found.execution_id
             ORDER BY execution_id LIMIT 1)
        ) AS surfaces
        ORDER BY execution_id
        LIMIT 1
    ) AS following
    WHERE found.place < $2
)
SELECT found.execution_id, owner.tenant_id, owner.organization_id, owner.stream_version
FROM found
CROSS JOIN LATERAL (
    SELECT tenant_id, organization_id, stream_version
    FROM (
        (SELECT 0 AS rank, tenant_id, organization_id, stream_version FROM noetl.execution
         WHERE execution_id = found.execution_id)
        UNION ALL
        (SELECT 1 AS rank, tenant_id, organization_id, stream_version FROM noetl.command
         WHERE execution_id = found.execution_id ORDER BY command_id LIMIT 1)
        UNION ALL
        (SELECT 2 AS rank, tenant_id, organization_id, stream_version FROM noetl.loop
         WHERE execution_id = found.execution_id ORDER BY loop_id LIMIT 1)
        UNION ALL
        (SELECT 3 AS rank, tenant_id, organization_id, stream_version FROM noetl.stage
         WHERE execution_id = found.execution_id ORDER BY stage_id LIMIT 1)
        UNION ALL
        (SELECT 4 AS rank, tenant_id, organization_id, stream_version FROM noetl.frame
         WHERE execution_id = found.execution_id ORDER BY frame_id LIMIT 1)
        UNION ALL
        (SELECT 5 AS rank, tenant_id, organization_id, stream_version FROM noetl.business_object
         WHERE execution_id = found.execution_id ORDER BY object_key LIMIT 1)
    ) AS stored
    ORDER BY rank
    LIMIT 1
) AS owner
WHERE found.place > 0
ORDER BY found.execution_id

-- name: list_executions
SELECT execution_id, tenant_id, organization_id, path, version, catalog_id, status, last_event_type, last_node_name,
       start_time, end_time, error::text, stream_version, parent_execution_id,
       CASE WHEN upcasters_version = stream_version THEN upcasters END
FROM noetl.execution
WHERE tenant_id = $1 AND organization_id = $2 AND execution_id < $3
ORDER BY execution_id DESC
LIMIT $4

-- name: list_executions_by_status
SELECT execution_id, tenant_id, organization_id, path, version, catalog_id, status, last_event_type, last_node_name,
       start_time, end_time, error::text, stream_version, parent_execution_id,
       CASE WHEN upcasters_version = stream_version THEN upcasters END
FROM noetl.execution
WHERE tenant_id = $1 AND organization_id = $2 AND execution_id < $3 AND status = $5
ORDER BY execution_id DESC
LIMIT $4

-- name: list_executions_by_path — status, if any is given, is checked on the way
SELECT execution_id, tenant_id, organization_id, path, version, catalog_id, status, last_event_type, last_node_name,
       start_time, end_time, error::text, stream_version, parent_execution_id,
       CASE WHEN upcasters_version = stream_version THEN upcasters END
FROM noetl.execution
WHERE tenant_id = $1 AND organization_id = $2 AND execution_id < $3 AND path = $5 AND ($6 = '' OR status = $6)
ORDER BY execution_id DESC
LIMIT $4

-- name: list_children — of one execution; status and path, if any are given, are checked on the way
SELECT execution_id, tenant_id, organization_id, path, version, catalog_id, status, last_event_type, last_node_name,
       start_time, end_time, error::text, stream_version, parent_execution_id,
       CASE WHEN upcasters_version = stream_version THEN upcasters END
FROM noetl.execution
WHERE tenant_id = $1 AND organization_id = $2 AND execution_id < $3 AND parent_execution_id = $5
  AND ($6 = '' OR status = $6) AND ($7 = '' OR path = $7)
ORDER BY execution_id DESC
LIMIT $4

-- name: silent_commands — now() rather than clock_timestamp(): an index can only be searched for what stands still
SELECT execution_id, command_id, tenant_id, organization_id, step, attempt, worker_id, aggregate_version, lease_until,
       trace
FROM noetl.command
WHERE lease_until < now()
ORDER BY lease_until, execution_id, command_id
LIMIT $1

-- name: silent_commands_after
SELECT execution_id, command_id, tenant_id, organization_id, step, attempt, worker_id, aggregate_version, lease_until,
       trace
FROM noetl.command
WHERE lease_until < now() AND lease_until >= $2 AND (lease_until, execution_id, command_id) > ($2, $3, $4)
ORDER BY lease_until, execution_id, command_id
LIMIT $1

-- name: quiet_executions — among those that have not ended, by id
SELECT execution_id, tenant_id, organization_id, path, event_time_watermark
FROM noetl.execution
WHERE end_time IS NULL AND execution_id > $2 AND event_time_watermark < now() - make_interval(secs => $3)
ORDER BY execution_id
LIMIT $1

-- name: passed_deadlines — now(), as for silent commands
SELECT execution_id, tenant_id, organization_id, next_deadline AS deadline, end_time IS NOT NULL AS cascades
FROM noetl.execution
WHERE next_deadline < now()
ORDER BY next_deadline, execution_id
LIMIT $1

-- name: passed_deadlines_after
SELECT execution_id, tenant_id, organization_id, next_deadline AS deadline, end_time IS NOT NULL AS cascades
FROM noetl.execution
WHERE next_deadline < now() AND next_deadline >= $2 AND (next_deadline, execution_id) > ($2, $3)
ORDER BY next_deadline, execution_id
LIMIT $1
