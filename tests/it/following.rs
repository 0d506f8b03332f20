//! Secondaries of a whole store: large values and verified reads while another process writes.

use std::path::Path;
use std::sync::Arc;

use lsm_core::fs::{Fs, MemFs};
use siltstone::large_values::{Parallelism, ReadBlobs};
use siltstone::secondary::{Level, ReadVerified, Secondary, Target};
use siltstone::{
    Compression, Db, ErrorKind, LargeValueOptions, MetaHiveOptions, Options, PartitionOptions,
    Readable,
};
use testkit::Rng;

use super::test_value_store::NoHooks;
use crate::store::stepped;

fn primary(fs: &MemFs) -> Db {
    stepped(Arc::new(fs.clone()), "/db", 1).open().unwrap()
}

fn secondary(fs: &MemFs, lease: bool) -> Secondary {
    Db::secondary_builder("/db").fs(Arc::new(fs.clone())).lease(lease).open().unwrap()
}

fn with_large_values() -> PartitionOptions {
    let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    PartitionOptions::new().large_values(large.chunk_bytes(4 << 10))
}

fn value(seed: u8) -> Vec<u8> {
    (0..5_000_u32).map(|n| seed.wrapping_add(n as u8)).collect()
}

#[test]
fn large_values_are_read_on_a_secondary_and_stay_while_a_view_reads_them() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("film", value(1)).unwrap();
    let follower = secondary(&fs, true);
    let followed = follower.partition("media").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    assert_eq!(view.get("film").unwrap().as_deref(), Some(&value(1)[..]));
    let reader = view.open_blob("film").unwrap().unwrap();
    let mut end = [0; 7];
    reader.read_exact_at(reader.len() - 7, &mut end).unwrap();
    assert_eq!(end, value(1)[4_993..]);
    assert_eq!(view.get_range("film", 100..110).unwrap().as_deref(), Some(&value(1)[100..110]));
    assert_eq!(view.stat_blob("film").unwrap().unwrap().len, 5_000);
    media.put("film", value(2)).unwrap();
    media.reclaim().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(view.get("film").unwrap().as_deref(), Some(&value(1)[..]), "the lease holds it");
    let now = followed.at(Level::Strong).unwrap();
    assert_eq!(now.get("film").unwrap().as_deref(), Some(&value(2)[..]));
    drop((view, reader));
    now.get("film").unwrap();
    assert!(follower.verify(Default::default()).unwrap().is_sound());
}

/// A value of twelve sub-blocks. Four of them do not compress.
fn compressible(seed: u64) -> Vec<u8> {
    let mut value = vec![seed as u8; 12 * 256 - 9];
    let mut rng = Rng::new(seed);
    value.chunks_mut(256).skip(1).step_by(3).for_each(|sub_block| rng.fill(sub_block));
    value
}

/// Values from before the compression, in tables and in the log; overwritten and moved while a view
/// reads.
#[test]
fn compressed_large_values_are_read_on_a_secondary_in_every_way() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("0", compressible(0)).unwrap();
    let follower = secondary(&fs, true);
    let followed = follower.partition("media").unwrap();
    followed.at(Level::Strong).unwrap().get("0").unwrap();
    let large = LargeValueOptions::new().threshold_bytes(256).sub_block_bytes(256);
    let large = large.chunk_bytes(4 << 10).compression(Compression::Lz4);
    db.partition_with("media", PartitionOptions::new().large_values(large)).unwrap();
    media.put("1", compressible(1)).unwrap();
    media.flush().unwrap();
    media.put("2", compressible(2)).unwrap();
    let view = followed.at(Level::Strong).unwrap();
    for n in 0..3_u8 {
        assert_read_apart(&view, &[b'0' + n], &compressible(n.into()));
        assert_eq!(view.get([b'0' + n]).unwrap().as_deref(), Some(&compressible(n.into())[..]));
    }
    let stats = ["0", "1"].map(|key| view.stat_blob(key).unwrap().unwrap());
    assert_eq!(stats.map(|stat| stat.stored_len == stat.len), [true, false]);
    assert!(stats[1].stored_len < 1500, "eight of twelve are compressed: {:?}", stats[1]);
    let read: Vec<_> = view.range(..).map(|entry| entry.unwrap().1.to_vec()).collect();
    assert_eq!(read, [0, 1, 2].map(compressible));
    media.put("1", compressible(11)).unwrap();
    media.delete("2").unwrap();
    media.reallocate(..).unwrap();
    db.wait_idle().unwrap();
    assert_read_apart(&view, b"1", &compressible(1));
    assert_read_apart(&view, b"2", &compressible(2));
    let now = followed.at(Level::Strong).unwrap();
    assert_read_apart(&now, b"1", &compressible(11));
    assert_eq!(now.get("2").unwrap(), None);
    drop(view);
    assert!(follower.verify(Default::default()).unwrap().is_sound());
    for entry in fs.list("/db".as_ref(), "").unwrap() {
        if entry.name.ends_with(".chunk") {
            fs.corrupt(&Path::new("/db").join(&entry.name), 64 + 48 + 1 + 20, 1).unwrap();
        }
    }
    let damaged = now.get("1").err().unwrap();
    assert!(damaged.is_corruption() && damaged.to_string().contains(".chunk"), "{damaged}");
}

