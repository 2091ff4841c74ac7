-- Which continuation of the log this server writes. A database that was put back to an earlier state goes on differently
-- than it did before, and messages of what is lost may still be on the bus: they are told apart by this.

ALTER TABLE noetl.installation ADD COLUMN restores integer NOT NULL DEFAULT 0;

-- A restore into another cluster changes the identifier, recovery to a point in time and a promotion change the timeline;
-- what neither shows (a volume put back from a snapshot) is told by `noetl db restored`.
CREATE FUNCTION noetl.log_branch() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('.', log_generation, (SELECT to_hex(system_identifier) FROM pg_control_system()),
                     left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), restores)
    FROM noetl.installation
$$;
