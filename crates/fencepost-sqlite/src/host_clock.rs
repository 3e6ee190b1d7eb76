//! Which boot of which machine this is, and which clock this process reads: moments of the same boot and time namespace
//! can be compared, others cannot.

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whether two processes of this boot can know that they are.
pub(crate) fn knows_its_boot() -> bool {
    std::fs::read_to_string(BOOT_ID).is_ok()
}

/// This boot as a number that no other has, for practical purposes.
pub(crate) fn boot_id() -> i64 {
    match std::fs::read_to_string(BOOT_ID) {
        Ok(boot) => fingerprint(&[boot.trim()]),
        // Without a boot id every process is taken for one of another boot: slower, never too early.
        Err(_) => fingerprint(&[&format!("{:?}", fencepost_core::StorageId::random())]),
    }
}

/// The clock of this process: a time namespace may have moved it.
pub(crate) fn clock_id(boot_id: i64) -> i64 {
    let namespace = std::fs::read_link("/proc/self/ns/time").map(|link| link.display().to_string());
    fingerprint(&[&boot_id.to_string(), &namespace.unwrap_or_default()])
}

/// FNV-1a, which is the same in every version of this program.
fn fingerprint(parts: &[&str]) -> i64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in parts.iter().flat_map(|part| part.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_process_reads_the_same_clock() {
        assert_eq!(clock_id(boot_id()), clock_id(boot_id()));
        assert_ne!(clock_id(1), clock_id(2));
        assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab", ""]));
    }
}
