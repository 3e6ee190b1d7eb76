//! What a storage says about itself: in which format its locks are, and which storage it is.

use fencepost_core::{Error, ErrorKind, Result, StorageId};

/// Checks the format and the id that the storage at `location` has stored, and returns the id. `known` is the format that
/// this program reads and writes; `elsewhere` says how to use another place: `another namespace: ?namespace=NAME`.
///
/// # Errors
/// If the locks have another format, or what is stored is not what Fencepost writes.
pub fn storage_id(
    location: &str,
    (format, id): (Option<u64>, Option<&str>),
    known: u64,
    elsewhere: &str,
) -> Result<StorageId> {
    let refused = |message: String, hint: &str| {
        Err(Error::new(ErrorKind::Backend, message).with_hint(format!("{hint} {elsewhere}")))
    };
    match (format, id.and_then(StorageId::from_hex)) {
        (Some(format), Some(id)) if format == known => Ok(id),
        (Some(format), _) if format != known => refused(
            format!("the locks in {location} have format {format}; this version knows format {known}"),
            "use one version of Fencepost for all clients, or",
        ),
        _ => refused(
            format!("what {location} says about its locks makes no sense"),
            "does something else use its place? consider",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_the_known_format_has_an_id() {
        let id = StorageId::random();
        let hex = id.to_string();
        let read = |format, id| storage_id("x://h", (format, id), 2, "another namespace");
        assert_eq!(read(Some(2), Some(&*hex)).unwrap(), id);
        for (format, id, said) in [
            (Some(3), Some(&*hex), "format 3"),
            (Some(3), None, "format 3"),
            (Some(2), Some("1"), "no sense"),
            (Some(2), None, "no sense"),
            (None, Some(&*hex), "no sense"),
        ] {
            let error = read(format, id).unwrap_err();
            assert!(error.to_string().contains(said), "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.ends_with(" another namespace")), "{error:?}");
        }
    }
}
