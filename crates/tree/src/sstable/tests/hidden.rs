//! Tables with hidden entries against a sorted list, seen and unseen.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{at, check, entries, user_key};
use super::{Entries, IDENTITY, entry, open, options};
use crate::codec::Malformed;
use crate::iter::InternalIter;
use crate::limits::INTERNAL_KEY_BYTES_MAX;
use crate::options::Compression;
use crate::sstable::block::Block;
use crate::sstable::block_builder::BlockBuilder;
use crate::sstable::index::INDEX_BYTES_MAX;
use crate::sstable::stored::{Extent, StoredPayload};
use crate::sstable::test_file::TestFile;
use crate::sstable::{
    EntryAt, RawMode, SstOptions, SstReader, SstSummary, SstWriter, TableBlock, bloom_hash,
};
use crate::types::{EntryKind, KeyRef, SeqNo, Trailer};

/// Every way to read that returns all entries of a sound table.
pub(super) const MODES: [RawMode; 4] =
    [RawMode::Cached, RawMode::Suspects, RawMode::Streaming, RawMode::Scrub];

/// All entries of a table in internal order, and which of them are hidden.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub all: Entries,
    pub hidden: Vec<bool>,
}

impl Table {
    /// The visible entries with the hidden ones that `payload` gives them.
    pub(super) fn new(
        visible: Entries,
        suffix: &[u8],
        payload: impl Fn(usize, SeqNo) -> Option<Vec<u8>>,
    ) -> Table {
        let mut both: Vec<_> = Vec::new();
        for (i, (key, value)) in visible.into_iter().enumerate() {
            if let Some(payload) = payload(i, key.trailer.seq()) {
                let user = [&*key.user, suffix].concat();
                let seq = key.trailer.seq().get();
                both.push((entry(&user, seq, EntryKind::Tombstone, &payload), true));
            }
            both.push(((key, value), false));
        }
        // Of a visible and a hidden entry with one key the visible one stays.
        both.sort_by(|a, b| a.0.0.cmp(&b.0.0).then(a.1.cmp(&b.1)));
        both.dedup_by(|a, b| a.0.0 == b.0.0);
        let (all, hidden) = both.into_iter().unzip();
        Table { all, hidden }
    }

    pub(super) fn visible(&self) -> Entries {
        let visible = self.all.iter().zip(&self.hidden).filter(|(_, hidden)| !**hidden);
        visible.map(|(entry, _)| entry.clone()).collect()
    }

    /// Writes it; `cut` says for each entry whether a block may end before it.
    pub(super) fn write(
        &self,
        suffix: &[u8],
        options: SstOptions,
        index_bytes_max: usize,
        cut: impl Fn(usize) -> bool,
    ) -> (Vec<u8>, SstSummary, u64) {
        let file = Arc::new(TestFile::default());
        let base = self.all.iter().map(|(key, _)| key.trailer.seq()).min().unwrap();
        let mut writer =
            SstWriter::with_index_limit(file.clone(), IDENTITY, base, options, index_bytes_max);
        writer.set_hidden_suffix(suffix);
        for (i, ((key, value), hidden)) in self.all.iter().zip(&self.hidden).enumerate() {
            writer.allow_cut(cut(i));
            if *hidden {
                writer.add_hidden(key.as_ref(), value).unwrap();
            } else {
                writer.add(key.as_ref(), value).unwrap();
            }
        }
        let forced = writer.ended_blocks().iter().filter(|block| block.is_forced).count() as u64;
        let summary = writer.finish().unwrap();
        let bytes = file.0.lock().clone();
        (bytes, summary, forced)
    }
}

