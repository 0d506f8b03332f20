//! The skiplist compared with crossbeam's, with readers of both while one thread inserts; and under
//! loom, where each order in which stores can be seen is tried.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone-tree --lib skiplist::tests::loom`

use std::sync::Arc;

use super::*;
use crate::codec::checksum64;
use crate::types::{EntryChecksum, EntryKind, SeqNo, Trailer};

fn list() -> SkipList {
    SkipList::new(Arc::new(SlabPool::new(0)), SharedPrefix::default())
}

fn trailer(seq: u64) -> Trailer {
    Trailer::new(SeqNo::new(seq).unwrap(), EntryKind::Value)
}

fn insert(writer: &mut Writer<'_>, key: &[u8], seq: u64, value: &[u8]) -> Inserted {
    writer.insert(&NewEntry {
        key,
        key_check: (checksum64(key) >> 32) as u32,
        trailer: trailer(seq),
        sum: EntryChecksum::new(checksum64(key), EntryKind::Value, value),
        value: NewValue::Copied(value),
    })
}

/// The newest version of `key` through `seq`: its number and value.
fn look(list: &SkipList, key: &[u8], seq: u64) -> Option<(u64, Vec<u8>)> {
    let seek = Trailer::seek(SeqNo::new(seq).unwrap());
    let version = list.find(key)?.newest().at_most(seek)?;
    Some((version.trailer().seq().get(), version.value().to_vec()))
}

#[cfg(not(loom))]
mod plain {
    use std::cmp::Reverse;
    use std::ops::Bound;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crossbeam_skiplist::SkipMap;

    use super::*;

    type Reference = SkipMap<(Vec<u8>, Reverse<u64>), Vec<u8>>;

    fn look_at_reference(map: &Reference, key: &[u8], seq: u64) -> Option<(u64, Vec<u8>)> {
        let from = (key.to_vec(), Reverse(seq));
        let entry = map.lower_bound(Bound::Included(&from))?;
        let (found, Reverse(seq)) = entry.key();
        (found == key).then(|| (*seq, entry.value().clone()))
    }

    /// The newest version through `seq` of `count` keys from `from` on.
    fn scan(list: &SkipList, from: &[u8], seq: u64, count: usize) -> Vec<(Vec<u8>, u64)> {
        let seek = Trailer::seek(SeqNo::new(seq).unwrap());
        let mut found = Vec::new();
        let mut node = list.at_or_after(from);
        while let Some(here) = node.filter(|_| found.len() < count) {
            assert!(here.key() >= from);
            if let Some(version) = here.newest().at_most(seek) {
                found.push((here.key().to_vec(), version.trailer().seq().get()));
            }
            node = here.next();
        }
        found
    }

    fn scan_reference(map: &Reference, from: &[u8], seq: u64, count: usize) -> Vec<(Vec<u8>, u64)> {
        let mut found: Vec<(Vec<u8>, u64)> = Vec::new();
        for entry in map.range((from.to_vec(), Reverse(u64::MAX))..) {
            let (key, Reverse(at)) = entry.key();
            if *at > seq || found.last().is_some_and(|(last, _)| last == key) {
                continue;
            }
            if found.len() == count {
                break;
            }
            found.push((key.clone(), *at));
        }
        found
    }

