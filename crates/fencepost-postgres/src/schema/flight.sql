-- Executes the operations of one flight, in one call and one transaction. Kinds: 1 acquire or wait, 2 acquire or return,
-- 3 check, 4 leave, 5 renew, 6 release, 7 read a cell, 8 write a cell, 9 break. `op_names` has the names of an operation, one
-- per line, `op_modes` their modes, separated by commas. `classes` says which operations can be executed together because
-- no other operation of the flight depends on their order (see encode.rs). Returns a row for each operation (its number, from 1),
-- and for each push to this client (number 0); pushes to others are notifications.
--
-- The rows of `locks` are locked in the order of the names, so that flights do not deadlock; if `lock_wait` (in ms) is not
-- positive, those that another transaction has locked are skipped, and their operations answered with code 13.
CREATE FUNCTION flight(me bigint, lock_wait integer, lock_names text[], new_names text[], kinds integer[], classes integer[],
    op_names text[], op_modes text[], anys boolean[], owners uuid[], tokens bigint[], ttls bigint[],
    labels text[], metas text[], contents bytea[])
RETURNS SETOF reply LANGUAGE plpgsql SET search_path = @schema@, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
    ops integer := cardinality(kinds);
    replies reply[];
    done boolean[];
    locked text[];
    wanted text[];
    modes integer[];
    r reply;
    o outcome;
    push text;
    pushes text[];
    unsettled text[];
    is_durable boolean := false;
BEGIN
    PERFORM use_settings(me < 0, lock_wait);
    IF ops = 1 AND lock_wait > 0 AND kinds[1] = 6 AND classes[1] = 1 THEN
        push := hand_over(op_names[1], owners[1], tokens[1], me);
        IF push IS NOT NULL THEN
            RETURN NEXT (1, 1, NULL, NULL, NULL, NULL)::reply;
            RETURN QUERY SELECT 0, 20, NULL::bigint, NULL::bigint, p.push, NULL::bytea
                FROM unnest(deliver(ARRAY[push], me)) AS p(push);
            RETURN;
        END IF;
    ELSIF ops > 1 AND lock_wait > 0 AND classes <@ ARRAY[1, 5] THEN
        BEGIN
            replies := ARRAY(SELECT p FROM plain_together(kinds, classes, op_names, owners, tokens, ttls, labels, metas, NULL, me,
                at) AS p);
            IF cardinality(replies) = ops THEN
                RETURN QUERY SELECT * FROM unnest(replies);
                RETURN;
            END IF;
            -- Unlocks the rows again: those of the other operations may precede them.
            RAISE SQLSTATE 'FP001';
        EXCEPTION WHEN SQLSTATE 'FP001' THEN
            NULL;
        END;
    END IF;

    IF 9 = ANY (kinds) THEN
        -- A break concerns all names of its grant.
        FOR i IN 1..ops LOOP
            CONTINUE WHEN kinds[i] <> 9;
            op_names[i] := grant_names(op_names[i], tokens[i]);
            lock_names := lock_names || string_to_array(op_names[i], E'\n');
        END LOOP;
    END IF;
    done := array_fill(false, ARRAY[ops]);
    locked := lock_rows(lock_names, new_names, lock_wait <= 0);
    at := clock_timestamp();
    FOR r IN
        SELECT * FROM plain_together(kinds, classes, op_names, owners, tokens, ttls, labels, metas, locked, me, at)
            -- A single one was tried by the statement that has called this function, unless its row is new.
            WHERE classes && ARRAY[1, 5] AND (ops > 1 OR kinds[1] < 5)
        UNION ALL
        SELECT * FROM renew_together(kinds, classes, op_names, owners, tokens, locked, at) WHERE 5 = ANY (kinds)
        UNION ALL
        SELECT * FROM share_together(classes, op_names, owners, ttls, labels, metas, locked, me, at)
            WHERE classes && ARRAY[2, 6]
        UNION ALL
        SELECT * FROM wait_together(kinds, classes, op_names, op_modes, owners, ttls, labels, metas, locked, me, at)
            WHERE classes && ARRAY[4, 5, 6]
    LOOP
        done[r.op] := true;
        is_durable := is_durable OR r.code NOT IN (0, 9);
        RETURN NEXT r;
    END LOOP;

    FOR i IN 1..ops LOOP
        CONTINUE WHEN done[i];
        o := (13, NULL, NULL, NULL, NULL, NULL)::outcome;
        wanted := string_to_array(op_names[i], E'\n');
        -- What has no row is not held.
        IF locked IS NULL OR locked @> wanted OR kinds[i] = 7 OR kinds[i] > 4 AND NOT EXISTS (
            SELECT FROM locks AS l WHERE l.name = ANY (wanted) AND l.name <> ALL (locked)) THEN
            modes := string_to_array(op_modes[i], ',')::integer[];
            o := CASE kinds[i]
                WHEN 4 THEN leave(wanted, anys[i], owners[i], ttls[i], me, at)
                WHEN 5 THEN renew(wanted, owners[i], tokens[i], ttls[i], me, at)
                -- A single one has been tried to be handed over.
                WHEN 6 THEN release(wanted, CASE WHEN ops > 1 THEN modes END, owners[i], tokens[i], me, at)
                WHEN 7 THEN read_cell(wanted[1], at)
                WHEN 8 THEN write_cell(wanted[1], owners[i], tokens[i], modes[1], ttls[i], contents[i], at)
                WHEN 9 THEN break_lock(wanted, tokens[i], me, at)
                ELSE attempt(kinds[i], wanted, modes, anys[i], owners[i], ttls[i], labels[i], metas[i], me, at) END;
            is_durable := is_durable OR o.code NOT IN (0, 3, 5, 9, 10, 12);
            -- What has no row, or only reads, has locked nothing. What has waiters, or a new holder, is not settled yet.
            IF cardinality(o.pushes) > 0 THEN
                pushes := pushes || o.pushes;
            ELSIF kinds[i] <> 7 AND o.code <> 9 AND (kinds[i] < 5 OR o.code <> 3) THEN
                unsettled := unsettled || wanted;
            END IF;
        ELSIF kinds[i] IN (1, 3) AND lock_wait < 0 THEN
            o.number := join_unlocked(kinds[i], wanted, string_to_array(op_modes[i], ',')::integer[], anys[i], owners[i],
                ttls[i], labels[i], metas[i], me, at);
        END IF;
        RETURN NEXT (i, o.code, o.token, o.number, o.note, o.bytes)::reply;
    END LOOP;

    IF unsettled IS NOT NULL THEN
        PERFORM settle(unsettled, at);
    END IF;
    IF pushes IS NOT NULL THEN
        RETURN QUERY SELECT 0, 20, NULL::bigint, NULL::bigint, p.push, NULL::bytea FROM unnest(deliver(pushes, me)) AS p(push);
    ELSIF NOT is_durable THEN
        -- A crash of the server may lose tickets: their owners join again. The row is not locked while the disk syncs.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
