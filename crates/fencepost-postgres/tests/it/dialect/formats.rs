//! What the rows contain, for each type of column.

use std::time::Duration;

use fencepost_core::{ErrorKind, Mode};
use fencepost_testkit::{TestBench, suite};

use super::bench::{SHEDLOCK, TableBench};

const TTL: Duration = Duration::from_secs(60);

/// Acquires and releases a lock in a table with these columns, and checks its row meanwhile: the query must be true.
fn held(columns: &'static str, options: &'static str, is_held: &'static str) {
    let name = if options.contains("shedlock") { "name" } else { "lock_name" };
    let make = move || TableBench::new(columns, options, name, is_held);
    suite::run(columns, make, async move |bench: &TableBench| {
        let client = bench.client().await;
        let exceptions = client.info().exceptions.join("; ");
        assert!(exceptions.contains("in any order") && exceptions.contains("tokens"), "{exceptions}");
        assert!(!exceptions.contains("crashed"), "{exceptions}");
        let guard = client.lock("it's").ttl(TTL).label("web1:17:ann").acquire().await.unwrap();
        let row = bench.psql(&format!("SELECT {name}, {is_held} FROM @"));
        assert_eq!(row, "it's|t", "{columns}: {}", bench.psql("SELECT * FROM @"));
        let state = client.inspect("it's").await.unwrap();
        assert_eq!(state.holders[0].token, Some(guard.token()), "{columns}");
        let left = state.holders[0].expires_in.unwrap();
        assert!(left > Duration::from_secs(50) && left < TTL + Duration::from_secs(2), "{left:?}");
        guard.release().await.unwrap();
        assert!(client.inspect("it's").await.unwrap().is_idle());
        let again = client.lock("it's").ttl(TTL).try_acquire().await.unwrap().expect("it is free at once");
        again.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn a_row_of_shedlock() {
    let shedlock = "lock_until - locked_at BETWEEN interval '60 s' AND interval '60.002 s' \
        AND locked_at BETWEEN timezone('utc', now()) - interval '50 s' AND timezone('utc', now()) \
        AND locked_by ~ '^web1:17:ann [0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$'
        AND lock_until > timezone('utc', now())";
    held(SHEDLOCK, "dialect=shedlock", shedlock);
}

#[test]
fn a_row_of_shedlock_with_time_zone() {
    let columns = "name text PRIMARY KEY, lock_until timestamptz, locked_at timestamptz, locked_by text";
    held(columns, "dialect=shedlock", "lock_until > now() + interval '50 s' AND locked_at <= now()");
}

const WITH_EXPIRY: &str = "dialect=table&name=lock_name&owner=owner_id&expires=expires_at";

#[test]
fn every_supported_type_of_column() {
    held(
        "lock_name varchar(10) UNIQUE, owner_id varchar(32), expires_at timestamp(0)",
        WITH_EXPIRY,
        "length(owner_id) = 32 AND expires_at > localtimestamp",
    );
    held(
        "lock_name text PRIMARY KEY, owner_id varchar(36), expires_at integer",
        WITH_EXPIRY,
        "length(owner_id) = 36 AND expires_at > extract(epoch FROM now())",
    );
    held(
        "id bigserial, lock_name text PRIMARY KEY, owner_id uuid, expires_at timestamptz",
        WITH_EXPIRY,
        "expires_at > now() + interval '50 s'",
    );
}

/// Another time zone of the session, as a role or a database may have it.
#[test]
fn a_time_without_zone_is_that_of_the_session() {
    let name = "a_time_without_zone_is_that_of_the_session";
    let columns = "lock_name text PRIMARY KEY, owner_id text, expires_at timestamp";
    let make = move || {
        let bench = TableBench::new(columns, WITH_EXPIRY, "lock_name", "expires_at > localtimestamp");
        bench.psql("ALTER TABLE @ OWNER TO CURRENT_USER");
        bench
    };
    suite::run(name, make, async |bench: &TableBench| {
        let client = bench.client().await;
        bench.psql("INSERT INTO @ VALUES ('a', 'theirs', now() + interval '1 h'), ('b', 'theirs', now() - interval '1 s')");
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        client.lock("b").try_acquire().await.unwrap().expect("its lease has ended").release().await.unwrap();
        bench.psql("DELETE FROM @");
        client.close().await;
    });
}

/// Operations that such locks do not support are rejected with a hint, and so is a name that does not fit.
#[test]
fn unsupported_operations_are_rejected() {
    suite::run("unsupported_operations_are_rejected", TableBench::shedlock, async |bench: &TableBench| {
        let client = bench.client().await;
        for lock in [
            client.lock("a").mode(Mode::Shared),
            client.lock("a").mode(Mode::Semaphore { permits: 2 }),
            client.lock_all(["a", "b"]),
            client.lock_any(["a", "b"]),
        ] {
            let error = lock.try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.to_string().contains("dialect=shedlock") && error.hint().is_some(), "{error:?}");
        }
        assert_eq!(client.read_cell("a").await.unwrap_err().kind(), ErrorKind::Unsupported);
        client.lock("ä".repeat(64)).acquire().await.unwrap().release().await.unwrap();
        let error = client.lock("ä".repeat(65)).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadName);
        assert!(error.hint().is_some_and(|hint| hint.contains("64")), "{error:?}");
        client.close().await;
    });
}

/// The names of columns come from the URL.
#[test]
fn hostile_identifiers_are_quoted() {
    let columns = "\"n\"\"; DROP TABLE x --\" text PRIMARY KEY, \"o r.o\" text, \"E$1\" timestamptz";
    let options = "dialect=table&name=n%22;%20DROP%20TABLE%20x%20--&owner=o%20r.o&expires=E$1";
    let make = move || TableBench::new(columns, options, "\"n\"\"; DROP TABLE x --\"", "\"E$1\" > now()");
    suite::run("hostile_identifiers_are_quoted", make, async |bench: &TableBench| {
        let client = bench.client().await;
        let guard = client.lock("a").acquire().await.unwrap();
        assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
        guard.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn a_diagnosis_names_the_table() {
    suite::run("a_diagnosis_names_the_table", TableBench::shedlock, async |bench: &TableBench| {
        let client = bench.client().await;
        bench.psql("INSERT INTO @ SELECT 'a', now() + interval '3 h', now() + interval '2 h', 'web1'");
        let found: Vec<String> = client.diagnose().await.unwrap().iter().map(ToString::to_string).collect();
        assert!(
            found.iter().any(|line| line.starts_with("table: ") && line.contains(&bench.table)),
            "{found:?}"
        );
        assert!(found.iter().any(|line| line.contains("1 locks were acquired in the future")), "{found:?}");
        assert!(found.iter().any(|line| line.contains("within one client only")), "{found:?}");
        let located = client.locate("a").await.unwrap();
        assert!(located[0].found.contains("WHERE \"name\" = 'a': held by \"web1\""), "{located:?}");
        bench.psql("DELETE FROM @");
        client.close().await;
    });
}
