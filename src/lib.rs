//! Embeddable key-value storage.
