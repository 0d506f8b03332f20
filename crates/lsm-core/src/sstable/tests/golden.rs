//! Real bytes against the tables in `block.rs`, `footer.rs` and `properties.rs`.
