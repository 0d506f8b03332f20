//! The `siltstone` command.
fn main() {}
