-- The rules of one lock. The caller holds the row lock of every name that it passes, and passes the server's time, read after
-- that, as `at`.

-- Whether a push to this client arrives. The connection on which a client listens holds an advisory lock with the client's
-- id; a client that cannot listen has a negative id, and polls.
CREATE FUNCTION reachable(client_id bigint, me bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF client_id = me OR client_id < 0 OR NOT pg_try_advisory_lock_shared(client_id) THEN
        RETURN true;
    END IF;
    -- At once: until the end of a long transaction it would keep the client from listening again.
    PERFORM pg_advisory_unlock_shared(client_id);
    RETURN false;
END $$;

-- Whether another holder in this mode is compatible with the present ones. A lock without a row cannot be granted.
CREATE FUNCTION admits(lock_name text, wanted integer, at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    present integer;
    live bigint;
BEGIN
    PERFORM FROM locks AS l WHERE l.name = lock_name AND (l.owner IS NULL OR l.expires_at <= at);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT min(h.mode), count(*) INTO present, live FROM (
        SELECT f.mode FROM holders AS f WHERE f.name = lock_name AND f.expires_at > at LIMIT greatest(wanted, 1)
    ) AS h;
    RETURN live = 0 OR (present = wanted AND (wanted < 0 OR live < wanted));
END $$;

-- Whether a live waiter that can be reached is ahead of this position.
CREATE FUNCTION has_waiter_before(lock_name text, my_seq bigint, me bigint, at timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    ahead bigint;
    unreachable bigint[] := '{}';
BEGIN
    FOR ahead IN
        SELECT t.client FROM tickets AS t WHERE t.name = lock_name AND t.seq < my_seq AND t.expires_at > at ORDER BY t.seq
    LOOP
        CONTINUE WHEN ahead = ANY (unreachable);
        IF reachable(ahead, me) THEN
            RETURN true;
        END IF;
        unreachable := unreachable || ahead;
    END LOOP;
    RETURN false;
END $$;

-- A grant whose conditions are not true of the row that is written, although its row lock is held: nothing may be granted.
CREATE FUNCTION changed() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE serialization_failure USING MESSAGE = 'the row of a lock was changed by a transaction that had not locked it';
END $$;

-- Grants one name.
CREATE FUNCTION put_holder(lock_name text, wanted integer, who uuid, new_token bigint, length_ms bigint, by_client bigint,
    choice integer, all_wants text, new_label text, new_meta text, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ends timestamptz := at + length_ms * interval '1 ms';
BEGIN
    IF wanted = 0 THEN
        UPDATE locks AS l SET token = new_token, owner = who, expires_at = ends, ttl_ms = length_ms, client = by_client,
            since = at, chosen = choice, wants = all_wants, label = new_label, meta = new_meta
            WHERE l.name = lock_name AND l.token < new_token AND (l.owner IS NULL OR l.owner = who OR l.expires_at <= at);
        IF NOT FOUND THEN
            PERFORM changed();
        END IF;
        RETURN;
    END IF;
    UPDATE locks AS l SET token = new_token, owner = NULL, expires_at = at, is_plain = false
        WHERE l.name = lock_name AND l.token < new_token AND (l.owner IS NULL OR l.expires_at <= at);
    IF NOT FOUND THEN
        PERFORM changed();
    END IF;
    INSERT INTO holders AS h (name, owner, token, mode, expires_at, ttl_ms, client, since, chosen, wants, label, meta)
        VALUES (lock_name, who, new_token, wanted, ends, length_ms, by_client, at, choice, all_wants, new_label, new_meta)
        ON CONFLICT (name, owner) DO UPDATE SET token = new_token, mode = wanted, expires_at = ends, ttl_ms = length_ms,
            client = by_client, since = at, chosen = choice, wants = all_wants, label = new_label, meta = new_meta;
END $$;

-- Removes a holder whose lease has not ended; `held` of any token if none is given. Returns whether there was one.
CREATE FUNCTION drop_holder(lock_name text, who uuid, held bigint, at timestamptz) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    dropped bigint;
BEGIN
    UPDATE locks AS l SET owner = NULL, expires_at = at
        WHERE l.name = lock_name AND l.owner = who AND l.token = coalesce(held, l.token) AND l.expires_at > at
        RETURNING l.token INTO dropped;
    IF NOT FOUND THEN
        DELETE FROM holders AS h WHERE h.name = lock_name AND h.owner = who AND h.token = coalesce(held, h.token)
            AND h.expires_at > at RETURNING h.token INTO dropped;
    END IF;
    DELETE FROM cells AS c WHERE c.name = lock_name AND c.keep = 0 AND c.token = dropped;
    RETURN dropped IS NOT NULL;
END $$;

-- A time in µs, which tokens begin with.
CREATE FUNCTION micros(at timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT (date_part('epoch', at) * 1000000)::bigint
$$;

-- The largest token that `lock_in` has returned; NULL if there is none. If its transaction was rolled back, no row has that token,
-- but it may have been used: every grant reads this with the row locked, and is above.
CREATE FUNCTION lock_in_token() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_catalog.pg_sequence_last_value($name$@schema@.lock_in_tokens$name$)
$$;

-- The largest token that must not be granted again for any of these names: what was granted before is in their rows or was
-- returned by `lock_in`, and the server's time, in µs, is above what was granted before a restore.
CREATE FUNCTION last_token(lock_names text[], at timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    largest bigint;
BEGIN
    SELECT max(l.token) INTO largest FROM locks AS l WHERE l.name = ANY (lock_names);
    RETURN greatest(largest, micros(at) - 1, lock_in_token());
END $$;

-- Locks the other rows of a ticket for several names, unless another transaction has locked one: waiting for it could be a
-- deadlock. Returns which of the names is granted, from 0, or 0 for all of them; -1 if it must wait, -2 if that is not known.
CREATE FUNCTION grantable(t tickets, wanted text[], modes integer[], me bigint, at timestamptz) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    rows_locked text[] := ARRAY(SELECT l.name FROM locks AS l WHERE l.name = ANY (wanted) ORDER BY l.name
        FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(rows_locked) < cardinality(wanted) THEN
        RETURN -2;
    ELSIF t.any_of THEN
        RETURN array_position(wanted, t.name) - 1;
    END IF;
    FOR i IN 1..cardinality(wanted) LOOP
        IF NOT admits(wanted[i], modes[i], at) OR has_waiter_before(wanted[i], t.seq, me, at) THEN
            RETURN -1;
        END IF;
    END LOOP;
    RETURN 0;
END $$;

-- Grants these locks to their first waiters, and returns the pushes (see push.rs). A waiter for several names is granted its
-- locks if no other transaction works on one of them; otherwise the lock is offered to it, and its own check locks all rows.
CREATE FUNCTION serve(lock_names text[], me bigint, at timestamptz) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    pushes text[] := '{}';
    t tickets%ROWTYPE;
    seen bigint := -1;
    unreachable bigint[] := '{}';
    new_token bigint;
    choice integer;
    wanted text[];
    modes integer[];
BEGIN
    WHILE cardinality(lock_names) > 0 LOOP
        SELECT * INTO t FROM tickets AS q WHERE q.name = lock_names[1] AND q.seq > seen AND q.expires_at > at
            AND q.client <> ALL (unreachable) ORDER BY q.seq LIMIT 1;
        IF FOUND THEN
            seen := t.seq;
            IF NOT reachable(t.client, me) THEN
                unreachable := unreachable || t.client;
                CONTINUE;
            END IF;
        END IF;
        IF t.seq IS NULL OR NOT admits(t.name, t.mode, at) THEN
            lock_names := lock_names[2:];
            seen := -1;
            CONTINUE;
        END IF;
        choice := 0;
        IF t.wants IS NULL THEN
            wanted := ARRAY[t.name];
            modes := ARRAY[t.mode];
        ELSE
            wanted := ARRAY(SELECT substr(w, strpos(w, ' ') + 1) FROM unnest(string_to_array(t.wants, E'\n')) AS w);
            modes := ARRAY(SELECT split_part(w, ' ', 1)::integer FROM unnest(string_to_array(t.wants, E'\n')) AS w);
            choice := grantable(t, wanted, modes, me, at);
        END IF;
        -- No call may hold the rows for long: the check of the next waiter continues.
        IF choice = -2 OR cardinality(pushes) >= 256 THEN
            pushes := pushes || concat_ws(' ', t.client, 'T', t.owner, t.ttl_ms, 0, 0, t.any_of,
                coalesce(t.wants, t.mode || ' ' || t.name));
        END IF;
        IF choice < 0 OR cardinality(pushes) >= 256 THEN
            lock_names := lock_names[2:];
            seen := -1;
            CONTINUE;
        END IF;
        DELETE FROM tickets AS q WHERE q.owner = t.owner;
        -- The lease begins when no check can find the ticket any more.
        at := clock_timestamp();
        new_token := last_token(wanted, at) + 1;
        FOR i IN 1..cardinality(wanted) LOOP
            IF NOT t.any_of OR i - 1 = choice THEN
                PERFORM put_holder(wanted[i], modes[i], t.owner, new_token, t.ttl_ms, t.client, choice,
                    CASE WHEN NOT t.any_of THEN t.wants END, t.label, t.meta, at);
            END IF;
        END LOOP;
        pushes := pushes || concat_ws(' ', t.client, 'G', t.owner, t.ttl_ms, new_token, choice, t.any_of,
            coalesce(t.wants, t.mode || ' ' || t.name));
        IF t.wants IS NOT NULL THEN
            -- It may have been the first in the queues of its other names.
            lock_names := lock_names || wanted;
        END IF;
    END LOOP;
    RETURN pushes;
END $$;

-- Marks names of which nothing is left but their rows: most operations on them are executed together with others.
CREATE FUNCTION settle(lock_names text[], at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locks AS l SET is_plain = true WHERE l.name = ANY (lock_names) AND NOT l.is_plain
        AND (l.left_until IS NULL OR l.left_until <= at)
        AND NOT EXISTS (SELECT FROM tickets AS t WHERE t.name = l.name)
        AND NOT EXISTS (SELECT FROM holders AS h WHERE h.name = l.name)
        AND NOT EXISTS (SELECT FROM cells AS c WHERE c.name = l.name AND c.keep = 0);
END $$;

-- After the server's clock was set back, no lease is longer than its ttl.
CREATE FUNCTION clamp(lock_names text[], at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locks AS l SET expires_at = CASE WHEN l.owner IS NULL THEN at ELSE at + l.ttl_ms * interval '1 ms' END
        WHERE l.name = ANY (lock_names)
            AND l.expires_at > at + coalesce(CASE WHEN l.owner IS NOT NULL THEN l.ttl_ms END, 0) * interval '1 ms';
    IF FOUND THEN
        UPDATE holders AS h SET expires_at = at + h.ttl_ms * interval '1 ms'
            WHERE h.name = ANY (lock_names) AND h.expires_at > at + h.ttl_ms * interval '1 ms';
        UPDATE tickets AS t SET expires_at = at + t.ttl_ms * interval '1 ms'
            WHERE t.name = ANY (lock_names) AND t.expires_at > at + t.ttl_ms * interval '1 ms';
        UPDATE cells AS c SET expires_at = at + c.keep_ms * interval '1 ms'
            WHERE c.name = ANY (lock_names) AND c.keep = 1 AND c.expires_at > at + c.keep_ms * interval '1 ms';
    END IF;
END $$;
