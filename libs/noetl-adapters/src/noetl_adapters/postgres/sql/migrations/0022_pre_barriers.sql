-- Barriers: how far the rows of an execution were committed, noted every second while it moves.
--
-- The epoch is the version that the barrier closes: whoever closes the same version writes the same row. A barrier
-- takes the place of the one before it, but for those that the log names.

CREATE TABLE noetl.checkpoint (
    execution_id  bigint NOT NULL,
    shard_id      integer NOT NULL,
    epoch         bigint NOT NULL,
    last_event_id bigint NOT NULL,
    committed_at  timestamptz NOT NULL,
    told          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (execution_id, epoch)
) WITH (fillfactor = 70);

GRANT SELECT, INSERT, UPDATE, DELETE ON noetl.checkpoint TO noetl_projector;