/// Every raw walk, against the list.
fn check_raw(reader: &Arc<SstReader>, table: &Table, targets: &[(Vec<u8>, u64)]) {
    let all = &table.all;
    for mode in MODES {
        let mut iter = reader.raw_iter(mode);
        assert!(!iter.valid());
        iter.seek(None).unwrap();
        let mut origins = Vec::new();
        for (expected, hidden) in all.iter().zip(&table.hidden) {
            assert_eq!(at(&iter).as_ref(), Some(expected));
            assert_eq!(iter.hidden(), *hidden);
            origins.push(iter.origin());
            iter.next().unwrap();
        }
        assert!(!iter.valid());
        iter.seek_before(None).unwrap();
        for (i, expected) in all.iter().enumerate().rev() {
            assert_eq!(at(&iter).as_ref(), Some(expected));
            assert_eq!((iter.hidden(), iter.origin()), (table.hidden[i], origins[i]));
            iter.prev().unwrap();
        }
        assert!(!iter.valid() && iter.damage().is_empty());
        assert!(origins.windows(2).all(|two| two[0] < two[1]));
        assert!(origins.iter().all(|(_, _, is_verified)| *is_verified));
    }
    let mut iter = reader.raw_iter(RawMode::default());
    let own = all.iter().map(|(key, _)| (key.user.to_vec(), key.trailer.raw()));
    for (user, raw) in own.chain(targets.iter().cloned()) {
        let seq = SeqNo::new(raw >> 8).unwrap();
        for target in [KeyRef::seek(&user, seq), KeyRef::new(&user, Trailer::LAST)] {
            let i = all.partition_point(|(key, _)| key.as_ref() < target);
            iter.seek(Some(target)).unwrap();
            assert_eq!(at(&iter), all.get(i).cloned(), "{target:?}");
            if i < all.len() {
                iter.next().unwrap();
                assert_eq!(at(&iter), all.get(i + 1).cloned());
            }
            iter.seek_before(Some(target)).unwrap();
            assert_eq!(at(&iter), i.checked_sub(1).map(|i| all[i].clone()), "{target:?}");
            if i > 0 {
                iter.prev().unwrap();
                assert_eq!(at(&iter), i.checked_sub(2).map(|i| all[i].clone()));
            }
        }
    }
}

/// Every look-up with its hidden entry, against the list.
fn check_look_ups(reader: &Arc<SstReader>, table: &Table, suffix: &[u8]) {
    let mut raw = reader.raw_iter(RawMode::default());
    raw.seek(None).unwrap();
    // Block, and place in it.
    let mut places = Vec::new();
    for _ in &table.all {
        places.push(raw.origin());
        raw.next().unwrap();
    }
    let mut buffer = Vec::new();
    let mut last: Option<&[u8]> = None;
    for (i, (key, value)) in table.all.iter().enumerate() {
        let user = &*key.user;
        let seq = key.trailer.seq();
        if table.hidden[i] {
            continue;
        }
        let is_first_of_seq = i == 0 || table.all[i - 1].0.user != key.user || {
            table.all[i - 1].0.trailer.seq() != seq || table.hidden[i - 1]
        };
        let mut blocks = Vec::new();
        for is_fresh in [false, true] {
            let looked = reader.look_up(user, bloom_hash(user), seq, is_fresh).unwrap().unwrap();
            let found = looked.entry.unwrap();
            let block = looked.block;
            if is_first_of_seq {
                assert_eq!((found.stored, &*found.value), (key.trailer, &value[..]));
                let (at, again, bytes) = block.entry(found.at.index(), &mut buffer);
                assert_eq!((at, again, bytes), (found.at, key.as_ref(), &value[..]));
                assert_eq!((block.offset(), block.place(at)), (places[i].0, places[i].1));
                if at.index() > 0 {
                    assert_eq!(block.is_version(at.index()), last == Some(user));
                }
                check_hidden_of(&block, found.at, key.as_ref(), (table, &places), suffix);
            }
            blocks.push(block);
        }
        let mut again = blocks[0].clone();
        again.reread().unwrap();
        assert_eq!((again.len(), again.is_empty()), (blocks[1].len(), false));
        last = Some(user);
    }
}

fn check_hidden_of(
    block: &TableBlock<'_>,
    at: EntryAt,
    key: KeyRef<'_>,
    (table, places): (&Table, &[(u64, u32, bool)]),
    suffix: &[u8],
) {
    let seq = key.trailer.seq();
    let hidden_key = entry(&[key.user, suffix].concat(), seq.get(), EntryKind::Tombstone, &[]).0;
    let its = table.all.binary_search_by(|(other, _)| other.cmp(&hidden_key));
    let its = its.ok().filter(|its| table.hidden[*its]);
    let hidden = block.hidden_of(at, key.user, seq).unwrap();
    assert_eq!(hidden.is_some(), its.is_some(), "{key:?}");
    let (Some(hidden), Some(its)) = (hidden, its) else { return };
    let payload = &table.all[its].1;
    assert_eq!(&hidden.to_vec(), payload);
    assert_eq!(hidden.after_seq(), payload.get(8..));
    assert_eq!(hidden.is_next_to_owner(), places[its].0 == block.offset());
}

