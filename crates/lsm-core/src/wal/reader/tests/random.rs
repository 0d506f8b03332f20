//! Random logs: read back whole, after damage, and after a power cut.

use super::*;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Batch(Vec<(u32, u32, Vec<u8>)>),
    Control(u8),
    Sync,
    Switch,
    Fail(usize),
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let section = (0u32..9, 1u32..5, prop::collection::vec(any::<u8>(), 0..300));
    prop_oneof![
        8 => prop::collection::vec(section, 1..4).prop_map(Step::Batch),
        2 => (0u8..3).prop_map(Step::Control),
        2 => Just(Step::Sync),
        1 => Just(Step::Switch),
        1 => (0usize..64).prop_map(Step::Fail),
    ]
}

pub(super) fn run(steps: &[Step], preallocate: u64) -> Log {
    let mut log = Log::new(preallocate);
    for step in steps {
        match step {
            Step::Batch(sections) => log.try_batch(sections).unwrap(),
            Step::Control(0) => log.control(Control::IdleMarker { manifest_edit: 5 }),
            Step::Control(1) => log.control(Control::CleanClose { manifest_edit: 6 }),
            Step::Control(_) => log.control(Control::EpochStart),
            Step::Sync => log.sync(),
            Step::Switch => log.next_segment(),
            Step::Fail(len) => {
                log.files.last().unwrap().fail_next_append_after(*len);
                let (bytes, what) = log.encoded(&[(1, 1, vec![1; 40])]);
                assert!(log.append(&bytes, what).is_err());
                log.next_segment();
            }
        }
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes that were not synced may be lost in any sectors of any segment; the rest is a prefix
    /// that holds all that was synced, and is never called rotten.
    #[test]
    fn a_power_cut_is_never_corruption_and_keeps_what_was_synced(
        steps in prop::collection::vec(step(), 1..40),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        coins in prop::collection::vec(any::<bool>(), 64),
        cut in any::<prop::sample::Index>(),
    ) {
        let steps: Vec<_> = steps.into_iter().filter(|d| !matches!(d, Step::Fail(_))).collect();
        let log = run(&steps, preallocate);
        let mut coins = coins.iter().cycle();
        for (file, header) in log.files.iter().zip(&log.headers) {
            let mut bytes = file.bytes();
            let synced = log.durable.0.saturating_sub(header.base.0);
            let synced = usize::try_from(synced).unwrap().min(bytes.len());
            for from in (0..bytes.len()).step_by(512) {
                let to = bytes.len().min(from + 512);
                if to > synced && *coins.next().unwrap() {
                    bytes[from.max(synced)..to].fill(0);
                }
            }
            // A file that was not preallocated may also have lost its length.
            if preallocate == 0 && *coins.next().unwrap() {
                bytes.truncate(synced.max(cut.index(bytes.len() + 1) / 512 * 512));
            }
            file.set_bytes(&bytes);
        }
        let (frames, end) = log.read();
        prop_assert!(end.is_ok(), "{:?}", end);
        prop_assert_eq!(&frames, &log.all()[..frames.len()]);
        let synced = log.frames.iter().filter(|f| f.lsn + (f.end - f.start) <= log.durable.0);
        prop_assert!(frames.len() >= synced.count());
    }

    /// A process that is killed while it copies a group into a mapping leaves any bytes of it, and
    /// whole frames after broken ones. Nothing before the group is lost, and none of it is rot.
    #[test]
    fn a_killed_copy_is_never_corruption_and_loses_nothing_before_it(
        steps in prop::collection::vec(step(), 1..20),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        group in prop::collection::vec(0usize..200, 1..5),
        pieces in prop::collection::vec((1usize..64, any::<bool>()), 1..40),
    ) {
        let mut log = run(&steps, preallocate);
        let before = log.frames.len();
        let first = log.files.len() - 1;
        let start = usize::try_from(log.writer.offset()).unwrap();
        for len in group {
            log.put(&vec![0xaa; len]);
        }
        let mut pieces = pieces.iter().cycle();
        for (idx, file) in log.files.iter().enumerate().skip(first) {
            // The next segment's header was whole before anything was copied after it.
            let mut at = if idx == first { start } else { SEGMENT_HEADER_BYTES as usize };
            let mut bytes = file.bytes();
            while at < bytes.len() {
                let (len, is_lost) = pieces.next().unwrap();
                let end = bytes.len().min(at + len);
                if *is_lost {
                    bytes[at..end].fill(0);
                }
                at = end;
            }
            file.set_bytes(&bytes);
        }
        let (frames, end) = log.read();
        prop_assert!(end.is_ok(), "{:?}", end);
        prop_assert!(frames.len() >= before);
        prop_assert_eq!(&frames, &log.all()[..frames.len()]);
    }

    #[test]
    fn no_damage_yields_anything_but_a_prefix(
        steps in prop::collection::vec(step(), 1..30),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        rot in prop::collection::vec(
            (any::<[prop::sample::Index; 3]>(), 0u8..4, 1usize..600), 1..6,
        ),
    ) {
        let log = run(&steps, preallocate);
        let mut bytes = log.bytes();
        for ([file, from, to], kind, len) in rot {
            let file = file.index(bytes.len());
            let bytes = &mut bytes[file];
            let from = from.index(bytes.len());
            let to = to.index(bytes.len());
            let len = len.min(bytes.len() - from.max(to));
            match kind {
                0 => bytes[from..from + len].fill(0),
                1 => bytes[from..from + len].fill(0xff),
                // A misdirected write: the same bytes in another place.
                2 => bytes.copy_within(from..from + len, to),
                _ => bytes.extend(vec![3; len]),
            }
        }
        for (file, bytes) in log.files.iter().zip(&bytes) {
            file.set_bytes(bytes);
        }
        let (frames, end) = log.read();
        prop_assert!(frames.len() <= log.frames.len());
        prop_assert_eq!(&frames, &log.all()[..frames.len()]);
        prop_assert!(end.map_or_else(|e| e.is_corruption(), |end| end.place <= log.writer.end()));
    }

    #[test]
    fn random_logs_read_back_whole_and_damaged(
        steps in prop::collection::vec(step(), 1..40),
        preallocate in prop_oneof![Just(0u64), 256u64..4096],
        at in any::<(prop::sample::Index, prop::sample::Index)>(),
        bit in 0u8..8,
    ) {
        let log = run(&steps, preallocate);
        let (frames, end) = log.read();
        prop_assert_eq!(frames, log.all());
        let end = end.unwrap();
        prop_assert_eq!(end.place, log.writer.end());
        prop_assert_eq!(end.last_seq, seq(log.last));
        let whole = log.bytes();
        let idx = at.0.index(whole.len());
        let offset = at.1.index(whole[idx].len());
        let mut bytes = whole.clone();
        bytes[idx][offset] ^= 1 << bit;
        log.check_damaged(&bytes, idx, offset as u64, false);
        bytes.clone_from(&whole);
        bytes[idx].truncate(offset);
        log.check_damaged(&bytes, idx, offset as u64, true);
    }
}
