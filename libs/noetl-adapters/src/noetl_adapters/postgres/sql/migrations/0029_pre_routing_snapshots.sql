-- Routing state of open executions, for the planner that owns their shard next: the newest of each.
--
-- Made from the log, and droppable at any time. A planner begins with one only if the rules it was made by are its own
-- and the log has the same event at its version; it reads everything if there is none.

CREATE TABLE noetl.routing_snapshot (
    execution_id   bigint PRIMARY KEY,
    stream_version bigint NOT NULL CHECK (stream_version > 0),
    event_checksum text NOT NULL,
    rules          text NOT NULL,
    state_format   integer NOT NULL,
    body_sha256    text NOT NULL,
    body           bytea NOT NULL CHECK (octet_length(body) <= 4194304),
    written_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Bodies are packed already.
ALTER TABLE noetl.routing_snapshot ALTER COLUMN body SET STORAGE EXTERNAL;

GRANT SELECT, INSERT, UPDATE, DELETE ON noetl.routing_snapshot TO noetl_api;
