-- With which registry of upcasters the state and the rows of an execution were folded.
--
-- A release before this one does not know the columns, and leaves them as they are when it writes the row: the digest
-- counts only as long as the row stands at the version that it was written with. Rows without one are folded again from
-- the log when their execution moves, and not before.

ALTER TABLE noetl.execution
    ADD COLUMN upcasters text,
    ADD COLUMN upcasters_version bigint;

-- Removes all rows of executions that the same transaction writes anew, since those of other rules need not be among the
-- new ones. Only for an owner that was not deposed, and only the row that it looked at. Projectors delete no rows but
-- through this.
CREATE FUNCTION noetl.remove_projections(
    execution_ids bigint[], projector_epochs bigint[], replaced_versions bigint[], new_versions bigint[])
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    WITH incoming AS (
        SELECT * FROM unnest(execution_ids, projector_epochs, replaced_versions, new_versions)
            AS incoming (execution_id, projector_epoch, replaced_version, new_version)
    ), gone AS (
        DELETE FROM noetl.execution
        WHERE execution_id IN (
            -- In the order of ids, so that two projectors cannot deadlock.
            SELECT stored.execution_id
            FROM noetl.execution AS stored
            JOIN incoming USING (execution_id)
            WHERE stored.stream_version = incoming.replaced_version
              AND stored.projector_epoch <= incoming.projector_epoch
            ORDER BY stored.execution_id
            FOR UPDATE OF stored)
        RETURNING execution_id
    ), commands AS (
        DELETE FROM noetl.command AS old USING gone WHERE old.execution_id = gone.execution_id
    ), loops AS (
        DELETE FROM noetl.loop AS old USING gone WHERE old.execution_id = gone.execution_id
    ), stages AS (
        DELETE FROM noetl.stage AS old USING gone WHERE old.execution_id = gone.execution_id
    ), frames AS (
        DELETE FROM noetl.frame AS old USING gone WHERE old.execution_id = gone.execution_id
    ), objects AS (
        DELETE FROM noetl.business_object AS old USING gone WHERE old.execution_id = gone.execution_id
    )
    -- Barriers that close more than is there from now on; the log names others, and they stay.
    DELETE FROM noetl.checkpoint AS old USING gone JOIN incoming USING (execution_id)
    WHERE old.execution_id = gone.execution_id AND old.epoch > incoming.new_version AND NOT old.told
$$;
REVOKE ALL ON FUNCTION noetl.remove_projections(bigint[], bigint[], bigint[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION noetl.remove_projections(bigint[], bigint[], bigint[], bigint[]) TO noetl_projector;
