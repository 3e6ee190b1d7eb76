//! The test bench for locks in a dialect.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use fencepost_core::{Backend, LockName, Result};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::{StoredCounts, TestBench};

use crate::bench::{RedisBench, keys_like};

/// More than there are tests: a dialect's keys have no namespace, so each test has a database of its own.
const DATABASES: usize = 1000;

static SERVER: LazyLock<RedisServer> = LazyLock::new(|| {
    let databases = format!("databases {DATABASES}");
    RedisServer::start(&RedisServerConfig::plain().with_config(&databases))
});
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A database of its own.
pub(crate) struct DialectBench {
    pub(crate) redis: RedisBench,
    /// The prefix of the keys of locks.
    key_prefix: &'static str,
}

impl DialectBench {
    pub(crate) fn redis_py() -> Self {
        Self::with("dialect=redis-py")
    }

    pub(crate) fn python_redis_lock() -> Self {
        Self { key_prefix: "lock:", ..Self::with("dialect=python-redis-lock") }
    }

    /// The dialect of this URL option.
    pub(crate) fn with(option: &str) -> Self {
        let db = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { redis: RedisBench::in_database(db, &SERVER, &format!("&{option}")), key_prefix: "" }
    }

    async fn expires_soon(&self, key: &str) -> bool {
        let mut driver = self.redis.driver().await;
        let left: i64 = redis::cmd("PTTL").arg(key).query_async(&mut driver).await.expect("PTTL succeeds");
        left == -2 || (0..=1000).contains(&left)
    }
}

impl TestBench for DialectBench {
    fn yields_to_foreign_clients(&self) -> bool {
        true
    }

    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        self.redis.connect()
    }

    async fn peek(&self) -> StoredCounts {
        let mut left = StoredCounts::default();
        let ours = format!("{}:", self.redis.namespace());
        for key in keys_like(&mut self.redis.driver().await, "*").await {
            match key.strip_prefix(&ours) {
                // A signal that was not received expires soon.
                None if key.starts_with("lock-signal:") => {
                    left.others += usize::from(!self.expires_soon(&key).await);
                }
                None => left.holders += 1,
                Some("about" | "c") => {}
                Some(kind) if kind.starts_with("peer:t:") => left.tickets += 1,
                // The state of streaks and gaps expires soon.
                Some(kind) if ["peer:b:", "peer:g:", "peer:f:"].iter().any(|each| kind.starts_with(each)) => {
                    left.others += usize::from(!self.expires_soon(&key).await);
                }
                Some(_) => left.others += 1,
            }
        }
        left
    }

    async fn steal(&self, name: &LockName) {
        let mut driver = self.redis.driver().await;
        let stolen: redis::RedisResult<()> =
            redis::cmd("DEL").arg(format!("{}{name}", self.key_prefix)).query_async(&mut driver).await;
        stolen.expect("DEL succeeds");
    }

    async fn listeners(&self) -> Option<usize> {
        self.redis.listeners().await
    }

    async fn cut(&self) {
        self.redis.cut().await;
    }

    async fn heal(&self) {
        self.redis.heal().await;
    }

    fn crowd_size(&self) -> usize {
        200
    }
}