END $$;

-- Prepares the transaction of a flight: grants are durable, statements wait briefly for rows, and none reads a whole table or
-- queue. If the session is shared with other programs, by a pooler, the settings last until the end of the transaction.
CREATE FUNCTION use_settings(is_shared boolean, lock_wait integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = 'fencepost needs transactions with isolation level READ COMMITTED';
    END IF;
    IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    IF current_setting('fencepost.settings', true) IS DISTINCT FROM 'used' THEN
        PERFORM set_config(s.name, s.value, is_shared) FROM (VALUES ('lock_timeout', '250ms'),
            ('plan_cache_mode', 'force_generic_plan'), ('jit', 'off'), ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
            ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('fencepost.settings', 'used')) AS s(name, value);
    END IF;
    IF lock_wait > 250 THEN
        PERFORM set_config('lock_timeout', lock_wait::text, true);
    END IF;
END $$;

-- The code of the reply to an operation of class 1 that was executed.
CREATE FUNCTION plain_code(kind integer) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE kind WHEN 5 THEN 2 WHEN 6 THEN 1 ELSE 7 END
$$;

-- Whether an operation of class 1 can be executed, and concerns nothing but this row. It concerns the queue if the lease is longer
-- than its ttl, because the clock was set back: the tickets are shortened, too (see `clamp`).
CREATE FUNCTION can_execute(l locks, kind integer, who uuid, held bigint, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN kind < 5 THEN l.is_plain AND (l.owner IS NULL OR l.expires_at <= at)
        ELSE (l.is_plain OR kind = 5) AND l.owner = who AND l.token = held AND l.expires_at > at
            AND l.expires_at <= at + l.ttl_ms * interval '1 ms' END
$$;

-- Operations of class 1: renewals of exclusive locks, and acquires and releases of those of which nothing else is stored.
-- Returns those that were executed, and the tokens. Rows that are not locked yet are locked by the update, in the order of their
-- names. After another transaction has changed a row, it reads only that row again, and the clock: no renewal shortens a lease.
CREATE FUNCTION plain_together(kinds integer[], classes integer[], op_names text[], owners uuid[], tokens bigint[],
    ttls bigint[], labels text[], metas text[], locked text[], me bigint, at timestamptz)
RETURNS SETOF reply LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH done AS (
        UPDATE locks AS l SET
            token = CASE WHEN o.kind < 5 THEN greatest(l.token + 1, micros(clock_timestamp())) ELSE l.token END,
            owner = CASE o.kind WHEN 6 THEN NULL ELSE o.owner END,
            expires_at = clock_timestamp()
                + CASE o.kind WHEN 5 THEN l.ttl_ms WHEN 6 THEN 0 ELSE o.ttl END * interval '1 ms',
            ttl_ms = CASE WHEN o.kind < 5 THEN o.ttl ELSE l.ttl_ms END,
            client = CASE WHEN o.kind < 5 THEN me ELSE l.client END,
            since = CASE WHEN o.kind < 5 THEN at ELSE l.since END,
            chosen = CASE WHEN o.kind < 5 THEN 0 ELSE l.chosen END,
            wants = CASE WHEN o.kind < 5 THEN NULL ELSE l.wants END,
            label = CASE WHEN o.kind < 5 THEN o.label ELSE l.label END,
            meta = CASE WHEN o.kind < 5 THEN o.meta ELSE l.meta END
        FROM (
            SELECT a.* FROM unnest(kinds, classes, op_names, owners, tokens, ttls, labels, metas) WITH ORDINALITY
                AS a(kind, class, name, owner, token, ttl, label, meta, op)
            WHERE a.class & 1 > 0 AND (locked IS NULL OR a.name = ANY (locked)) ORDER BY a.name COLLATE "C"
        ) AS o
        WHERE l.name = o.name AND can_execute(l, o.kind, o.owner, o.token, at)
        RETURNING o.op, o.kind, l.token, o.kind < 5 AND l.token <= lock_in_token() AS is_late
    )
    SELECT d.op::integer, plain_code(d.kind), CASE WHEN d.is_late THEN raised_token(op_names[d.op]) ELSE d.token END, 0::bigint,
        NULL::text, NULL::bytea FROM done AS d;
END $$;

-- Raises the token of an acquire above those that `lock_in` has returned, and returns it. They are read after the row was written: the
-- update may have waited for a transaction that was rolled back.
CREATE FUNCTION raised_token(lock_name text) RETURNS bigint LANGUAGE plpgsql SET search_path = @schema@, pg_temp AS $$
DECLARE
    raised bigint;
BEGIN
    UPDATE locks AS l SET token = lock_in_token() + 1 WHERE l.name = lock_name RETURNING l.token INTO raised;
    RETURN raised;
END $$;

-- Renewals of locks that are not exclusive.
CREATE FUNCTION renew_together(kinds integer[], classes integer[], op_names text[], owners uuid[], tokens bigint[],
    locked text[], at timestamptz)
RETURNS SETOF reply LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH done AS (
        UPDATE holders AS h SET expires_at = at + h.ttl_ms * interval '1 ms'
        FROM unnest(kinds, classes, op_names, owners, tokens) WITH ORDINALITY AS o(kind, class, name, owner, token, op)
        WHERE o.class & 1 > 0 AND o.kind = 5 AND h.name = o.name AND h.owner = o.owner AND h.token = o.token
            AND h.expires_at > at AND (locked IS NULL OR o.name = ANY (locked))
        RETURNING o.op
    ) SELECT d.op::integer, 2, NULL::bigint, NULL::bigint, NULL::text, NULL::bytea FROM done AS d;
END $$;

-- Acquires of class 2: shared locks that are free, or shared, and have no queue.
CREATE FUNCTION share_together(classes integer[], op_names text[], owners uuid[], ttls bigint[], labels text[],
    metas text[], locked text[], me bigint, at timestamptz)
RETURNS SETOF reply LANGUAGE plpgsql AS $$
DECLARE
    base bigint := greatest(micros(at) - 1, lock_in_token());
BEGIN
    RETURN QUERY WITH o AS (
        SELECT a.* FROM unnest(classes, op_names, owners, ttls, labels, metas) WITH ORDINALITY
            AS a(class, name, owner, ttl, label, meta, op)
        WHERE a.class & 2 > 0 AND (locked IS NULL OR a.name = ANY (locked))
            AND NOT EXISTS (SELECT FROM holders AS h WHERE h.name = a.name AND h.owner = a.owner)
            AND NOT EXISTS (SELECT FROM tombstones AS d WHERE d.owner = a.owner)
    ), free AS (
        SELECT l.name, l.token FROM locks AS l WHERE l.name IN (SELECT o.name FROM o)
            AND (l.owner IS NULL OR l.expires_at <= at) AND NOT EXISTS (SELECT FROM tickets AS t WHERE t.name = l.name)
            AND coalesce((SELECT h.mode FROM holders AS h WHERE h.name = l.name AND h.expires_at > at LIMIT 1), -1) = -1
    ), granted AS (
        INSERT INTO holders AS h (name, owner, token, mode, expires_at, ttl_ms, client, since, chosen, label, meta)
        SELECT o.name, o.owner, greatest(f.token, base) + row_number() OVER (PARTITION BY o.name ORDER BY o.op), -1,
            at + o.ttl * interval '1 ms', o.ttl, me, at, 0, o.label, o.meta
        FROM o JOIN free AS f ON f.name = o.name RETURNING h.name, h.owner, h.token
    ), raised AS (
        UPDATE locks AS l SET token = g.token, owner = NULL, expires_at = at, is_plain = false
        FROM (SELECT n.name, max(n.token) AS token FROM granted AS n GROUP BY n.name) AS g
        WHERE l.name = g.name AND l.token < g.token AND (l.owner IS NULL OR l.expires_at <= at) RETURNING l.name
    )
    SELECT o.op::integer, 7, CASE WHEN r.name IS NULL THEN changed() ELSE g.token END, 0::bigint, NULL::text, NULL::bytea
    FROM granted AS g JOIN o ON o.owner = g.owner AND o.name = g.name LEFT JOIN raised AS r ON r.name = g.name;
END $$;

-- Acquires and checks of class 4: those of locks that another owner holds exclusively. They wait.
CREATE FUNCTION wait_together(kinds integer[], classes integer[], op_names text[], op_modes text[], owners uuid[], ttls bigint[],
    labels text[], metas text[], locked text[], me bigint, at timestamptz)
RETURNS SETOF reply LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY WITH o AS (
        SELECT a.*, l.expires_at FROM unnest(kinds, classes, op_names, op_modes, owners, ttls, labels, metas) WITH ORDINALITY
            AS a(kind, class, name, mode, owner, ttl, label, meta, op)
        JOIN locks AS l ON l.name = a.name
        WHERE a.class & 4 > 0 AND (locked IS NULL OR a.name = ANY (locked)) AND l.owner <> a.owner AND l.expires_at > at
    ), extended AS (
        -- Not by its name as well: the planner would take the index that begins with it, and read the whole queue.
        UPDATE tickets AS t SET expires_at = at + o.ttl * interval '1 ms', client = me FROM o
        WHERE t.owner = o.owner RETURNING t.owner, t.seq
    ), joined AS (
        INSERT INTO tickets AS t (name, seq, owner, mode, any_of, expires_at, ttl_ms, client, since, label, meta)
        SELECT n.name, nextval('positions'), n.owner, n.mode::integer, false, at + n.ttl * interval '1 ms', n.ttl, me, at,
            n.label, n.meta
        FROM (
            SELECT o.* FROM o WHERE o.kind = 1 AND NOT EXISTS (SELECT FROM tickets AS t WHERE t.owner = o.owner)
                AND NOT EXISTS (SELECT FROM tombstones AS d WHERE d.owner = o.owner) ORDER BY o.op
        ) AS n RETURNING t.owner, t.seq
    ), marked AS (
        UPDATE locks AS l SET is_plain = false WHERE l.name IN (SELECT o.name FROM o WHERE o.kind <> 2) AND l.is_plain
    ), placed AS (
        SELECT p.owner, p.seq, p.is_new FROM (
            SELECT e.owner, e.seq, false AS is_new FROM extended AS e UNION ALL SELECT j.owner, j.seq, true FROM joined AS j) AS p
    )
    SELECT o.op::integer, 0, NULL::bigint, NULL::bigint, NULL::text, NULL::bytea FROM o
    WHERE o.kind = 2 AND NOT EXISTS (SELECT FROM extended AS e WHERE e.owner = o.owner)
    UNION ALL
    SELECT o.op::integer, 9, NULL, greatest(1, ceil(extract(epoch FROM greatest(o.expires_at, (
            SELECT max(q.expires_at) FROM (SELECT f.expires_at FROM tickets AS f WHERE f.name = o.name AND f.seq < p.seq
                ORDER BY f.seq LIMIT 16) AS q),
            -- This statement does not see those that it has added.
            CASE WHEN p.is_new AND row_number() OVER (PARTITION BY o.name, p.is_new ORDER BY p.seq) > 1
                THEN at + o.ttl * interval '1 ms' END) - at) * 1000))::bigint, NULL, NULL
    FROM o JOIN placed AS p ON p.owner = o.owner;
END $$;

-- Locks the rows of these names in their order, and creates those of `new_names` that do not exist. Returns the locked names
-- if some may be skipped, otherwise NULL.
CREATE FUNCTION lock_rows(lock_names text[], new_names text[], skip boolean) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    locked text[];
    existing bigint;
    present bigint;
    is_late boolean;
BEGIN
    LOOP
        IF skip THEN
            locked := ARRAY(SELECT l.name FROM locks AS l WHERE l.name = ANY (lock_names) ORDER BY l.name
                FOR NO KEY UPDATE SKIP LOCKED);
        END IF;
        SELECT count(*), bool_or(r.expires_at > clock_timestamp() + r.ttl_ms * interval '1 ms') INTO existing, is_late FROM (
            SELECT l.expires_at, CASE WHEN l.owner IS NULL THEN 0 ELSE l.ttl_ms END AS ttl_ms FROM locks AS l
            WHERE l.name = ANY (coalesce(locked, lock_names)) ORDER BY l.name FOR NO KEY UPDATE
        ) AS r;
        EXIT WHEN existing = cardinality(lock_names);
        IF NOT create_rows(new_names, skip) THEN
            EXIT WHEN skip;
            -- A row that another transaction has created meanwhile is not locked yet. They are counted by a statement of their
            -- own: its snapshot has to be later than that in which create_rows finds no row missing.
            SELECT count(*) INTO present FROM locks AS l WHERE l.name = ANY (lock_names);
            EXIT WHEN present = existing;
        END IF;
    END LOOP;
    -- A lease is longer than its ttl: the server's clock was set back.
    IF is_late THEN
        PERFORM clamp(coalesce(locked, lock_names), clock_timestamp());
    END IF;
    RETURN locked;
END $$;

-- Creates the rows of names that have none; returns whether there were any. The tokens of a deleted row with the same name are
-- not above the floor, which is read after the new row exists.
CREATE FUNCTION create_rows(new_names text[], skip boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    missing text[] := ARRAY(SELECT n.name FROM unnest(new_names) AS n(name)
        WHERE NOT EXISTS (SELECT FROM locks AS l WHERE l.name = n.name) ORDER BY n.name COLLATE "C");
    one text;
BEGIN
    IF cardinality(missing) = 0 THEN
        RETURN false;
    END IF;
    IF skip THEN
        -- Each of them may be locked.
        PERFORM set_config('lock_timeout', '1ms', true);
        FOREACH one IN ARRAY missing LOOP
            BEGIN
                INSERT INTO locks (name, token, expires_at) VALUES (one, 0, clock_timestamp()) ON CONFLICT DO NOTHING;
            EXCEPTION WHEN lock_not_available THEN
                -- A transaction that has not ended yet has created it.
                missing := array_remove(missing, one);
            END;
        END LOOP;
        PERFORM set_config('lock_timeout', '250ms', true);
    ELSE
        INSERT INTO locks (name, token, expires_at) SELECT m.name, 0, clock_timestamp() FROM unnest(missing) AS m(name)
            ON CONFLICT DO NOTHING;
    END IF;
    UPDATE locks AS l SET token = s.floor FROM storage AS s WHERE l.name = ANY (missing) AND l.token = 0;
    RETURN cardinality(missing) > 0;
END $$;

-- Sends the pushes to other clients when the transaction commits, and returns those to this one.
CREATE FUNCTION deliver(pushes text[], me bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    own text[] := '{}';
    one text;
    receiver bigint;
    push text;
BEGIN
    FOREACH one IN ARRAY pushes LOOP
        receiver := split_part(one, ' ', 1);
        push := substr(one, strpos(one, ' ') + 1);
        IF receiver = me THEN
            own := own || push;
        ELSIF receiver >= 0 THEN
            -- A notification has fewer than 8000 bytes. A push with many names is replaced by a request to check.
            PERFORM pg_notify('fencepost_' || receiver,
                CASE WHEN octet_length(push) < 7900 THEN push ELSE 'C ' || split_part(push, ' ', 2) END);
        END IF;
    END LOOP;
    RETURN own;
END $$;

-- Joins the queue of a lock whose row a transaction of another program has locked for longer than a flight waits. The lock is
-- not free then. A release may miss the ticket, so that it is checked again soon. Returns NULL if the owner does not wait, or not
-- any more: a flight that was granting the lock to it may have had the row locked.
CREATE FUNCTION join_unlocked(kind integer, wanted text[], modes integer[], any_of boolean, who uuid, length_ms bigint,
    new_label text, new_meta text, me bigint, at timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tickets AS t SET expires_at = at + length_ms * interval '1 ms', client = me WHERE t.owner = who;
    IF NOT FOUND THEN
        IF kind = 3 OR EXISTS (SELECT FROM tombstones AS d WHERE d.owner = who) OR (held_by(who, wanted, at)).count > 0 THEN
            RETURN NULL;
        END IF;
        PERFORM join_queue(wanted, modes, any_of, who, length_ms, new_label, new_meta, me, at);
    END IF;
    RETURN 200;
END $$;

-- Removes expired rows of up to `sweep_limit` names after `sweep_after`, and the names that are no longer used. Returns where
-- the next call continues, and how many names were removed. The row of `storage` is locked, so that one transaction at a time
-- sweeps; others return at once.
CREATE FUNCTION sweep(sweep_limit integer, sweep_after text, OUT next text, OUT removed bigint) LANGUAGE plpgsql
SET search_path = @schema@, pg_temp AS $$
DECLARE
    at timestamptz := clock_timestamp();
    candidates text[];
    swept text[];
    highest bigint;
BEGIN
    PERFORM use_settings(true, 250);
    next := sweep_after;
    removed := 0;
    PERFORM FROM storage AS s FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    candidates := ARRAY(SELECT l.name FROM locks AS l WHERE l.name > sweep_after ORDER BY l.name LIMIT sweep_limit);
    next := CASE WHEN cardinality(candidates) < sweep_limit THEN '' ELSE candidates[sweep_limit] END;
    swept := ARRAY(SELECT l.name FROM locks AS l WHERE l.name = ANY (candidates)
        AND (l.expires_at < at - interval '1 s' OR NOT l.is_plain AND (
            EXISTS (SELECT FROM tickets AS t WHERE t.name = l.name AND t.expires_at <= at)
            OR EXISTS (SELECT FROM holders AS h WHERE h.name = l.name AND h.expires_at <= at)))
        ORDER BY l.name FOR NO KEY UPDATE SKIP LOCKED);
    at := clock_timestamp();
    DELETE FROM tombstones AS d WHERE d.owner IN (
        SELECT e.owner FROM tombstones AS e WHERE e.expires_at <= at ORDER BY e.expires_at LIMIT sweep_limit);
    IF cardinality(swept) = 0 THEN
        RETURN;
    END IF;
    DELETE FROM tickets AS t WHERE t.name = ANY (swept) AND t.expires_at <= at;
    DELETE FROM holders AS h WHERE h.name = ANY (swept) AND h.expires_at <= at;
    UPDATE locks AS l SET owner = NULL
        WHERE l.name = ANY (swept) AND l.owner IS NOT NULL AND l.expires_at <= at;
    DELETE FROM cells AS c WHERE c.name = ANY (swept) AND (c.keep = 1 AND c.expires_at <= at
        OR c.keep = 0 AND NOT EXISTS (SELECT FROM locks AS l WHERE l.name = c.name AND l.token = c.token AND l.owner IS NOT NULL)
            AND NOT EXISTS (SELECT FROM holders AS h WHERE h.name = c.name AND h.token = c.token));
    PERFORM deliver(serve(swept, 0, at), 0);
    PERFORM settle(swept, at);
    WITH gone AS (
        DELETE FROM locks AS l WHERE l.name = ANY (swept) AND l.owner IS NULL AND l.is_plain
            AND l.expires_at < at - interval '1 s' AND NOT EXISTS (SELECT FROM cells AS c WHERE c.name = l.name)
        RETURNING l.token
    ) SELECT count(*), max(g.token) INTO removed, highest FROM gone AS g;
    UPDATE storage AS s SET floor = highest WHERE s.floor < highest;
END $$;

-- Stores a token of `lock_in` outside of its transaction. One session at a time compares and sets the value, so that it only rises;
-- the exception ends the advisory lock, and does not undo the value.
CREATE FUNCTION keep_token(granted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('fencepost lock_in ' || current_schema(), 0));
    IF granted > coalesce(lock_in_token(), 0) THEN
        PERFORM setval('lock_in_tokens', granted);
    END IF;
    RAISE SQLSTATE 'FP001';
EXCEPTION WHEN SQLSTATE 'FP001' THEN
    NULL;
END $$;

-- For the users' own transactions: holds the lock until the end of the transaction and returns its token, or NULL if the lock
-- could not be acquired within `wait_ms`, or never could, because its holder waits for this transaction.
CREATE FUNCTION lock_in(name text, wait_ms integer DEFAULT 0) RETURNS bigint LANGUAGE plpgsql
SET search_path = @schema@, pg_temp SET lock_timeout = 0 AS $$
#variable_conflict use_variable
DECLARE
    started timestamptz := clock_timestamp();
    at timestamptz;
    remaining bigint;
    granted bigint;
    held text := coalesce(current_setting('fencepost.held', true), '');
    entry text := format(E'\n%s/%s\n', current_schema(), name);
BEGIN
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 OR name ~ '[[:cntrl:]]' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the name of a lock has 1 to 512 bytes and no control characters';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE feature_not_supported USING MESSAGE = 'fencepost needs transactions with isolation level READ COMMITTED';
    END IF;
    LOOP
        remaining := greatest(0, wait_ms - floor(extract(epoch FROM clock_timestamp() - started) * 1000));
        PERFORM set_config('lock_timeout', greatest(1, remaining)::text, true);
        BEGIN
            PERFORM lock_rows(ARRAY[name], ARRAY[name], false);
            at := clock_timestamp();
            -- The waiters of a lock that this transaction has already wait for it.
            IF admits(name, 0, at)
                AND (strpos(held, entry) > 0 OR NOT has_waiter_before(name, 9223372036854775807, 0, at)) THEN
                granted := last_token(ARRAY[name], at) + 1;
                -- All names wait for each other here, for a moment: a call that does not wait for its lock does.
                PERFORM set_config('lock_timeout', greatest(1000, remaining)::text, true);
                PERFORM keep_token(granted);
                UPDATE locks AS l SET token = granted, owner = NULL, expires_at = at WHERE l.name = lock_in.name;
                -- Delivered at the commit, when the lock is free again.
                PERFORM pg_notify('fencepost_free', current_schema() || E'\x1e' || name);
                PERFORM set_config('fencepost.held', held || entry, true);
                RETURN granted;
            END IF;
            -- Unlocks the row again.
            RAISE SQLSTATE 'FP001';
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                RETURN NULL;
            WHEN SQLSTATE 'FP001' THEN
                NULL;
        END;
        IF remaining = 0 THEN
            RETURN NULL;
        END IF;
        PERFORM pg_sleep(least(remaining, 20) / 1000.0);
    END LOOP;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA @schema@ FROM PUBLIC;
