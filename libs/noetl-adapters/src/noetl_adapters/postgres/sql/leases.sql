-- Shard leases. Everything is judged by the database's clock, under row locks taken in the order of shards.

-- name: installation
SELECT shard_count, log_generation::text FROM noetl.installation

-- name: announce — creates the row of a replica that is new
INSERT INTO noetl.runtime (role, instance, incarnation, address, leased_until)
VALUES ($1, $2, $3, $4, '-infinity')
ON CONFLICT (role, instance) DO NOTHING

-- name: lock_runtime
SELECT runtime_id, incarnation, deposed FROM noetl.runtime WHERE role = $1 AND instance = $2 FOR NO KEY UPDATE

-- name: renew_runtime
UPDATE noetl.runtime
SET incarnation = $2, deposed = $3, address = $4,
    leased_until = clock_timestamp() + make_interval(secs => $5),
    started_at = CASE WHEN incarnation = $2 THEN started_at ELSE clock_timestamp() END
WHERE runtime_id = $1

-- name: forget_dead_runtimes
DELETE FROM noetl.runtime AS dead
WHERE dead.role = $1 AND dead.leased_until < clock_timestamp() - interval '1 day' AND dead.instance <> $2
  AND NOT EXISTS (SELECT FROM noetl.execution_shard WHERE owner_runtime_id = dead.runtime_id)

-- name: log_branch
SELECT noetl.log_branch()

-- name: live_instances
SELECT count(*) FROM noetl.runtime WHERE role = $1 AND leased_until > clock_timestamp()

-- name: lock_shards — waits for appends that are fenced by one of them, and only for those
SELECT shard_id, epoch, coalesce(owner_instance, '') AS instance, leased_until <= clock_timestamp() AS expired
FROM noetl.execution_shard
WHERE role = $1
ORDER BY role, shard_id
FOR NO KEY UPDATE

-- name: next_expiry — of what others hold, unless they renew it
SELECT coalesce(extract(epoch FROM min(leased_until) - clock_timestamp()), 0)::double precision
FROM noetl.execution_shard
WHERE role = $1 AND owner_instance <> $2 AND leased_until > clock_timestamp()

-- name: hold_shards
UPDATE noetl.execution_shard AS shard
SET owner_runtime_id = $2, owner_instance = $3, epoch = held.epoch,
    leased_until = clock_timestamp() + make_interval(secs => $4), updated_at = clock_timestamp()
FROM unnest($5::integer[], $6::bigint[]) AS held (shard_id, epoch)
WHERE shard.role = $1 AND shard.shard_id = held.shard_id
RETURNING shard.shard_id, shard.epoch, shard.leased_until

-- name: give_back — the epoch stays: it grows when somebody else claims the shard
UPDATE noetl.execution_shard
SET owner_runtime_id = NULL, owner_instance = NULL, leased_until = '-infinity', updated_at = clock_timestamp()
WHERE role = $1 AND shard_id = ANY($2::integer[])

-- name: retire_runtime
UPDATE noetl.runtime SET leased_until = '-infinity' WHERE runtime_id = $1

-- name: list_shards
SELECT shard.shard_id, shard.epoch,
       CASE WHEN shard.leased_until > clock_timestamp() THEN shard.owner_instance END AS instance,
       CASE WHEN shard.leased_until > clock_timestamp() THEN runtime.address END AS address,
       CASE WHEN shard.leased_until > clock_timestamp() THEN shard.leased_until ELSE 'epoch' END AS leased_until
FROM noetl.execution_shard AS shard
LEFT JOIN noetl.runtime AS runtime ON runtime.runtime_id = shard.owner_runtime_id
WHERE shard.role = $1
ORDER BY shard.shard_id