    fn random(state: &mut u64) -> u64 {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    fn random_key(state: &mut u64) -> Vec<u8> {
        let tail = random(state) % 400;
        // Some share a word, some are short, one is written all the time.
        match random(state) % 4 {
            0 => format!("shared/by/all/{tail}").into_bytes(),
            1 => tail.to_be_bytes()[6..].to_vec(),
            2 => format!("{tail}").into_bytes(),
            _ => b"hot".to_vec(),
        }
    }

    #[test]
    fn readers_see_what_they_would_in_crossbeams_list() {
        const ENTRIES: u64 = 30_000;
        let seed: u64 = std::env::var("SEED").map_or(11, |seed| seed.parse().unwrap());
        println!("SEED={seed}");
        let list = list();
        let reference = Reference::new();
        let visible = AtomicU64::new(0);
        let write = || {
            let mut state = seed;
            for seq in 1..=ENTRIES {
                if seq % 5 == 1 {
                    // As for a batch of five: the list and its order stay as they are.
                    let mut ahead = state;
                    let keys: [Vec<u8>; 5] = std::array::from_fn(|_| random_key(&mut ahead));
                    list.writer().prefetch_for(keys.iter().map(Vec::as_slice));
                }
                let key = random_key(&mut state);
                let value = seq.to_le_bytes().to_vec();
                reference.insert((key.clone(), Reverse(seq)), value.clone());
                assert_ne!(insert(&mut list.writer(), &key, seq, &value), Inserted::NotNewer);
                visible.store(seq, Ordering::Release);
            }
        };
        let read = |reader: u64| {
            let mut state = seed ^ reader << 32;
            let mut seq = 0;
            while seq < ENTRIES {
                seq = visible.load(Ordering::Acquire);
                let past = seq - random(&mut state) % (seq / 2 + 1);
                let key = random_key(&mut state);
                let seen = look(&list, &key, past);
                assert_eq!(seen, look_at_reference(&reference, &key, past));
                let other = random_key(&mut state);
                let found = list.find_all(&[&other, &key, b"", &key]);
                assert!(found[0].is_none_or(|node| node.key() == other) && found[2].is_none());
                assert!(
                    found[1].is_some() >= seen.is_some() && found[3].is_some() >= seen.is_some()
                );
                assert!(found[1].is_none_or(|node| node.key() == key) && found[4].is_none());
                if random(&mut state).is_multiple_of(16) {
                    let expected = scan_reference(&reference, &key, past, 5);
                    assert_eq!(scan(&list, &key, past, 5), expected);
                    let before = list.before(&key).map(|node| node.key().to_vec());
                    assert!(before.is_none_or(|before| before < key));
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(write);
            scope.spawn(|| read(1));
            scope.spawn(|| read(2));
        });
        let all = scan(&list, b"", ENTRIES, usize::MAX);
        assert_eq!(all, scan_reference(&reference, b"", ENTRIES, usize::MAX));
        let mut backwards = Vec::new();
        let mut node = list.last();
        while let Some(here) = node {
            backwards.push(here.key().to_vec());
            node = list.before(here.key());
        }
        backwards.reverse();
        assert_eq!(backwards, all.into_iter().map(|(key, _)| key).collect::<Vec<_>>());
    }

    /// The number of versions that [`VersionRef::at_most`] goes down by.
    fn steps(newest: VersionRef<'_>, trailer: Trailer) -> u32 {
        let mut at = newest;
        let mut steps = 0;
        while at.trailer() > trailer {
            let jump = at.jump().unwrap();
            at = if jump.trailer() > trailer { jump } else { at.older().unwrap() };
            steps += 1;
        }
        steps
    }

    #[test]
    fn any_version_of_a_key_is_found_in_logarithmic_steps() {
        const VERSIONS: u64 = 5000;
        let list = list();
        for n in 1..=VERSIONS {
            insert(&mut list.writer(), b"k", 2 * n, &n.to_le_bytes());
        }
        let newest = list.find(b"k").unwrap().newest();
        let steps_max = 3 * VERSIONS.ilog2();
        for seq in 0..=2 * VERSIONS + 1 {
            let found = newest.at_most(Trailer::seek(SeqNo::new(seq).unwrap()));
            let found = found.map(|version| version.trailer().seq().get());
            assert_eq!(found, Some(seq / 2 * 2).filter(|seq| *seq > 0));
            let above = newest.above(trailer(seq)).map(|version| version.trailer().seq().get());
            assert_eq!(above, Some(seq / 2 * 2 + 2).filter(|seq| *seq <= 2 * VERSIONS));
        }
        assert_eq!(newest.oldest().trailer().seq().get(), 2);
        assert!(steps(newest, trailer(2)) <= steps_max, "{}", steps(newest, trailer(2)));
        assert!(steps(newest, trailer(2468)) <= steps_max);
    }

    /// Walks along the list compensate for nodes that are missing in lanes, so reads alone do not
    /// reveal them.
    #[test]
    fn lanes_have_all_nodes_and_stay_few_whatever_the_order_of_the_keys() {
        const KEYS: u64 = if cfg!(miri) { 400 } else { 20_000 };
        let orders: [fn(u64) -> u64; 7] = [
            |n| n,
            |n| KEYS - n,
            |n| if n % 2 == 0 { n } else { 2 * KEYS - n },
            |n| n % 100 * KEYS + n,
            // Descending keys after a block that ascending ones filled, and after a full lane.
            |n| if n < 63 { n } else { 3 * KEYS - n },
            |n| if n < 63 * 63 { n } else { 3 * KEYS - n },
            |n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ];
        for (number, order) in orders.iter().enumerate() {
            // Some have one word for all keys.
            for prefix in [&b""[..], b"12345678"] {
                let list = list();
                let keys = (0..KEYS).map(|n| [prefix, &order(n).to_be_bytes()].concat());
                for (key, seq) in keys.clone().zip(1..) {
                    assert_eq!(insert(&mut list.writer(), &key, seq, b""), Inserted::Key);
                }
                for key in keys.clone() {
                    let hint = list.lanes.search(&key, list.shared.word(&key));
                    assert!(matches!(hint, Hint::At(_)), "order {number}");
                }
                assert!(list.lanes.count() <= 3, "{} lanes, order {number}", list.lanes.count());
                let bytes = list.writer().used_bytes() / KEYS;
                assert!(bytes < 150, "{bytes} bytes a key, order {number}");
                let key = keys.clone().nth(7).unwrap();
                let inserted = insert(&mut list.writer(), &key, KEYS + 1, b"");
                assert_eq!(inserted, Inserted::Version { depth: 1 });
            }
        }
    }

    #[test]
    fn an_ascending_fill_and_one_key_in_turn_with_others_keep_the_finger_right() {
        let list = list();
        let mut writer = list.writer();
        let mut seq = 0;
        let mut put = |key: u64| {
            seq += 1;
            insert(&mut writer, &key.to_be_bytes(), seq, b"");
        };
        for key in 1000..2000 {
            put(key);
            put(1500);
            put(3000 - key);
            put(key);
        }
        let mut node = list.first();
        for key in 1000..=2000_u64 {
            assert_eq!(node.unwrap().key(), key.to_be_bytes());
            node = node.unwrap().next();
        }
        assert!(node.is_none());
    }
}

#[cfg(loom)]
mod loom {
    use ::loom::sync::Arc;
    use ::loom::sync::atomic::{AtomicU64, Ordering};
    use ::loom::thread;

    use super::*;

    /// The first one is inserted before; the second one splits a block, and the third one moves it.
    const KEYS: [&[u8]; 3] = [b"m", b"c", b"b"];

    fn model(read: impl Fn(&SkipList, u64) + Send + Sync + Copy + 'static) {
        let mut builder = ::loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let list = Arc::new(list());
            insert(&mut list.writer(), KEYS[0], 1, b"1");
            insert(&mut list.writer(), b"z", 2, b"2");
            let visible = Arc::new(AtomicU64::new(2));
            let writing = list.clone();
            let published = visible.clone();
            let writer = thread::spawn(move || {
                for (n, key) in KEYS[1..].iter().enumerate() {
                    let seq = n as u64 + 3;
                    insert(&mut writing.writer(), key, seq, b"v");
                    published.store(seq, Ordering::Release);
                }
                insert(&mut writing.writer(), KEYS[0], 5, b"5");
                published.store(5, Ordering::Release);
            });
            read(&list, visible.load(Ordering::Acquire));
            writer.join().unwrap();
            read(&list, 5);
        });
    }

