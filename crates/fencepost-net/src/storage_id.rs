//! Validates what a server stores about its locks: their format, and the id of the backend.

use fencepost_core::{Error, ErrorKind, Result, StorageId};

/// Checks the stored format and id of the locks at `location` and returns the id. `known` is the format that this version
/// reads and writes; `elsewhere` says how to use another location: `another namespace: ?namespace=NAME`.
///
/// # Errors
/// If the locks have another format, or Fencepost did not write what is stored.
pub fn storage_id(
    location: &str,
    (format, id): (Option<u64>, Option<&str>),
    known: u64,
    elsewhere: &str,
) -> Result<StorageId> {
    let rejected = |message: String, hint: &str| {
        Err(Error::new(ErrorKind::Backend, message).with_hint(format!("{hint} {elsewhere}")))
    };
    let of_another_version = |format, age, hint| {
        let message = format!(
            "the locks in {location} have format {format}, of {age} fencepost than this one, which has format {known}"
        );
        rejected(message, hint)
    };
    match (format, id.and_then(StorageId::from_hex)) {
        (Some(format), Some(id)) if format == known => Ok(id),
        (Some(format), _) if format < known => of_another_version(
            format,
            "an older",
            "this one does not convert them: use the older fencepost for all clients, or",
        ),
        (Some(format), _) if format > known => {
            of_another_version(format, "a newer", "use the newer fencepost for all clients, or")
        }
        _ => rejected(
            format!("the stored format or id of the locks in {location} is invalid"),
            "if another program uses the same keys, use",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_of_the_known_format_have_an_id() {
        let id = StorageId::random();
        let hex = id.to_string();
        let read = |format, id| storage_id("x://h", (format, id), 2, "another namespace");
        assert_eq!(read(Some(2), Some(&*hex)).unwrap(), id);
        for (format, id, expected) in [
            (Some(1), Some(&*hex), "format 1, of an older fencepost than this one, which has format 2"),
            (Some(3), Some(&*hex), "format 3, of a newer fencepost than this one, which has format 2"),
            (Some(3), None, "format 3"),
            (Some(2), Some("1"), "invalid"),
            (Some(2), None, "invalid"),
            (None, Some(&*hex), "invalid"),
        ] {
            let error = read(format, id).unwrap_err();
            assert!(error.to_string().contains(expected), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.ends_with(" another namespace")), "{error:?}");
        }
    }
}
