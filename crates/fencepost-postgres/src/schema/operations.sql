-- One function for each kind of operation.

-- What an owner holds of these names.
CREATE FUNCTION held_by(who uuid, wanted text[], at timestamptz) RETURNS holding LANGUAGE plpgsql AS $$
DECLARE
    h holding;
BEGIN
    SELECT count(*), max(g.token), max(g.chosen) INTO h FROM (
        SELECT l.token, l.chosen FROM locks AS l WHERE l.name = ANY (wanted) AND l.owner = who AND l.expires_at > at
        UNION ALL
        SELECT f.token, f.chosen FROM holders AS f WHERE f.name = ANY (wanted) AND f.owner = who AND f.expires_at > at
    ) AS g;
    RETURN h;
END $$;

-- Extends the leases of a holder to their full length.
CREATE FUNCTION extend(who uuid, wanted text[], at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE locks AS l SET expires_at = at + l.ttl_ms * interval '1 ms' WHERE l.name = ANY (wanted) AND l.owner = who;
    UPDATE holders AS h SET expires_at = at + h.ttl_ms * interval '1 ms' WHERE h.name = ANY (wanted) AND h.owner = who;
END $$;

-- Removes the grant of this owner from the pushes: its reply is the grant.
CREATE FUNCTION without_own(pushes text[], me bigint, who uuid) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(pushes) > 0 THEN
        pushes := ARRAY(SELECT p FROM unnest(pushes) AS p WHERE NOT starts_with(p, concat_ws(' ', me, 'G', who)));
    END IF;
    RETURN pushes;
END $$;

-- Mode and name of each want, one per line; NULL if there is only one.
CREATE FUNCTION wants_text(wanted text[], modes integer[]) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN cardinality(wanted) > 1 THEN (SELECT string_agg(w.mode || ' ' || w.name, E'\n' ORDER BY w.ord)
        FROM unnest(wanted, modes) WITH ORDINALITY AS w(name, mode, ord)) END;
END $$;

-- Adds a ticket to the queue of each name, and returns its position.
CREATE FUNCTION join_queue(wanted text[], modes integer[], any_of boolean, who uuid, length_ms bigint, new_label text,
    new_meta text, me bigint, at timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    my_seq bigint := nextval('positions');
BEGIN
    INSERT INTO tickets (name, seq, owner, mode, wants, any_of, expires_at, ttl_ms, client, since, label, meta)
        SELECT w.name, my_seq, who, w.mode, wants_text(wanted, modes), any_of, at + length_ms * interval '1 ms', length_ms,
            me, at, new_label, new_meta
        FROM unnest(wanted, modes) AS w(name, mode);
    RETURN my_seq;
END $$;

-- The time, in ms, after which the lock may be free for this position if no lease ahead is renewed.
CREATE FUNCTION check_after(wanted text[], modes integer[], any_of boolean, my_seq bigint, at timestamptz)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    ends timestamptz;
    result timestamptz;
BEGIN
    -- A renewal of such a holder does not touch the row of `locks`, by which a clock that was set back is noticed.
    IF EXISTS (SELECT FROM (SELECT f.expires_at, f.ttl_ms FROM holders AS f WHERE f.name = ANY (wanted) LIMIT 256) AS h
            WHERE h.expires_at > at + h.ttl_ms * interval '1 ms') THEN
        UPDATE holders AS h SET expires_at = at + h.ttl_ms * interval '1 ms'
            WHERE h.name = ANY (wanted) AND h.expires_at > at + h.ttl_ms * interval '1 ms';
    END IF;
    FOR i IN 1..cardinality(wanted) LOOP
        SELECT greatest(
            (SELECT l.expires_at FROM locks AS l WHERE l.name = wanted[i] AND l.owner IS NOT NULL),
            -- One free permit of a semaphore is enough.
            (SELECT CASE WHEN modes[i] > 0 THEN min(h.expires_at) ELSE max(h.expires_at) END FROM (
                SELECT f.expires_at FROM holders AS f WHERE f.name = wanted[i] AND f.expires_at > at LIMIT 256) AS h),
            (SELECT max(t.expires_at) FROM (
                SELECT f.expires_at FROM tickets AS f WHERE f.name = wanted[i] AND f.seq < my_seq ORDER BY f.seq LIMIT 16) AS t)
        ) INTO ends;
        result := CASE WHEN any_of THEN least(result, ends) ELSE greatest(result, ends) END;
    END LOOP;
    RETURN greatest(1, ceil(extract(epoch FROM coalesce(result, at) - at) * 1000))::bigint;
END $$;

-- The outcome of an attempt for a name that is in use in a mode on which these clients do not agree, with that name and mode;
-- NULL if there is none.
CREATE FUNCTION conflict(wanted text[], modes integer[], at timestamptz) RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    present integer;
BEGIN
    FOR i IN 1..cardinality(wanted) LOOP
        FOR present IN
            (SELECT 0 FROM locks AS l WHERE l.name = wanted[i] AND l.owner IS NOT NULL AND l.expires_at > at)
            UNION ALL (SELECT h.mode FROM holders AS h WHERE h.name = wanted[i] AND h.expires_at > at LIMIT 1)
            UNION ALL (SELECT t.mode FROM tickets AS t WHERE t.name = wanted[i] AND t.expires_at > at ORDER BY t.seq LIMIT 1)
        LOOP
            -- Semaphores agree with semaphores of the same size only, exclusive and shared with each other.
            IF greatest(present, 0) <> greatest(modes[i], 0) THEN
                o.code := 12;
                o.number := present;
                o.note := wanted[i];
                RETURN o;
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

-- Acquires (kind 1 joins the queue, 2 does not) or checks a ticket (3).
CREATE FUNCTION attempt(kind integer, wanted text[], modes integer[], any_of boolean, who uuid, length_ms bigint,
    new_label text, new_meta text, me bigint, at timestamptz) RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    refused outcome;
    my_seq bigint;
    held holding;
    free boolean;
BEGIN
    IF kind < 3 AND EXISTS (SELECT FROM tombstones AS d WHERE d.owner = who AND d.expires_at > at) THEN
        o.code := 0;
        RETURN o;
    END IF;
    -- The ticket is extended before its expiry is checked: the waiter that sends this is alive.
    UPDATE tickets AS t SET expires_at = at + length_ms * interval '1 ms', client = me WHERE t.owner = who;
    o.pushes := serve(wanted, me, at);
    held := held_by(who, wanted, at);
    IF held.count > 0 AND (any_of OR held.count = cardinality(wanted)) THEN
        PERFORM extend(who, wanted, at);
        o.code := 7;
        o.token := held.token;
        o.number := held.chosen;
        o.pushes := without_own(o.pushes, me, who);
        RETURN o;
    END IF;
    SELECT t.seq INTO my_seq FROM tickets AS t WHERE t.owner = who LIMIT 1;
    IF my_seq IS NULL AND kind = 3 THEN
        o.code := 5;
        RETURN o;
    END IF;
    IF my_seq IS NULL THEN
        refused := conflict(wanted, modes, at);
        IF refused.code IS NOT NULL THEN
            refused.pushes := o.pushes;
            RETURN refused;
        END IF;
        FOR i IN 1..cardinality(wanted) LOOP
            free := admits(wanted[i], modes[i], at) AND NOT has_waiter_before(wanted[i], 9223372036854775807, me, at);
            o.number := i - 1;
            EXIT WHEN free = any_of;
        END LOOP;
        IF free THEN
            o.token := last_token(wanted, at) + 1;
            o.number := CASE WHEN any_of THEN o.number ELSE 0 END;
            FOR i IN 1..cardinality(wanted) LOOP
                IF NOT any_of OR i - 1 = o.number THEN
                    PERFORM put_holder(wanted[i], modes[i], who, o.token, length_ms, me, o.number::integer,
                        CASE WHEN NOT any_of THEN wants_text(wanted, modes) END, new_label, new_meta, at);
                END IF;
            END LOOP;
            o.code := 7;
            RETURN o;
        ELSIF kind = 2 THEN
            o.code := 0;
            RETURN o;
        END IF;
        my_seq := join_queue(wanted, modes, any_of, who, length_ms, new_label, new_meta, me, at);
    END IF;
    UPDATE locks AS l SET is_plain = false WHERE l.name = ANY (wanted) AND l.is_plain;
    o.code := 9;
    o.number := check_after(wanted, modes, any_of, my_seq, at);
    RETURN o;
END $$;

-- Leaves the queue; without a ticket, a tombstone defeats an acquire that may still arrive.
CREATE FUNCTION leave(wanted text[], any_of boolean, who uuid, length_ms bigint, me bigint, at timestamptz)
RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    held holding;
    had_ticket boolean;
BEGIN
    o.pushes := serve(wanted, me, at);
    held := held_by(who, wanted, at);
    IF held.count > 0 AND (any_of OR held.count = cardinality(wanted)) THEN
        o.code := 8;
        o.token := held.token;
        o.number := held.chosen;
        o.pushes := without_own(o.pushes, me, who);
        RETURN o;
    END IF;
    PERFORM drop_holder(w.name, who, NULL, at) FROM unnest(wanted) AS w(name);
    DELETE FROM tickets AS t WHERE t.owner = who;
    had_ticket := FOUND;
    o.pushes := o.pushes || serve(wanted, me, at);
    IF NOT had_ticket THEN
        INSERT INTO tombstones (owner, expires_at) VALUES (who, at + length_ms * interval '1 ms')
            ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at;
        UPDATE locks AS l SET is_plain = false, left_until = greatest(l.left_until, at + length_ms * interval '1 ms')
            WHERE l.name = ANY (wanted);
    END IF;
    o.code := 4;
    RETURN o;
END $$;

-- Hands an exclusive lock over to its first waiter, if that wants it alone and exclusively; otherwise does nothing. Locks the
-- row itself: a flight with nothing else to do begins with this.
CREATE FUNCTION hand_over(lock_name text, who uuid, held bigint, me bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    t tickets%ROWTYPE;
    unreachable bigint[] := '{}';
    new_token bigint;
BEGIN
    -- If the lease is longer than its ttl, the clock was set back: the tickets have to be shortened first (see `clamp`).
    PERFORM FROM locks AS l WHERE l.name = lock_name AND l.owner = who AND l.token = held AND l.expires_at > clock_timestamp()
        AND l.expires_at <= clock_timestamp() + l.ttl_ms * interval '1 ms' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOR t IN SELECT * FROM tickets AS q WHERE q.name = lock_name AND q.expires_at > clock_timestamp() ORDER BY q.seq LOOP
        CONTINUE WHEN t.client = ANY (unreachable);
        IF NOT reachable(t.client, me) THEN
            unreachable := unreachable || t.client;
            CONTINUE;
        END IF;
        EXIT WHEN t.wants IS NOT NULL OR t.mode <> 0;
        -- The lease begins when no check can find the ticket any more: the row is written after the ticket was deleted.
        WITH gone AS (
            DELETE FROM tickets AS q WHERE q.owner = t.owner RETURNING clock_timestamp() AS at
        ), forgotten AS (
            DELETE FROM cells AS c WHERE c.name = lock_name AND c.keep = 0 AND c.token = held
        )
        UPDATE locks AS l SET token = greatest(l.token + 1, micros(g.at), lock_in_token() + 1), owner = t.owner,
            expires_at = g.at + t.ttl_ms * interval '1 ms', ttl_ms = t.ttl_ms, client = t.client, since = g.at, chosen = 0,
            wants = NULL, label = t.label, meta = t.meta
            FROM gone AS g WHERE l.name = lock_name AND l.owner = who AND l.token = held RETURNING l.token INTO new_token;
        IF NOT FOUND THEN
            PERFORM changed();
        END IF;
        RETURN concat_ws(' ', t.client, 'G', t.owner, t.ttl_ms, new_token, 0, false, t.mode || ' ' || t.name);
    END LOOP;
    RETURN NULL;
END $$;

-- Releases what is held with this token, and grants it to the first waiters. `modes` is NULL if `hand_over` need not be tried.
CREATE FUNCTION release(wanted text[], modes integer[], who uuid, held bigint, me bigint, at timestamptz) RETURNS outcome
LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    one text;
BEGIN
    IF modes = ARRAY[0] THEN
        o.pushes := ARRAY[hand_over(wanted[1], who, held, me)];
        IF o.pushes[1] IS NOT NULL THEN
            o.code := 1;
            RETURN o;
        END IF;
    END IF;
    o.code := 3;
    o.pushes := NULL;
    FOREACH one IN ARRAY wanted LOOP
        IF drop_holder(one, who, held, at) THEN
            o.code := 1;
        END IF;
    END LOOP;
    IF o.code = 1 THEN
        o.pushes := serve(wanted, me, at);
    END IF;
    RETURN o;
END $$;

-- Extends the lease of a grant. If only some of its names are still held, they are released.
CREATE FUNCTION renew(wanted text[], who uuid, held bigint, length_ms bigint, me bigint, at timestamptz)
RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    found_now holding := held_by(who, wanted, at);
BEGIN
    IF found_now.count = cardinality(wanted) AND found_now.token = held THEN
        PERFORM extend(who, wanted, at);
        o.code := 2;
        o.number := length_ms;
    ELSE
        o.pushes := (release(wanted, NULL, who, held, me, at)).pushes;
        o.code := 3;
    END IF;
    RETURN o;
END $$;

-- The names of the grant that has this lock with this token, one per line. They never change: no row has to be locked.
CREATE FUNCTION grant_names(lock_name text, held bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    all_wants text;
BEGIN
    SELECT g.wants INTO all_wants FROM (
        SELECT l.wants FROM locks AS l WHERE l.name = lock_name AND l.token = held AND l.owner IS NOT NULL
        UNION ALL
        SELECT h.wants FROM holders AS h WHERE h.name = lock_name AND h.token = held
    ) AS g LIMIT 1;
    RETURN coalesce(regexp_replace(all_wants, '^-?[0-9]+ ', '', 'gn'), lock_name);
END $$;

-- Removes the holder with this token from the names of its grant.
CREATE FUNCTION break_lock(wanted text[], held bigint, me bigint, at timestamptz) RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
    g record;
BEGIN
    SELECT * INTO g FROM (
        SELECT l.owner, l.client FROM locks AS l
            WHERE l.name = ANY (wanted) AND l.token = held AND l.owner IS NOT NULL AND l.expires_at > at
        UNION ALL
        SELECT h.owner, h.client FROM holders AS h WHERE h.name = ANY (wanted) AND h.token = held AND h.expires_at > at
    ) AS found_now LIMIT 1;
    o.code := 3;
    IF FOUND THEN
        o := release(wanted, NULL, g.owner, held, me, at);
        o.pushes := o.pushes || concat_ws(' ', g.client, 'L', g.owner);
    END IF;
    RETURN o;
END $$;

CREATE FUNCTION read_cell(lock_name text, at timestamptz) RETURNS outcome
LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
BEGIN
    o.code := 10;
    SELECT c.token, c.bytes INTO o.token, o.bytes FROM cells AS c WHERE c.name = lock_name AND CASE c.keep
        WHEN 0 THEN EXISTS (SELECT FROM locks AS l WHERE l.name = lock_name AND l.token = c.token AND l.owner IS NOT NULL
                AND l.expires_at > at)
            OR EXISTS (SELECT FROM holders AS h WHERE h.name = lock_name AND h.token = c.token AND h.expires_at > at)
        WHEN 1 THEN c.expires_at > at
        ELSE true END;
    RETURN o;
END $$;

CREATE FUNCTION write_cell(lock_name text, who uuid, held bigint, new_keep integer, new_keep_ms bigint, new_bytes bytea,
    at timestamptz) RETURNS outcome LANGUAGE plpgsql AS $$
DECLARE
    o outcome;
BEGIN
    o.code := 3;
    IF (held_by(who, ARRAY[lock_name], at)).token IS NOT DISTINCT FROM held THEN
        INSERT INTO cells AS c (name, token, keep, keep_ms, expires_at, bytes)
            VALUES (lock_name, held, new_keep, new_keep_ms, at + new_keep_ms * interval '1 ms', new_bytes)
            ON CONFLICT (name) DO UPDATE SET token = held, keep = new_keep, keep_ms = new_keep_ms,
                expires_at = excluded.expires_at, bytes = new_bytes;
        UPDATE locks AS l SET is_plain = false WHERE l.name = lock_name AND new_keep = 0;
        o.code := 6;
    END IF;
    RETURN o;
END $$;
