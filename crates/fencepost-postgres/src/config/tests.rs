//! URLs: what is accepted, what is rejected, and what errors do not quote.

use fencepost_core::ErrorKind;

use super::*;

#[test]
fn all_parts() {
    let config =
        parse("postgresql://ann:p%40ss@db.example:5433,[::1]/app?namespace=team_a&application_name=billing")
            .unwrap();
    assert_eq!(config.hosts[0], Address { host: "db.example".into(), port: 5433 });
    assert_eq!((config.user.as_str(), config.database.as_str()), ("ann", "app"));
    assert_eq!(config.password, Some(Secret("p@ss".into())));
    assert_eq!((config.namespace.as_str(), &config.layout), ("team_a", &Layout::Lease));
    assert_eq!(config.application_name, "billing");
    assert_eq!(config.location(), "postgres://db.example:5433,[::1]:5432/app?namespace=team_a");
    assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
}

#[test]
fn most_parts_are_optional() {
    let config = parse("postgres://ann@h").unwrap();
    assert_eq!((config.database.as_str(), &config.password), ("ann", &None));
    assert_eq!((config.tls.clone(), config.namespace.as_str()), (None, "fencepost"));
    assert_eq!(config.application_name, "fencepost");
    assert_eq!(config.location(), "postgres://h:5432/ann");
    assert_eq!(config.connect_timeout, CONNECT_TIMEOUT);
}

#[test]
fn options_of_libpq_that_people_paste() {
    let config = parse("postgres://u@h/d?sslmode=disable&target_session_attrs=read-write&connect_timeout=1");
    let config = config.unwrap();
    assert_eq!((config.tls, config.connect_timeout), (None, Duration::from_secs(1)));
    for long in ["0", "10"] {
        let config = parse(&format!("postgres://u@h/d?connect_timeout={long}")).unwrap();
        assert_eq!(config.connect_timeout, CONNECT_TIMEOUT);
    }
    for mode in ["require", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert=/ca&sslcert=/c&sslkey=/k&channel_binding=require");
        let config = parse(&format!("postgres://u@h/d?{query}")).unwrap();
        let tls = config.tls.unwrap();
        assert_eq!((tls.ca, tls.identity), (Some("/ca".into()), Some(("/c".into(), "/k".into()))));
        assert_eq!(config.channel_binding, ChannelBinding::Required);
    }
    assert_eq!(parse("postgres://u@h/d?sslmode=require&sslrootcert=system").unwrap().tls.unwrap().ca, None);
}

#[test]
fn a_weak_sslmode_is_answered_with_the_choice() {
    for mode in ["allow", "prefer", "verify-ca"] {
        let error = parse(&format!("postgres://u@h/d?sslmode={mode}")).unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("sslmode=")), "{error:?}");
    }
}

#[test]
fn layouts() {
    let layout = |query: &str| parse(&format!("postgres://u@h/d?{query}")).unwrap().layout;
    let advisory = |key| Layout::Advisory { key, connections: 32 };
    assert_eq!(layout("mode=lease"), Layout::Lease);
    assert_eq!(layout("mode=advisory"), advisory(KeyRule::Sha256));
    for (word, key) in KeyRule::ALL {
        assert_eq!(layout(&format!("mode=advisory&key={word}")), advisory(key));
        assert_eq!(key.word(), word);
    }
    assert_eq!(
        layout("mode=advisory&connections=2"),
        Layout::Advisory { key: KeyRule::Sha256, connections: 2 }
    );
    assert_eq!(layout("dialect=shedlock"), Layout::Shedlock { table: "shedlock".into() });
    assert_eq!(layout("dialect=shedlock&table=ops.shed"), Layout::Shedlock { table: "ops.shed".into() });
    let table = |expires| Layout::Table {
        table: "locks".into(),
        name: "lock_name".into(),
        owner: "owner_id".into(),
        expires,
    };
    let query = "dialect=table&table=locks&name=lock_name&owner=owner_id";
    assert_eq!(layout(query), table(None));
    assert_eq!(layout(&format!("{query}&expires=until")), table(Some("until".into())));
}