fn seq(n: u64) -> SeqNo {
    SeqNo::new(n).unwrap()
}

/// The payload of a hidden entry: none, the sequence number and more, or anything.
fn payload(choice: u8, seq: SeqNo) -> Option<Vec<u8>> {
    let seq = seq.get().to_le_bytes();
    match choice % 7 {
        0 => None,
        1 => Some(vec![]),
        2 => Some(vec![choice; usize::from(choice)]),
        3 => Some(seq.to_vec()),
        // Short ones, and the first that is too long for that.
        4 => Some([&seq[..], &vec![choice; usize::from(choice % 17)]].concat()),
        _ => Some([&seq[..], &[choice; 16]].concat()),
    }
}

/// Choices of payloads, any or the same many times, so that there are blocks with a column, blocks whose
/// column is given up, and blocks without one.
pub(super) fn choices() -> impl Strategy<Value = Vec<u8>> {
    let runs = vec((any::<u8>(), 1..40_usize), 1..6);
    let runs = runs.prop_map(|runs| {
        runs.into_iter().flat_map(|(choice, count)| std::iter::repeat_n(choice, count)).collect()
    });
    prop_oneof![vec(any::<u8>(), 1..30), runs]
}

/// Keys whose tails are zeros and ones, so that many lie between another and its hidden key.
fn tailed() -> impl Strategy<Value = Entries> {
    let tail = vec(prop_oneof![3 => Just(0_u8), 3 => Just(1), 1 => Just(2)], 0..6);
    let key =
        (prop_oneof![Just(b"k".to_vec()), Just(b"kk".to_vec()), vec(any::<u8>(), 0..12)], tail);
    let versions = vec((0..60_u64, vec(any::<u8>(), 0..30)), 1..12);
    vec((key, versions), 1..40).prop_map(|keys| {
        let mut all: Entries = Vec::new();
        for ((head, tail), versions) in keys {
            let user = [head, tail].concat();
            all.extend(versions.iter().map(|(seq, v)| entry(&user, *seq, EntryKind::Value, v)));
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|a, b| a.0 == b.0);
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn hidden_entries_are_seen_by_raw_walks_and_by_nothing_else(
        visible in prop_oneof![tailed(), entries()],
        choices in choices(),
        cuts in vec(any::<bool>(), 1..10),
        targets in vec((user_key(), any::<u64>()), 0..20),
        suffix in prop_oneof![4 => Just(vec![1]), 1 => Just(vec![0]), 1 => vec(any::<u8>(), 1..10)],
        block_bytes in prop_oneof![Just(64_u32), Just(300), Just(4096)],
        lz4: bool,
        index_bytes_max in prop_oneof![Just(0), Just(300), Just(INDEX_BYTES_MAX)],
    ) {
        let table = Table::new(visible, &suffix, |i, seq| payload(choices[i % choices.len()], seq));
        let visible = table.visible();
        let compression = if lz4 { Compression::Lz4 } else { Compression::None };
        let (bytes, summary, forced) = table
            .write(&suffix, options(block_bytes, compression), index_bytes_max, |i| cuts[i % cuts.len()]);
        prop_assert_eq!(forced, 0);
        let reader = open(&bytes, Some((summary.file_bytes, summary.file_hash))).unwrap();
        check(&reader, &visible, &targets);
        check_raw(&reader, &table, &targets);
        check_look_ups(&reader, &table, &suffix);
        let hidden = table.hidden.iter().filter(|hidden| **hidden).count() as u64;
        prop_assert_eq!((summary.hidden, reader.properties().hidden), (hidden, hidden));
        prop_assert_eq!(summary.entries, visible.len() as u64);
        prop_assert_eq!(reader.properties().entries(), summary.entries);
        prop_assert_eq!(&summary.smallest, &visible[0].0);
        prop_assert_eq!(&summary.largest, &visible.last().unwrap().0);
        prop_assert_eq!(&*summary.largest.user, &*reader.properties().largest);
        let lens: u64 = reader.blocks().map(|block| block.unwrap().1).sum();
        prop_assert_eq!(lens, reader.properties().data_bytes);
        prop_assert_eq!(reader.blocks().count() as u64, reader.properties().data_blocks);
    }
}

#[test]
fn a_group_is_not_parted_until_it_passes_a_bound() {
    // Versions of one key and their hidden entries, so many that they need three blocks.
    let count = 80_000_u64;
    let mut visible = vec![entry(b"a", 1, EntryKind::Value, b"first")];
    visible.extend((1..=count).rev().map(|seq| entry(b"hot", seq, EntryKind::Value, b"v")));
    visible.push(entry(b"z", 1, EntryKind::Value, b"last"));
    let table = Table::new(visible, &[1], |i, seq| {
        (i > 0).then(|| [&seq.get().to_le_bytes()[..], &[7; 16]].concat())
    });
    let plain = options(4096, Compression::None);
    let (bytes, summary, forced) = table.write(&[1], plain, INDEX_BYTES_MAX, |i| i == 0);
    let reader = open(&bytes, None).unwrap();
    assert!(forced >= 2);
    assert_eq!(reader.blocks().count() as u64, forced + 1);
    let most = reader.properties().block_bytes_max;
    assert!(most <= (1 << 20) + 4096, "{most}");
    assert_eq!((summary.entries, summary.hidden), (count + 2, count + 1));
    let mut visible = reader.iter(crate::sstable::ReadMode::Cached);
    let mut raw = reader.raw_iter(RawMode::Streaming);
    raw.seek(None).unwrap();
    visible.seek(None).unwrap();
    let mut hollow = 0;
    for ((key, value), hidden) in table.all.iter().zip(&table.hidden) {
        assert_eq!((raw.key(), raw.value()), (key.as_ref(), &value[..]));
        hollow += usize::from(*hidden && raw.origin().1 == 0);
        raw.next().unwrap();
        if !hidden {
            assert_eq!(visible.key(), key.as_ref());
            visible.next().unwrap();
        }
    }
    assert!(hollow > 0, "a block begins with a hidden entry");
    assert!(!raw.valid() && !visible.valid());
    visible.seek_before(None).unwrap();
    visible.prev().unwrap();
    assert_eq!(visible.key(), entry(b"hot", 1, EntryKind::Value, b"").0.as_ref());
    for seq in [1, 2, count / 2, count] {
        let seq = SeqNo::new(seq).unwrap();
        let found = reader.get(b"hot", crate::sstable::bloom_hash(b"hot"), seq).unwrap();
        assert_eq!(found.unwrap().0.seq(), seq);
    }
    let mut apart = 0;
    for seq in (1..=count).step_by(997).chain([count / 2, count]).chain(1..20) {
        let seq = SeqNo::new(seq).unwrap();
        let looked = reader.look_up(b"hot", bloom_hash(b"hot"), seq, false).unwrap().unwrap();
        let at = looked.entry.unwrap().at;
        let hidden = looked.block.hidden_of(at, b"hot", seq).unwrap().unwrap();
        assert_eq!(hidden.after_seq(), Some(&[7; 16][..]));
        assert_eq!(hidden.to_vec()[..8], seq.get().to_le_bytes());
        apart += usize::from(!hidden.is_next_to_owner());
    }
    assert!(apart > 0, "a cut parts a version from its hidden entry");
    // Where cuts are allowed, only hidden entries stay with what is before them.
    let (bytes, _, forced) = table.write(&[1], plain, INDEX_BYTES_MAX, |_| true);
    let reader = open(&bytes, None).unwrap();
    assert!(forced > 0 && reader.blocks().count() > 90);
}

/// A block of hidden and visible entries of the suffix 1, in any order, as far as it parses.
fn try_block_of(entries: &[(&[u8], u64, bool, &[u8])]) -> Result<Block, Malformed> {
    let mut builder = BlockBuilder::new(SeqNo::ZERO);
    builder.expect_hidden();
    for (key, seq, hidden, value) in entries {
        let kind = if *hidden { EntryKind::Tombstone } else { EntryKind::Value };
        let key = KeyRef::new(key, Trailer::new(SeqNo::new(*seq).unwrap(), kind));
        match hidden {
            true => builder.add_hidden(key, 1, value, false),
            false => builder.add(key, value),
        }
    }
    let last = entries.iter().rfind(|(_, _, hidden, _)| !hidden).unwrap().0;
    let bytes: Arc<[u8]> = builder.finish(last).into();
    let len = bytes.len();
    Block::parse(StoredPayload { bytes, len }, Some(&[1]))
}

fn block_of(entries: &[(&[u8], bool, &[u8])]) -> Block {
    let entries: Vec<_> = entries.iter().map(|(key, hidden, v)| (*key, 5, *hidden, *v)).collect();
    try_block_of(&entries).unwrap()
}

/// Checks that a block of these keys, sequence numbers and hidden marks is accepted, or refused.
fn check_order(entries: &[(&[u8], u64, bool)], is_in_order: bool) {
    let all: Vec<_> = entries.iter().map(|(key, seq, h)| (*key, *seq, *h, &b"v"[..])).collect();
    assert_eq!(try_block_of(&all).is_ok(), is_in_order, "{entries:?}");
}

#[test]
fn a_block_is_refused_unless_hidden_entries_are_in_their_order_too() {
    for stem in [&b""[..], b"long enough for more than a word"] {
        let k = [stem, b"k"].concat();
        let plus = [stem, b"k\x01"].concat();
        let zero = [stem, b"k\0a"].concat();
        let zero_plus = [stem, b"k\0a\x01"].concat();
        for (after, is_in_order) in [
            ([stem, b"k\0a"].concat(), false),
            ([stem, b"k\0"].concat(), false),
            ([stem, b"k\x01a"].concat(), true),
            ([stem, b"k\x02"].concat(), true),
            ([stem, b"l"].concat(), true),
        ] {
            check_order(&[(&k, 5, false), (&plus, 5, true), (&after, 9, false)], is_in_order);
        }
        // Versions of one key, and their hidden entries after all of them.
        check_order(&[(&k, 5, false), (&plus, 5, true), (&k, 4, false)], false);
        let versions = [(&k[..], 5, false), (&k, 4, false)];
        check_order(&[&versions[..], &[(&plus, 5, true), (&plus, 4, true)]].concat(), true);
        check_order(&[&versions[..], &[(&plus, 4, true), (&plus, 5, true)]].concat(), false);
        check_order(&[&versions[..], &[(&plus, 4, true), (&plus, 4, true)]].concat(), false);
        check_order(&[(&k, 5, false), (&plus, 5, true), (&plus, 5, true)], false);
        // A pair between a key and its hidden entry.
        let pair = [(&zero[..], 6, false), (&zero_plus, 6, true)];
        check_order(&[&[(&k[..], 5, false)], &pair[..], &[(&plus, 5, true)]].concat(), true);
        check_order(&[&[(&k[..], 5, false), (&plus, 5, true)], &pair[..]].concat(), false);
        check_order(
            &[(&k, 5, false), (&zero, 6, false), (&plus, 5, true), (&zero_plus, 6, true)],
            false,
        );
    }
}

#[test]
fn hidden_entries_that_do_not_fit_are_refused() {
    let block = block_of(&[(b"b", false, b"v"), (b"b\x01", true, b"of b"), (b"c", false, b"v")]);
    let at = block.hidden_range(0).start;
    let len = block.bytes().len();
    for wrong in [5, 0x7f, 0x80, 0xff] {
        let mut bytes = block.bytes().to_vec();
        bytes[at + 1] = wrong;
        assert!(Block::parse(StoredPayload { bytes: bytes.into(), len }, Some(&[1])).is_err());
    }
    let short = [&5_u64.to_le_bytes()[..], b"of b"].concat();
    let block = block_of(&[(b"b", false, b"v"), (b"b\x01", true, &short), (b"c", false, b"v")]);
    let at = block.hidden_range(0).start;
    let len = block.bytes().len();
    assert_eq!(block.bytes()[at..at + 5], *b"\xf4of b");
    // Any other length, and any other form with a length in its header.
    for wrong in (0..=0xff).filter(|wrong| *wrong != 0xf4) {
        let mut bytes = block.bytes().to_vec();
        bytes[at] = wrong;
        let parsed = Block::parse(StoredPayload { bytes: bytes.into(), len }, Some(&[1]));
        assert!(parsed.is_err(), "{wrong:#x}");
    }
    let key = vec![b'k'; INTERNAL_KEY_BYTES_MAX];
    let longer = [&key[..], &[1]].concat();
    assert!(try_block_of(&[(&key, 5, false, b"v"), (&longer, 5, true, b"v")]).is_err());
    assert!(try_block_of(&[(&key[1..], 5, false, b"v"), (&longer[1..], 5, true, b"v")]).is_ok());
}

#[test]
fn what_lies_after_the_entries_is_not_taken_for_a_hidden_one() {
    for len in 0..600 {
        // The offset of the visible entry is what stands after it, and may look like a head.
        let block = block_of(&[(b"a\x01", true, &vec![7; len]), (b"b", false, b"v")]);
        assert!(block.next_hidden(0, block.value_range(0).end).is_none(), "{len}");
    }
    let block = block_of(&[(b"b", false, b"v"), (b"b\x01", true, b"of b")]);
    assert!(block.next_hidden(0, block.value_range(0).end).is_some());
}

#[test]
fn an_owner_right_before_may_be_named_or_not() {
    let block = block_of(&[(b"b", false, b"v"), (b"b\x01", true, b"of b")]);
    let at = block.hidden_range(0).start;
    assert_eq!(block.bytes()[at..at + 2], [0xb0, 4]);
    // As the first writers of hidden entries had it.
    let bytes = [&block.bytes()[..at], &[0x30, 1, 4], &block.bytes()[at + 2..]].concat();
    let len = bytes.len();
    let named = Block::parse(StoredPayload { bytes: bytes.into(), len }, Some(&[1])).unwrap();
    for block in [&block, &named] {
        let head = block.next_hidden(0, at).unwrap();
        assert_eq!(head.after_seq(block.bytes()), None);
        assert_eq!(head.payload_len(), 4);
    }
    // A key of its own is no way to leave out where the owner is.
    let bytes =
        [&block.bytes()[..at], &[0x90, 0, 2, 4, 5, b'b', 1], &block.bytes()[at + 2..]].concat();
    let len = bytes.len();
    assert!(Block::parse(StoredPayload { bytes: bytes.into(), len }, Some(&[1])).is_err());
}

#[test]
fn a_block_holds_a_key_whatever_its_search_says() {
    let table = Table::new(
        (1..40u8).map(|n| entry(&[n, n], u64::from(n), EntryKind::Value, b"v")).collect(),
        &[1],
        |_, _| Some(vec![]),
    );
    let options = options(4096, Compression::None);
    let (bytes, _, _) = table.write(&[1], options, INDEX_BYTES_MAX, |_| true);
    let reader = open(&bytes, None).unwrap();
    let (offset, len) = reader.blocks().next().unwrap().unwrap();
    let extent = Extent { offset, len };
    let mut block = reader.parse(extent, reader.source().read(extent).unwrap()).unwrap();
    assert!(block.find(&[20, 20], seq(30)).is_some());
    block.damage_word(19, 1 << 40);
    assert!(block.find(&[20, 20], seq(30)).is_none());
    let block = TableBlock::new(&reader, extent, Arc::new(block), false);
    assert!(block.holds(&[20, 20], seq(30)) && block.holds(&[20, 20], seq(20)));
    assert!(!block.holds(&[20, 20], seq(19)) && !block.holds(&[20], seq(30)));
    let ingested = SstReader::open(TestFile::holding(&bytes), "t.sst".into(), IDENTITY, None, None);
    let ingested = ingested.unwrap().placed(IDENTITY.file, Some(seq(100)));
    let hash = bloom_hash(&[20, 20]);
    assert!(ingested.look_up(&[20, 20], hash, seq(99), false).unwrap().is_none());
    let looked = ingested.look_up(&[20, 20], hash, seq(100), false).unwrap().unwrap();
    assert_eq!(looked.entry.unwrap().stored.seq(), seq(20));
    assert!(looked.block.holds(&[20, 20], SeqNo::ZERO));
}
