-- Workers that were heard of, in the table of all replicas. Everything is judged by the database's clock.

-- name: report — those that have been silent for a day are forgotten on the way
WITH forgotten AS (
    DELETE FROM noetl.runtime
    WHERE role = 'worker' AND leased_until < clock_timestamp() - interval '1 day' AND instance <> $1
)
INSERT INTO noetl.runtime AS known (role, instance, incarnation, address, leased_until, capacity, heard_at)
VALUES ('worker', $1, '', '', clock_timestamp() + make_interval(secs => $2), $3::jsonb, clock_timestamp())
ON CONFLICT (role, instance) DO UPDATE
SET leased_until = excluded.leased_until, capacity = excluded.capacity, heard_at = excluded.heard_at

-- name: leave
DELETE FROM noetl.runtime WHERE role = 'worker' AND instance = $1

-- name: list
SELECT instance, capacity::text AS capacity, started_at, heard_at
FROM noetl.runtime
WHERE role = 'worker' AND leased_until > clock_timestamp() AND ($1 = '' OR capacity ->> 'pool' = $1)
ORDER BY instance COLLATE "C"
LIMIT $2
