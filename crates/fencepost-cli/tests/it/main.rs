//! Real processes of the real binary.
