//! Functions and operators of other schemas with the names of those that Fencepost uses, and who may execute Fencepost's own.

use fencepost_core::Client;
use fencepost_testkit::servers::postgres::{PgBouncer, shared};

use crate::actions::{LONG_TTL, bench_on, connect, enqueue, granted, hold, spawn_waiter, until_tickets};
use crate::admin::use_locks;
use crate::bench::{DATABASE, PostgresBench, drive};

/// Creates a schema `@` whose functions and operators have the names and arguments of those of `pg_catalog`, and of some of
/// Fencepost's. All of them count their calls, and fail.
const SHADOWS: &str = r"
CREATE SCHEMA @; CREATE SEQUENCE @.calls; GRANT USAGE ON SCHEMA @ TO PUBLIC; GRANT ALL ON SEQUENCE @.calls TO PUBLIC;
CREATE FUNCTION @.count() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
    PERFORM pg_catalog.nextval('@.calls'); RAISE EXCEPTION 'a shadowing function was called'; END $f$;
CREATE FUNCTION @.micros(timestamptz) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$;
CREATE FUNCTION @.plain_code(integer) RETURNS integer LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$;
CREATE FUNCTION @.greatest(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$;
CREATE FUNCTION @.times(bigint, interval) RETURNS interval LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$;
CREATE OPERATOR @.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = @.times);
DO $do$ DECLARE f record; BEGIN
    FOR f IN SELECT proname AS name, pg_get_function_identity_arguments(oid) AS arguments, prorettype::regtype AS type
        FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND proname = ANY (
            '{clock_timestamp,now,current_setting,set_config,date_part,extract,to_regclass,to_regnamespace,pg_backend_pid,
            pg_is_in_recovery,inet_client_addr,inet_client_port,host,pg_try_advisory_lock,pg_advisory_unlock_all,
            pg_advisory_lock,pg_advisory_xact_lock,hashtextextended,starts_with,pg_cancel_backend,pg_terminate_backend,
            pg_notify,nextval,setval,gen_random_uuid,current_database,split_part,string_to_array}')
    LOOP
        EXECUTE format('CREATE FUNCTION @.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$',
            f.name, f.arguments, f.type);
    END LOOP;
    FOR f IN SELECT oid, oprname AS name, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS type
        FROM pg_operator WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprresult <> 0
            AND oprname = ANY ('{=,<>,<,<=,>,>=,+,-,*,&,||,>>}') AND oprleft::regtype = ANY (
            '{boolean,integer,bigint,oid,text,uuid,timestamptz,interval,double precision,name}'::regtype[])
    LOOP
        EXECUTE format('CREATE FUNCTION @.op_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM @.count(); END $f$',
            f.oid, f.l, f.r, f.type);
        EXECUTE format('CREATE OPERATOR @.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = @.op_%s)', f.name, f.l, f.r, f.oid);
    END LOOP;
END $do$;
CREATE DOMAIN @.text AS pg_catalog.text CHECK (@.count() IS NULL);
";

/// A role whose sessions find the shadowing functions and operators.
struct Shadowed {
    role: String,
}

impl Shadowed {
    /// Creates the schema and the role; `@` in the path stands for the schema, which is named like the role.
    fn with(search_path: &str) -> Self {
        let role = format!("shadow_{:016x}", rand::random::<u64>());
        shared().psql(&SHADOWS.replace('@', &role));
        // One at a time: accounts are granted rights on the same database.
        shared().psql(&format!(
            "SELECT pg_advisory_lock(hashtext('grants of tests')); CREATE ROLE {role} LOGIN; \
             GRANT CREATE ON DATABASE {DATABASE} TO {role}; ALTER ROLE {role} SET search_path = {}",
            search_path.replace('@', &role)
        ));
        Self { role }
    }

    fn url(&self) -> String {
        shared().url_as(&self.role, DATABASE)
    }

    /// Checks that none was called, although a plain session of the role calls them.
    fn assert_not_called(&self) {
        let is_called = || shared().psql(&format!("SELECT is_called FROM {}.calls", self.role));
        assert_eq!(is_called(), "f");
        let seen = shared().try_psql_as(&self.role, DATABASE, "SELECT 1::bigint * interval '1 ms'");
        assert!(seen.is_err_and(|error| error.contains("shadowing")), "the operator is found");
        assert_eq!(is_called(), "t");
    }
}

const PATHS: [&str; 2] = ["@, pg_catalog", "\"$user\", @"];

async fn read_all(client: &Client) {
    client.locks("").next().await.expect("one is held").unwrap();
    client.inspect("a").await.unwrap();
    let findings = client.diagnose().await.unwrap();
    assert!(findings.iter().all(|finding| !format!("{finding:?}").contains("shadowing")), "{findings:?}");
    client.locate("a").await.unwrap();
}

