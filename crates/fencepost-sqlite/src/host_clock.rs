//! Which clock this process reads: moments of the same boot and time namespace can be compared, others cannot.

/// The clock of this process as a number that no other boot or time namespace has, for practical purposes.
pub(crate) fn clock_id() -> i64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let namespace = std::fs::read_link("/proc/self/ns/time").map(|link| link.display().to_string());
    match boot {
        Ok(boot) => fingerprint(&[boot.trim(), &namespace.unwrap_or_default()]),
        // Without a boot id every process times the leases of all others by its own clock: slower, never too early.
        Err(_) => {
            i64::from_be_bytes(fencepost_core::Owner::random().to_bytes()[..8].try_into().unwrap_or([1; 8]))
        }
    }
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
        assert_eq!(clock_id(), clock_id());
        assert_ne!(fingerprint(&["a", "b"]), fingerprint(&["ab", ""]));
    }
}
