-- A row of the outbox names events by their versions instead of repeating them; hints are still written out.
-- Rows of an earlier release, which are written out too, are published as before.

ALTER TABLE noetl.outbox
    ADD COLUMN first_version bigint,
    ADD COLUMN last_version bigint,
    ALTER COLUMN subject DROP NOT NULL,
    ALTER COLUMN message_id DROP NOT NULL,
    ALTER COLUMN headers DROP NOT NULL,
    ALTER COLUMN body DROP NOT NULL,
    ADD CONSTRAINT chk_outbox_row_says_what CHECK (
        (first_version IS NULL AND last_version IS NULL
         AND subject IS NOT NULL AND message_id IS NOT NULL AND headers IS NOT NULL AND body IS NOT NULL)
        OR (first_version <= last_version AND body IS NULL)
    );

-- The publisher reads the events that it sends; nobody but api writes them.
GRANT SELECT ON noetl.event TO noetl_publisher;