/// The hooks of the application used to replace those of siltstone.
#[test]
fn a_secondary_with_hooks_of_the_application_reads_large_values() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("film", value(1)).unwrap();
    let builder = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).hooks(Arc::new(NoHooks));
    let follower = builder.open().unwrap();
    let view = follower.partition("media").unwrap().at(Level::Strong).unwrap();
    assert_eq!(view.get("film").unwrap().as_deref(), Some(&value(1)[..]));
}

/// Called as generic code does.
fn has(readable: &impl Readable, key: &str) -> bool {
    readable.contains(key).unwrap()
}

/// `Readable::contains` used to read the value.
#[test]
fn contains_reads_no_large_value() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("film", value(1)).unwrap();
    db.flush().unwrap();
    let snapshot = db.snapshot();
    let follower = secondary(&fs, true);
    let view = follower.partition("media").unwrap().at(Level::Strong).unwrap();
    let chunks = media.chunks().unwrap();
    fs.corrupt(&chunks[0].path, chunks[0].last_offset - 1000, 1).unwrap();
    assert!(media.get("film").is_err());
    assert!(has(&media, "film") && has(&snapshot.of(&media), "film") && has(&view, "film"));
    assert!(!has(&media, "song") && !has(&snapshot.of(&media), "song") && !has(&view, "song"));
}

/// A partition that was followed before it had large values used to be read without their store.
#[test]
fn a_partition_that_gets_other_hooks_is_read_with_them() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition("media").unwrap();
    media.put("film", "none").unwrap();
    let follower = secondary(&fs, true);
    let followed = follower.partition("media").unwrap();
    let before = followed.at(Level::Strong).unwrap();
    db.partition_with("media", with_large_values()).unwrap();
    for seed in 1..4 {
        media.put("film", value(seed)).unwrap();
        let now = followed.at(Level::Strong).unwrap();
        assert_eq!(now.get("film").unwrap().as_deref(), Some(&value(seed)[..]));
        media.flush().unwrap();
    }
    assert_eq!(before.get("film").unwrap().as_deref(), Some(&b"none"[..]), "it never changes");
    let plain = Db::secondary_builder("/db").fs(Arc::new(fs.clone())).open().unwrap();
    let now = plain.partition("media").unwrap().at(Level::Strong).unwrap();
    assert_eq!(now.get("film").unwrap().as_deref(), Some(&value(3)[..]));
}

#[test]
fn without_a_lease_a_deleted_chunk_file_is_reported() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("film", value(1)).unwrap();
    media.flush().unwrap();
    let follower = secondary(&fs, false);
    let followed = follower.partition("media").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    media.put("film", value(2)).unwrap();
    media.reclaim().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(view.get("film").err().unwrap().kind(), ErrorKind::FileGone);
    assert_eq!(followed.get("film").unwrap().as_deref(), Some(&value(2)[..]), "it looked again");
}

