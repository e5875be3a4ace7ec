-- Memory rows are locked in ascending id, each in the strongest mode that the transaction needs (design section 5).
-- One SELECT cannot mix modes; one statement per mode would break the order and so allow deadlocks.
-- Rows outside the scope are neither seen nor locked; without a scope (of_tenant NULL) all rows are.

CREATE FUNCTION {schema}.lock_memory_rows(for_update BIGINT[], for_share BIGINT[], of_tenant TEXT, of_user TEXT)
RETURNS VOID LANGUAGE plpgsql AS $body$
DECLARE
    wanted RECORD;
BEGIN
    FOR wanted IN
        SELECT id, bool_or(strong) AS strong
        FROM (SELECT unnest(for_update), TRUE UNION ALL SELECT unnest(for_share), FALSE) AS w (id, strong)
        GROUP BY id ORDER BY id
    LOOP
        IF wanted.strong THEN
            PERFORM FROM {schema}.long_term_memory AS m
            WHERE m.id = wanted.id AND (of_tenant IS NULL OR (m.tenant = of_tenant AND m.user_id = of_user)) FOR UPDATE;
        ELSE
            PERFORM FROM {schema}.long_term_memory AS m
            WHERE m.id = wanted.id AND (of_tenant IS NULL OR (m.tenant = of_tenant AND m.user_id = of_user)) FOR SHARE;
        END IF;
    END LOOP;
END
$body$;
