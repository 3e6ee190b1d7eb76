//! Client-wide defaults: ttl, label, namespace; and what locks of one client share.

use std::time::Duration;

use fencepost::{Change, ErrorKind, Options, Page};

use crate::stage::on_stage;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_default_ttl_is_what_the_backend_can_keep() {
    on_stage("ttl-clamp", async |stage| {
        let client = stage.limited_to(2 * SECOND..=10 * SECOND);
        assert_eq!(client.default_ttl(), 10 * SECOND);
        assert_eq!(client.lock("a").acquire().await.unwrap().ttl(), 10 * SECOND);

        let error = client.lock("b").ttl(30 * SECOND).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert_eq!(error.to_string(), "ttl 30s is out of range for ttl-clamp: from 2s to 10s");
    });
}

#[test]
fn a_client_wide_ttl_and_label_hold_for_locks_without_their_own() {
    on_stage("defaults", async |stage| {
        let client = stage.client_with(Options::new().ttl(7 * SECOND).label("billing"));
        let guard = client.lock("a").acquire().await.unwrap();
        assert_eq!((guard.ttl(), guard.label()), (7 * SECOND, "billing"));
        let guard = client.lock("b").ttl(8 * SECOND).label("other").acquire().await.unwrap();
        assert_eq!((guard.ttl(), guard.label()), (8 * SECOND, "other"));

        let client = stage.client_with(Options::new().ttl(Duration::from_secs(1_000_000)));
        let error = client.lock("c").acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "an explicit ttl is not clamped");
    });
}

#[test]
fn a_namespace_is_part_of_every_name() {
    on_stage("namespace", async |stage| {
        let (all, billing) = (stage.client(), stage.client_with(Options::new().namespace("billing")));
        let guard = billing.lock("a").acquire().await.unwrap();
        assert_eq!((guard.name().as_str(), guard.names().count()), ("a", 1));
        let _outside = all.lock("a").acquire().await.unwrap();
        assert!(all.lock("billing/a").try_acquire().await.unwrap().is_none());

        assert_eq!(billing.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
        let listed = billing.locks("").next().await.unwrap().unwrap();
        assert_eq!(listed.name.as_str(), "a");
        let page = billing.list("", Page::new(1).after(listed.name.clone())).await.unwrap();
        assert!(page.locks.is_empty() && page.next.is_none());
        let Change::Held { name, .. } = billing.watch("").next().await.unwrap() else {
            panic!("the holder is reported first")
        };
        // A name that it returns can be passed back to it.
        assert_eq!(name, listed.name);
        billing.break_lock(name, guard.token()).await.unwrap();
        assert!(all.lock("billing/a").try_acquire().await.unwrap().is_some());
    });
}

#[test]
fn an_invalid_namespace_is_rejected() {
    let error = fencepost::memory::Memory::new().client_with(Options::new().namespace("a\nb")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().starts_with("the namespace is not valid: "), "{error}");
}

#[test]
fn locks_are_listed_over_all_pages_in_order() {
    on_stage("pages", async |stage| {
        let client = stage.client();
        let names: Vec<String> = (0..1_001).map(|number| format!("page/{number:04}")).collect();
        let _held = client.lock_all(&names).acquire().await.unwrap();
        let _other = client.lock("q").acquire().await.unwrap();
        let mut locks = client.locks("page/");
        let mut seen = Vec::new();
        while let Some(lock) = locks.next().await.unwrap() {
            seen.push(lock.name.as_str().to_owned());
        }
        assert_eq!(seen, names);
        assert!(locks.next().await.unwrap().is_none());
    });
}