/// Each read of a large value continues with a newer state, as a get does.
#[test]
fn without_a_lease_values_are_read_where_they_have_moved_to() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    for n in 0..4 {
        media.put([n], &value(n)[..700]).unwrap();
    }
    media.flush().unwrap();
    let expected = &value(2)[..700];
    for way in 0..6 {
        // A new secondary has no chunk file open.
        let follower = secondary(&fs, false);
        let followed = follower.partition("media").unwrap();
        followed.sync(Target::Latest).unwrap();
        let view = followed.at(Level::Eventual).unwrap();
        media.reallocate(..).unwrap();
        db.wait_idle().unwrap();
        let mut buf = [0; 700];
        match way {
            0 => assert_eq!(&followed.get([2]).unwrap().unwrap()[..], expected),
            1 => {
                let reader = followed.open_blob([2]).unwrap().unwrap();
                reader.read_exact_at(0, &mut buf).unwrap();
                assert_eq!(buf, expected);
            }
            2 => {
                let len = followed.get_into([2], &mut buf, Parallelism::Auto).unwrap();
                assert_eq!((len, &buf[..]), (Some(700), expected));
            }
            3 => assert_eq!(&followed.get_ref([2]).unwrap().unwrap()[..], expected),
            4 => {
                let range = followed.get_range([2], 5..9).unwrap().unwrap();
                assert_eq!(&range[..], &expected[5..9]);
            }
            _ => assert_eq!(followed.stat_blob([2]).unwrap().unwrap().len, 700),
        }
        let gone = view.get_range([3], 0..9).err().unwrap();
        assert_eq!(gone.kind(), ErrorKind::FileGone, "the view stays as it is");
        assert_eq!(followed.get_range([9], 0..9).unwrap(), None);
    }
}

#[test]
fn large_values_that_a_secondary_reads_count_as_held_and_beyond_the_limit_its_lease_goes() {
    let fs = MemFs::new();
    let options = Options::new().leased_bytes_max(30_000);
    let db = stepped(Arc::new(fs.clone()), "/db", 1).options(options).open().unwrap();
    let media = db.partition_with("media", with_large_values()).unwrap();
    for n in 0..10 {
        media.put([n], value(n)).unwrap();
    }
    media.flush().unwrap();
    let follower = secondary(&fs, true);
    let followed = follower.partition("media").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    for n in 0..5 {
        media.delete([n]).unwrap();
    }
    media.reclaim().unwrap();
    db.wait_idle().unwrap();
    let leased = db.stats().leased_bytes;
    assert!((25_000..30_000).contains(&leased), "{leased} bytes of five values, with tables");
    assert_eq!(view.get([0]).unwrap().as_deref(), Some(&value(0)[..]));
    for n in 5..7 {
        media.delete([n]).unwrap();
    }
    media.reclaim().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().leased_bytes, 0);
    // The secondary did not read that value before, so that it has no file of it open.
    assert_eq!(view.get([3]).err().unwrap().kind(), ErrorKind::FileGone);
    assert_eq!(followed.at(Level::Strong).unwrap().get([0]).unwrap(), None, "it looked again");
    assert_eq!(media.space().unwrap().total_bytes, media.space().unwrap().live_bytes + 3 * 64);
}

/// A chunk file that only a view of a secondary reads is there after the next open as well.
#[test]
fn the_next_primary_keeps_the_large_values_that_a_secondary_reads() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let media = db.partition_with("media", with_large_values()).unwrap();
    media.put("film", value(1)).unwrap();
    media.flush().unwrap();
    let follower = secondary(&fs, true);
    let view = follower.partition("media").unwrap().at(Level::Strong).unwrap();
    media.put("film", value(2)).unwrap();
    media.reclaim().unwrap();
    drop(media);
    db.close().unwrap();
    let db = primary(&fs);
    db.wait_idle().unwrap();
    assert_eq!(view.get("film").unwrap().as_deref(), Some(&value(1)[..]));
}

#[test]
fn a_secondary_verifies_what_it_reads() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let options = PartitionOptions::new().metahive(MetaHiveOptions::default());
    let sealed = db.partition_with("sealed", options).unwrap();
    sealed.put("k", "v").unwrap();
    sealed.flush().unwrap();
    sealed.put("l", "w").unwrap();
    let follower = secondary(&fs, true);
    let view = follower.partition("sealed").unwrap().at(Level::Strong).unwrap();
    let here = view.verified_get("k").unwrap().unwrap();
    let there = sealed.verified_get("k").unwrap().unwrap();
    assert_eq!(here.value, there.value);
    assert_eq!(view.verified_range(..).map(Result::unwrap).count(), 2);
    // A bit of the table flips: the view reports it, and returns nothing.
    for name in fs.list_tables() {
        fs.corrupt(&Path::new("/db").join(name), 40, 1).unwrap();
    }
    let fresh = secondary(&fs, true);
    let view = fresh.partition("sealed").unwrap().at(Level::Strong).unwrap();
    assert!(view.verified_get("k").err().unwrap().is_corruption());
}