    #[test]
    fn what_was_published_is_found() {
        model(|list, visible| {
            for (n, key) in KEYS.iter().enumerate() {
                let seq = if n == 0 { 1 } else { n as u64 + 2 };
                let expected = if n == 0 && visible == 5 { Some(5) } else { Some(seq) };
                if seq <= visible {
                    assert_eq!(look(list, key, visible).map(|(seq, _)| seq), expected);
                } else {
                    assert_eq!(look(list, key, visible), None);
                }
            }
        });
    }

    #[test]
    fn seeks_split_the_keys() {
        model(|list, visible| {
            let found = list.at_or_after(b"c").unwrap();
            assert!(found.key() >= &b"c"[..]);
            if visible >= 3 {
                assert_eq!(found.key(), b"c");
            }
            assert!(list.before(b"c").is_none_or(|node| node.key() < &b"c"[..]));
        });
    }

    #[test]
    fn backwards_passes_over_nothing_that_was_published() {
        model(|list, visible| {
            let mut keys = Vec::new();
            let mut node = list.last();
            while let Some(here) = node {
                keys.push(here.key().to_vec());
                node = list.before(here.key());
            }
            assert!(keys.is_sorted_by(|a, b| a > b));
            for (n, key) in KEYS.iter().enumerate().skip(1) {
                assert!(n as u64 + 2 > visible || keys.contains(&key.to_vec()));
            }
        });
    }
}
