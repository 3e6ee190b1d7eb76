//! Work that can fail, under a lock.

use std::io;
use std::time::Duration;

use fencepost::{Error, ErrorKind, LostReason};

use crate::stage::on_stage;

/// The error type of an application.
#[derive(Debug)]
enum AppError {
    Lock(Error),
    Io(io::Error),
}

impl From<Error> for AppError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl From<io::Error> for AppError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

async fn write(fails: bool) -> io::Result<u32> {
    std::future::ready(if fails { Err(io::Error::other("disk full")) } else { Ok(7) }).await
}

#[test]
fn question_marks_work_inside_and_the_lock_is_released_either_way() {
    on_stage("try-run", async |stage| {
        let lock = stage.client().lock("a").wait(Duration::ZERO);
        // The error type is inferred from where the result is returned.
        let inferred = async |fails| -> Result<u32, AppError> {
            lock.try_run(async |_| {
                let written = write(fails).await?;
                Ok(written + 1)
            })
            .await
        };
        assert_eq!(inferred(false).await.unwrap(), 8);
        assert!(matches!(inferred(true).await, Err(AppError::Io(error)) if error.to_string() == "disk full"));
        // It was released both times, and the closure can name its type.
        let named = lock.try_run(async |guard| -> Result<u64, AppError> { Ok(guard.token().into()) }).await;
        assert!(named.unwrap() > 0);
    });
}

#[test]
fn a_lock_that_is_busy_or_lost_is_an_error_of_the_callers_type() {
    on_stage("try-run-lost", async |stage| {
        let client = stage.client();
        let held = client.lock("a").acquire().await.unwrap();
        let lock = client.lock("a").wait(Duration::ZERO);
        let busy = lock.try_run(async |_| -> Result<(), AppError> { Ok(()) }).await;
        assert!(matches!(busy, Err(AppError::Lock(error)) if error.kind() == ErrorKind::WaitTimeout));
        held.release().await.unwrap();

        let broken = lock.try_run(async |guard| -> Result<(), AppError> {
            client.break_lock("a", guard.token()).await?;
            std::future::pending().await
        });
        let Err(AppError::Lock(error)) = broken.await else { panic!("the lock was broken") };
        assert_eq!(error.lost_reason(), Some(LostReason::Broken));
    });
}