/// On a direct connection, and on one with something in between: the schema is created, and locks are used.
#[tokio::test(flavor = "multi_thread")]
async fn locks_call_no_function_of_another_schema() {
    for path in PATHS {
        let shadowed = Shadowed::with(path);
        let direct = PostgresBench::at(&shadowed.url(), "", &shared().url(DATABASE));
        let wired =
            PostgresBench::through_a_wire(&shadowed.url(), shared().port(), "", &shared().url(DATABASE));
        for bench in [direct, wired] {
            let client = connect(&bench).await;
            use_locks(&client).await;
            let held = hold(&client.lock("a").ttl(LONG_TTL)).await;
            read_all(&client).await;
            held.release().await.unwrap();
            let driver = drive(&shadowed.url()).await;
            let lock_in = format!("SELECT {}.lock_in($1, 0)", bench.namespace());
            let token: Option<i64> = driver.query_one(&lock_in, &[&"a"]).await.unwrap().get(0);
            assert!(token.is_some());
            client.close().await;
        }
        shadowed.assert_not_called();
    }
}

/// Behind a pooler that shares sessions, their path is left as it is: locks are calls of functions that set it.
#[tokio::test(flavor = "multi_thread")]
async fn locks_behind_a_pooler_call_no_function_of_another_schema() {
    let shadowed = Shadowed::with(PATHS[0]);
    let (port, role) = (shared().port(), &shadowed.role);
    let database = format!("shadowed = host=127.0.0.1 port={port} dbname={DATABASE} user={role}");
    let bouncer = PgBouncer::start_with(shared(), &["[databases]", &database]);
    let bench = PostgresBench::at(&bouncer.url("shadowed"), "", &shared().url(DATABASE));
    let client = connect(&bench).await;
    let held = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_tickets(&bench, 1).await;
    held.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    shadowed.assert_not_called();
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks_call_no_function_of_another_schema() {
    for path in PATHS {
        let shadowed = Shadowed::with(path);
        for key in ["sha256", "hashtextextended"] {
            let more = format!("&mode=advisory&key={key}");
            let direct = PostgresBench::at(&shadowed.url(), &more, &shared().url(DATABASE));
            let wired = PostgresBench::through_a_wire(
                &shadowed.url(),
                shared().port(),
                &more,
                &shared().url(DATABASE),
            );
            for bench in [direct, wired] {
                let (client, other) = (connect(&bench).await, connect(&bench).await);
                let held = hold(&client.lock("a").ttl(LONG_TTL)).await;
                let waiter = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 1).await;
                read_all(&client).await;
                held.release().await.unwrap();
                let held = granted(waiter).await;
                client.break_lock("a", held.token()).await.unwrap();
                client.sweep().await.unwrap();
                client.close().await;
                other.close().await;
            }
        }
        shadowed.assert_not_called();
    }
}

/// Functions without a `search_path` of their own that statements of clients call. A function that has one is not inlined: the
/// statement of single operations would take longer. They are called by functions that set it, or in sessions whose path is
/// `pg_catalog`.
const INLINED: [&str; 3] = ["can_execute", "lock_in_token", "micros"];

/// Every function that a client calls has a fixed `search_path` or is inlined, and no other account may execute or read anything.
#[tokio::test(flavor = "multi_thread")]
async fn functions_are_closed_to_other_accounts_and_have_a_fixed_path() {
    let bench = bench_on(shared());
    connect(&bench).await.close().await;
    let namespace = bench.namespace();
    let advisory = format!("{}&mode=advisory", bench.url());
    fencepost_postgres::connect(&advisory).await.unwrap().close().await;
    let of_schema = format!("'{namespace}'::regnamespace");
    let open = shared().psql(&format!(
        "SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS a \
         WHERE pronamespace = {of_schema} AND a.grantee = 0 \
         UNION ALL SELECT relname FROM pg_class, aclexplode(relacl) AS a WHERE relnamespace = {of_schema} AND a.grantee = 0 \
         UNION ALL SELECT nspname FROM pg_namespace, aclexplode(nspacl) AS a WHERE oid = {of_schema} AND a.grantee = 0"
    ));
    assert_eq!(open, "", "PUBLIC has rights");
    let fixed = shared().psql(&format!(
        "SELECT string_agg(proname, ' ' ORDER BY proname COLLATE \"C\") FROM pg_proc WHERE pronamespace = {of_schema} \
         AND 'search_path={namespace}, pg_temp' = ANY (proconfig)"
    ));
    assert_eq!(fixed, "advisory_token advisory_try advisory_wait flight lock_in raised_token sweep");
    // The others are parts of these: no statement of a client calls them.
    for called in include_str!("../../src/lease/single.sql").split("@schema@.").skip(1) {
        let name = called.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let is_known = name == "locks" || INLINED.contains(&name) || fixed.split(' ').any(|one| one == name);
        assert!(is_known, "{name} has no fixed path");
    }
}
