//! Identifies the boot of this host and the clock that this process reads. Only times of the same boot and time namespace can be
//! compared.

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whether processes of this boot can recognise each other.
pub(crate) fn has_boot_id() -> bool {
    std::fs::read_to_string(BOOT_ID).is_ok()
}

/// Returns a number that is practically unique to this boot.
pub(crate) fn boot_id() -> i64 {
    match std::fs::read_to_string(BOOT_ID) {
        Ok(boot) => fingerprint(&[boot.trim()]),
        // Without a boot id, every process counts as one of another boot: leases expire later, never too early.
        Err(_) => fingerprint(&[&format!("{:?}", fencepost_core::StorageId::random())]),
    }
}

/// Returns a number for the clock of this process, which a time namespace may have offset.
pub(crate) fn clock_id(boot_id: i64) -> i64 {
    let namespace = std::fs::read_link("/proc/self/ns/time").map(|link| link.display().to_string());
    fingerprint(&[&boot_id.to_string(), &namespace.unwrap_or_default()])
}

/// Returns the FNV-1a hash, which is the same in every version of this program.
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
