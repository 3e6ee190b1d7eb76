//! What storages behind a network have in common: how their URLs are read, and encryption.
