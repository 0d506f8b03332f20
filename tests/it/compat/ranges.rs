//! A store with deleted ranges of keys: `tests/fixtures/ranges/`, of the first version that could delete one. One
//! range is in the manifest, above tables that a snapshot kept; others are only in the log.
//!
//! `BLESS_FIXTURE=ranges cargo test fixture_of_deleted_ranges` writes it again. Do this only before its format is
//! released.

use super::clear::{check_erased, write_erased};
use super::*;

fn write_ranges() -> MemFs {
    write_erased(
        |batch, flushed| batch.delete_range(flushed, [2u8]..[28]),
        |batch, logged| batch.delete_range(logged, [1u8]..=[20]).delete_range(logged, [25u8]..),
    )
}

#[test]
fn a_fixture_of_deleted_ranges_opens_and_shows_nothing_below() {
    fixtures::bless("ranges", write_ranges);
    check_erased("ranges", &[0, 1, 3, 28, 29], &[0, 4, 21, 22, 23, 24]);
}
