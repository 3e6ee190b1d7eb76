//! The crate as its users see it: URLs, options, errors.

#[cfg(feature = "memory")]
mod blocking;
#[cfg(feature = "memory")]
mod call_timeout;
#[cfg(all(feature = "memory", feature = "tracing"))]
mod listener;
#[cfg(all(feature = "memory", feature = "metrics"))]
mod metrics;
#[cfg(feature = "memory")]
mod options;
#[cfg(all(feature = "memory", feature = "metrics"))]
mod recorder;
#[cfg(feature = "memory")]
mod stage;
#[cfg(all(feature = "memory", feature = "tracing"))]
mod trace;
#[cfg(feature = "memory")]
mod try_run;

use fencepost::{Error, ErrorKind, connect};

async fn refused(url: &str) -> Error {
    connect(url).await.expect_err("it must be refused")
}

#[tokio::test]
async fn a_url_without_a_scheme_is_refused_with_an_example() {
    let error = refused("locks.db").await;
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.hint().unwrap().contains("sqlite:/"));
}

#[tokio::test]
async fn no_part_of_an_unknown_url_is_repeated() {
    for url in ["nosuch://user:hunter2@host/0", "hunter2:x", "hunter2"] {
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        let told = format!("{error} {error:?} {:?}", error.hint());
        assert!(!told.contains("hunter2"), "{told}");
    }
}

#[cfg(not(feature = "sqlite"))]
#[tokio::test]
async fn a_backend_that_is_not_built_in_names_its_feature() {
    let error = refused("sqlite:").await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("\"sqlite\""));
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn memory_of_one_name_is_one_storage() {
    let (one, same) = (connect("memory:shared").await.unwrap(), connect("memory:shared").await.unwrap());
    let other = connect("memory:other").await.unwrap();
    let guard = one.lock("a").acquire().await.unwrap();
    assert!(same.lock("a").try_acquire().await.unwrap().is_none());
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
    guard.release().await.unwrap();
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_takes_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let client = connect(format!("sqlite:{}/locks.db", folder.path().display())).await.unwrap();
    assert!(client.info().location.ends_with("locks.db"));
    client.lock("a").run(async |guard| assert!(guard.is_valid())).await.unwrap();
    client.close().await;
}

#[cfg(feature = "memory")]
#[tokio::test]
async fn work_under_a_lock_can_be_spawned() {
    let client = connect("memory:spawned").await.unwrap();
    let lock = client.lock("a");
    let work = tokio::spawn(async move {
        let add = |a: u64, b: u64| async move { a + b };
        lock.run(async |guard| {
            tokio::task::yield_now().await;
            add(guard.token().get(), 1).await
        })
        .await
    });
    assert!(work.await.unwrap().unwrap() > 1);
}