#[test]
fn the_location_says_where_and_how_the_locks_are_stored() {
    for (query, shown) in [
        ("mode=lease", ""),
        ("mode=advisory&connections=2", "?mode=advisory"),
        ("mode=advisory&key=tooz", "?mode=advisory&key=tooz"),
        ("dialect=shedlock", "?dialect=shedlock"),
        ("dialect=shedlock&table=s", "?dialect=shedlock&table=s"),
        ("dialect=table&table=t&name=n&owner=o", "?dialect=table&table=t"),
    ] {
        let config = parse(&format!("postgres://u:hunter2@h/d?{query}")).unwrap();
        assert_eq!(config.location(), format!("postgres://h:5432/d{shown}"));
    }
}

#[test]
fn an_invalid_url_is_rejected_without_repeating_it() {
    let invalid = [
        "postgres:hunter2",
        "postgres://",
        "postgres://h",
        "postgres://:hunter2@h",
        "postgres://u:hunter2@",
        "postgres://u:hunter2@h:port",
        "postgres://u:hunter2@h/a/b",
        "postgres://u:hunter2@h?foo=hunter2",
        "postgres://u:hunter2@h?hunter2!=1",
        "postgres://u:p?hunter2@h",
        "postgres://u:p?mode=hunter2@h",
        "postgres://u:p?sslmode=hunter2@h",
        "postgres://u:hunter2@h?namespace=",
        "postgres://u:hunter2@h?namespace=pg_catalog",
        "postgres://u:hunter2@h?mode=other",
        "postgres://u:hunter2@h?mode=advisory&key=md5",
        "postgres://u:hunter2@h?mode=advisory&connections=0",
        "postgres://u:hunter2@h?mode=advisory&connections=many",
        "postgres://u:hunter2@h?mode=advisory&dialect=shedlock",
        "postgres://u:hunter2@h?dialect=quartz",
        "postgres://u:hunter2@h?dialect=table&table=t&name=n",
        "postgres://u:hunter2@h?dialect=table&table=t&name=n&owner=",
        "postgres://u:hunter2@h?dialect=shedlock&name=n",
        "postgres://u:hunter2@h?table=t",
        "postgres://u:hunter2@h?key=raw",
        "postgres://u:hunter2@h?expires=hunter2",
        "postgres://u:hunter2@h?tls_ca=hunter2",
        "postgres://u:hunter2@h?sslmode=disable&sslrootcert=hunter2",
        "postgres://u:hunter2@h?sslmode=prefer",
        "postgres://u:hunter2@h?sslmode=verify-ca",
        "postgres://u:hunter2@h?sslmode=require&tls_insecure=yes",
        "postgres://u:hunter2@h?channel_binding=require",
        "postgres://u:hunter2@h?connect_timeout=soon",
        "postgres://u:hunter2@h?target_session_attrs=standby",
        "postgres://%zz@h",
        "postgres+floppy://u:hunter2@h",
    ];
    for url in invalid {
        let error = parse(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn an_unknown_option_or_value_is_named_with_the_nearest_known_one() {
    for (query, message) in [
        ("foo=hunter2", "unknown option \"foo\" in the PostgreSQL URL"),
        ("sslmod=hunter2", "unknown option \"sslmod\" in the PostgreSQL URL; did you mean \"sslmode\"?"),
        (
            "mode=advisry",
            "unknown value \"advisry\" of option \"mode\" in the PostgreSQL URL; did you mean \"advisory\"?",
        ),
    ] {
        let error = parse(&format!("postgres://u:hunter2@h?{query}")).unwrap_err();
        assert_eq!(error.to_string(), message);
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    assert_eq!(
        parse("postgress://u@h").unwrap_err().to_string(),
        "unknown scheme \"postgress\" of the PostgreSQL URL; did you mean \"postgres\"?"
    );
}
