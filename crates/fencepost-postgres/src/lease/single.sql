-- A flight of one operation of class 1. If it concerns nothing but the row of its lock, this statement executes it: a call of
-- `flight` takes three times as long. Its parameters are those of `flight`, and its conditions are about the row alone, because
-- only the row is read again after another transaction has changed it. The settings are those of `use_settings`.
WITH plain AS (
    UPDATE @schema@.locks AS l SET
        token = CASE WHEN ($5)[1] < 5 THEN greatest(l.token + 1, (extract(epoch FROM t.at) * 1000000)::bigint) ELSE l.token END,
        owner = CASE ($5)[1] WHEN 6 THEN NULL ELSE ($10)[1] END,
        expires_at = t.at + CASE ($5)[1] WHEN 5 THEN l.ttl_ms WHEN 6 THEN 0 ELSE ($12)[1] END * interval '1 ms',
        ttl_ms = CASE WHEN ($5)[1] < 5 THEN ($12)[1] ELSE l.ttl_ms END,
        client = CASE WHEN ($5)[1] < 5 THEN $1 ELSE l.client END,
        since = CASE WHEN ($5)[1] < 5 THEN t.at ELSE l.since END,
        chosen = CASE WHEN ($5)[1] < 5 THEN 0 ELSE l.chosen END,
        wants = CASE WHEN ($5)[1] < 5 THEN NULL ELSE l.wants END,
        label = CASE WHEN ($5)[1] < 5 THEN ($13)[1] ELSE l.label END,
        meta = CASE WHEN ($5)[1] < 5 THEN ($14)[1] ELSE l.meta END
    FROM (SELECT clock_timestamp() AS at) AS t
    WHERE l.name = ($7)[1] AND CASE WHEN ($5)[1] < 5 THEN l.is_plain AND (l.owner IS NULL OR l.expires_at <= t.at)
            ELSE (l.is_plain OR ($5)[1] = 5) AND l.owner = ($10)[1] AND l.token = ($11)[1] AND l.expires_at > t.at END
        AND current_setting('fencepost.settings', true) = 'used' AND current_setting('synchronous_commit') IN ('on', 'remote_apply')
        AND current_setting('transaction_isolation') = 'read committed'
    -- If it may have waited for the row: a transaction of another program that was rolled back may have had a larger token.
    RETURNING l.token, ($5)[1] < 5 AND clock_timestamp() > t.at + interval '100 us' AS is_late
)
SELECT 1 AS op, CASE ($5)[1] WHEN 5 THEN 2 WHEN 6 THEN 1 ELSE 7 END AS code,
    CASE WHEN p.is_late THEN (@schema@.raised_tokens(ARRAY[1], $5, $7))[1] ELSE p.token END AS token,
    0::bigint AS number, NULL::text AS note, NULL::bytea AS bytes
FROM plain AS p
UNION ALL
SELECT f.op, f.code, f.token, f.number, f.note, f.bytes
FROM @schema@.flight($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) AS f
WHERE NOT EXISTS (SELECT FROM plain)