/// Keys that end in 0 or 1 are stored in another form. This calls every read.
#[test]
fn keys_that_end_in_0_or_1_are_read_by_every_call_and_on_a_secondary() {
    let fs = MemFs::new();
    let db = primary(&fs);
    let sealed = with_large_values().metahive(MetaHiveOptions::default().any_key(true));
    let p = db.partition_with("p", sealed).unwrap();
    let keys = [&b"k"[..], b"k\0", b"k\x01", b"k\0\0", b"k\x01\0", b"\0", b"\x01", &[1; 300]];
    // One half is in a table, the other half in the log; every second value is in a chunk file.
    for (n, key) in keys.iter().enumerate() {
        p.put(key, value_of_key(n)).unwrap();
        if n == keys.len() / 2 {
            db.flush().unwrap();
        }
    }
    let snapshot = db.snapshot();
    let follower = secondary(&fs, true);
    let followed = follower.partition("p").unwrap();
    let view = followed.at(Level::Strong).unwrap();
    for (n, key) in keys.iter().enumerate() {
        let value = value_of_key(n);
        let whole = Some(&value[..]);
        assert_eq!(p.get(key).unwrap().as_deref(), whole, "{key:?}");
        assert_eq!(snapshot.get(&p, key).unwrap().as_deref(), whole, "{key:?}");
        assert_eq!(followed.get(key).unwrap().as_deref(), whole, "{key:?}");
        assert!(p.contains(key).unwrap() && snapshot.contains(&p, key).unwrap(), "{key:?}");
        let verified = snapshot.verified_get(&p, key).unwrap().unwrap();
        assert_eq!(&*verified.value, value, "{key:?}");
        let explained = p.explain(key).unwrap();
        assert_eq!(explained.versions.len(), 1, "{explained}");
        assert!(!explained.is_damaged(), "{explained}");
        assert_read_apart(&p, key, &value);
        assert_read_apart(&snapshot.of(&p), key, &value);
        assert_read_apart(&view, key, &value);
        assert_eq!(&*view.verified_get(key).unwrap().unwrap().value, value, "{key:?}");
        assert_eq!(&*p.verified_get(key).unwrap().unwrap().value, value, "{key:?}");
    }
    // Their stored forms are keys that were never written.
    for key in [&b"\x01\0\0"[..], b"k\0\0\0", b"k\x01\x01"] {
        assert!(!p.contains(key).unwrap() && followed.get(key).unwrap().is_none(), "{key:?}");
        assert!(p.stat_blob(key).unwrap().is_none(), "{key:?}");
    }
}

/// Every second value is long enough for a chunk file.
fn value_of_key(n: usize) -> Vec<u8> {
    let len = if n.is_multiple_of(2) { 5_000 } else { 50 };
    value(n as u8)[..len].to_vec()
}

#[track_caller]
fn assert_read_apart(reader: &impl ReadBlobs, key: &[u8], value: &[u8]) {
    assert_eq!(reader.stat_blob(key).unwrap().unwrap().len, value.len() as u64, "{key:?}");
    let part = reader.get_range(key, 10..20).unwrap();
    assert_eq!(part.as_deref(), Some(&value[10..20]), "{key:?}");
    let blob = reader.open_blob(key).unwrap().unwrap();
    let mut read = vec![0; value.len()];
    blob.read_exact_at(0, &mut read).unwrap();
    assert_eq!(read, value, "{key:?}");
}

trait Tables {
    fn list_tables(&self) -> Vec<String>;
}

impl Tables for MemFs {
    fn list_tables(&self) -> Vec<String> {
        use lsm_core::fs::Fs;
        let names = self.list_names(Path::new("/db"), "").unwrap();
        names.into_iter().filter(|name| name.ends_with(".sst")).collect()
    }
}
