//! Encryption at rest for siltstone: a file system that encrypts and authenticates every file.
//!
//! [`EncryptedFs`] wraps the file system of a database, and asks a [`KeyProvider`] of the application for keys.
//! [`KeyRing`] is a provider that holds keys in memory, and reads them from a file. The engine above is as without
//! encryption: snapshots, secondaries, checkpoints, backups and all other parts work through the same file system.
//!
//! [`ObjectCipher`] does the same for the objects of a store; `siltstone-remote` uses it.
//!
//! `docs/encryption.md` of the repository describes what is hidden and what is not. `header.rs` and `record.rs` have
//! the bytes of a file, `object.rs` those of an object.
//!
//! This crate has no code of its own for ciphers. It uses XChaCha20-Poly1305 of the crate `chacha20poly1305`, and
//! random numbers of the operating system.

mod cipher;
mod file;
mod fs;
mod header;
mod keys;
mod object;
mod pages;
mod record;
mod rewrap;
#[cfg(test)]
mod tests;

pub use fs::EncryptedFs;
pub use keys::{EncryptionKey, KEY_BYTES, KEY_ID_BYTES_MAX, KeyId, KeyProvider, KeyRing};
pub use object::{OBJECT_PAGE_BYTES, ObjectCipher, sealed_len, sealed_range, unsealed_len};
pub use rewrap::{FileKeys, RewrapSummary};
