-- The prototype of rules in MariaDB: one call executes a flight. Plain operations are executed in bulk, hand-overs one by one.
-- `ops` is an array of objects: k the kind (1 acquire, 3 check, 4 leave, 5 renew, 6 release), n the name, o the owner in hex,
-- t the token, l the ttl in µs, b the label. Returns one row: the replies and the pushes, each a JSON array.
CREATE TABLE IF NOT EXISTS trial_locks (
    name VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL DEFAULT 0, owner BINARY(16), ttl BIGINT, until BIGINT, label BLOB,
    waiters BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
CREATE TABLE IF NOT EXISTS trial_tickets (
    name VARBINARY(512) NOT NULL, seq BIGINT NOT NULL AUTO_INCREMENT, owner BINARY(16) NOT NULL, ttl BIGINT NOT NULL,
    until BIGINT NOT NULL, label BLOB NOT NULL, PRIMARY KEY (name, seq), KEY (seq), KEY (owner)
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
CREATE OR REPLACE PROCEDURE trial_flight(ops LONGTEXT CHARACTER SET utf8mb4)
BEGIN
    DECLARE at BIGINT;
    DECLARE is_done BOOLEAN DEFAULT false;
    DECLARE lock_name VARBINARY(512);
    DECLARE next_seq, next_ttl BIGINT;
    DECLARE next_owner BINARY(16);
    DECLARE next_label BLOB;
    DECLARE pushes LONGTEXT CHARACTER SET utf8mb4 DEFAULT '';
    DECLARE handed CURSOR FOR
        SELECT l.name FROM JSON_TABLE(ops, '$[*]' COLUMNS (kind INT PATH '$.k', name VARCHAR(512) PATH '$.n',
            owner CHAR(32) PATH '$.o', token BIGINT PATH '$.t')) AS o
        STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(o.name AS BINARY)
        WHERE o.kind = 6 AND l.owner = UNHEX(o.owner) AND l.token = o.token;
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET is_done = true;

    START TRANSACTION;
    INSERT INTO trial_locks (name)
        SELECT CAST(o.name AS BINARY) FROM JSON_TABLE(ops, '$[*]' COLUMNS (name VARCHAR(512) PATH '$.n')) AS o ORDER BY 1
        ON DUPLICATE KEY UPDATE trial_locks.name = trial_locks.name;
    SET at = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6));

    -- Releases without waiters, and renewals.
    UPDATE JSON_TABLE(ops, '$[*]' COLUMNS (kind INT PATH '$.k', name VARCHAR(512) PATH '$.n', owner CHAR(32) PATH '$.o',
            token BIGINT PATH '$.t')) AS o
        STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(o.name AS BINARY)
        SET l.owner = IF(o.kind = 5, l.owner, NULL), l.until = IF(o.kind = 5, at + l.ttl, at)
        WHERE (o.kind = 5 OR o.kind = 6 AND l.waiters = 0) AND l.owner = UNHEX(o.owner) AND l.token = o.token AND l.until > at;

    -- Hand-overs.
    OPEN handed;
    FETCH handed INTO lock_name;
    WHILE NOT is_done DO
        SELECT t.seq, t.owner, t.ttl, t.label INTO next_seq, next_owner, next_ttl, next_label
            FROM trial_tickets AS t WHERE t.name = lock_name AND t.until > at ORDER BY t.seq LIMIT 1;
        UPDATE trial_locks AS l SET l.token = GREATEST(l.token + 1, at), l.owner = next_owner, l.ttl = next_ttl,
            l.until = at + next_ttl, l.label = next_label, l.waiters = l.waiters - 1 WHERE l.name = lock_name;
        DELETE FROM trial_tickets WHERE name = lock_name AND seq = next_seq;
        SET pushes = CONCAT(pushes, IF(pushes = '', '', ','), '["', HEX(next_owner), '",',
            (SELECT l.token FROM trial_locks AS l WHERE l.name = lock_name), ']');
        SET is_done = false;
        FETCH handed INTO lock_name;
    END WHILE;
    CLOSE handed;

    -- Acquires of free locks.
    UPDATE JSON_TABLE(ops, '$[*]' COLUMNS (kind INT PATH '$.k', name VARCHAR(512) PATH '$.n', owner CHAR(32) PATH '$.o',
            ttl BIGINT PATH '$.l', label VARCHAR(255) PATH '$.b')) AS o
        STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(o.name AS BINARY)
        SET l.token = GREATEST(l.token + 1, at), l.owner = UNHEX(o.owner), l.ttl = o.ttl, l.until = at + o.ttl, l.label = o.label
        WHERE o.kind = 1 AND (l.owner IS NULL OR l.until <= at) AND l.waiters = 0;

    -- The others wait.
    INSERT INTO trial_tickets (name, owner, ttl, until, label)
        SELECT l.name, UNHEX(o.owner), o.ttl, at + o.ttl, o.label
        FROM JSON_TABLE(ops, '$[*]' COLUMNS (kind INT PATH '$.k', name VARCHAR(512) PATH '$.n', owner CHAR(32) PATH '$.o',
            ttl BIGINT PATH '$.l', label VARCHAR(255) PATH '$.b')) AS o
        STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(o.name AS BINARY)
        WHERE o.kind = 1 AND l.owner <> UNHEX(o.owner);
    IF ROW_COUNT() > 0 THEN
        UPDATE (SELECT o.name, COUNT(*) AS count FROM JSON_TABLE(ops, '$[*]' COLUMNS (kind INT PATH '$.k',
                name VARCHAR(512) PATH '$.n', owner CHAR(32) PATH '$.o')) AS o
            JOIN trial_locks AS h ON h.name = CAST(o.name AS BINARY) AND h.owner <> UNHEX(o.owner)
            WHERE o.kind = 1 GROUP BY o.name) AS w
            STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(w.name AS BINARY) SET l.waiters = l.waiters + w.count;
    END IF;

    SELECT CONCAT('[', GROUP_CONCAT(JSON_ARRAY(IFNULL(l.owner = UNHEX(o.owner), 0), l.token) ORDER BY o.ord), ']'),
        CONCAT('[', pushes, ']')
        FROM JSON_TABLE(ops, '$[*]' COLUMNS (ord FOR ORDINALITY, name VARCHAR(512) PATH '$.n', owner CHAR(32) PATH '$.o')) AS o
        STRAIGHT_JOIN trial_locks AS l ON l.name = CAST(o.name AS BINARY);
    COMMIT;
END
