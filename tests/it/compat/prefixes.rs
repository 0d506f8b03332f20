//! A store whose blooms have prefixes: `tests/fixtures/prefixes/`, of the first version with prefix extractors.
//!
//! `BLESS_FIXTURE=prefixes cargo test fixture_of_prefixes` writes it again. Do this only before its format
//! is released.

use siltstone::PrefixExtractor;

use super::*;

const THROUGH: PrefixExtractor = PrefixExtractor::Through(b'/');

/// Two tables of a fixed prefix, then two of another extractor.
fn write_prefixes() -> MemFs {
    let fs = MemFs::new();
    let db = builder(&fs).open().unwrap();
    let options = PartitionOptions::new().compression(Compression::None).level0_tables(100);
    for extractor in [PrefixExtractor::Fixed(3), THROUGH] {
        let p = db.partition_with("p", options.clone().prefix_extractor(extractor)).unwrap();
        for user in ["ann/", "cleo/"] {
            for n in 0..4 {
                p.put(format!("{user}{n}"), "mail").unwrap();
            }
            db.flush().unwrap();
        }
    }
    db.close().unwrap();
    fs
}

#[test]
fn a_fixture_of_prefixes_opens_and_spares_its_tables() {
    fixtures::bless("prefixes", write_prefixes);
    let dir = fixtures::on_disk("prefixes");
    let db = stepped(Arc::new(OsFs), dir.path(), 1).open().unwrap();
    let p = db.open_partition("p").unwrap();
    assert_eq!(p.options().get_prefix_extractor(), Some(THROUGH));
    assert_eq!((p.prefix("bob/").count(), p.prefix("ann/").count()), (0, 4));
    let stats = db.stats();
    assert_eq!((stats.prefix_asked_count, stats.prefix_spared_count), (4, 3));
    db.partition_with("p", p.options().prefix_extractor(PrefixExtractor::Fixed(3))).unwrap();
    assert_eq!((p.prefix("bob").count(), p.prefix("cle").count()), (0, 4));
    let stats = db.stats();
    assert_eq!((stats.prefix_asked_count, stats.prefix_spared_count), (8, 6));
    assert!(db.verify(VerifyOptions::default()).unwrap().is_sound());
}
