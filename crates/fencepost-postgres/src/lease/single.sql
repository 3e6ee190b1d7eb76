-- A flight of one operation of class 1. If it concerns nothing but the row of its lock, this statement executes it: a call of
-- `flight` takes three times as long. Its parameters are those of `flight`, and its conditions are about the row alone, because
-- only the row is read again after another transaction has changed it. The settings are those of `use_settings`. Its functions and
-- operators are those of pg_catalog: the session has no other schema in its search_path (see link.rs). A session that a pooler shares
-- may have others; there the settings are never in use, and `flight` executes the operation.
WITH plain AS (
    UPDATE @schema@.locks AS l SET
        token = CASE WHEN ($5)[1] < 5 THEN greatest(l.token + 1, @schema@.micros(clock_timestamp())) ELSE l.token END,
        owner = CASE ($5)[1] WHEN 6 THEN NULL ELSE ($10)[1] END,
        expires_at = clock_timestamp() + CASE ($5)[1] WHEN 5 THEN l.ttl_ms WHEN 6 THEN 0 ELSE ($12)[1] END * interval '1 ms',
        ttl_ms = CASE WHEN ($5)[1] < 5 THEN ($12)[1] ELSE l.ttl_ms END,
        client = CASE WHEN ($5)[1] < 5 THEN $1 ELSE l.client END,
        since = CASE WHEN ($5)[1] < 5 THEN t.at ELSE l.since END,
        chosen = CASE WHEN ($5)[1] < 5 THEN 0 ELSE l.chosen END,
        wants = CASE WHEN ($5)[1] < 5 THEN NULL ELSE l.wants END,
        label = CASE WHEN ($5)[1] < 5 THEN ($13)[1] ELSE l.label END,
        meta = CASE WHEN ($5)[1] < 5 THEN ($14)[1] ELSE l.meta END
    FROM (SELECT clock_timestamp() AS at) AS t
    WHERE l.name = ($7)[1] AND @schema@.can_execute(l, ($5)[1], ($10)[1], ($11)[1], t.at)
        AND current_setting('fencepost.settings', true) = 'used' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
        AND current_setting('transaction_isolation') = 'read committed'
    RETURNING l.token, ($5)[1] < 5 AND l.token <= @schema@.lock_in_token() AS is_late
)
SELECT 1 AS op, CASE ($5)[1] WHEN 5 THEN 2 WHEN 6 THEN 1 ELSE 7 END AS code,
    CASE WHEN p.is_late THEN @schema@.raised_token(($7)[1]) ELSE p.token END AS token,
    0::bigint AS number, NULL::text AS note, NULL::bytea AS bytes
FROM plain AS p
UNION ALL
SELECT f.op, f.code, f.token, f.number, f.note, f.bytes
FROM @schema@.flight($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS f
WHERE NOT EXISTS (SELECT FROM plain)
