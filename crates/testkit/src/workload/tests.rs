//! Tests of the workloads: keys correspond to records, choices have their shape, seeds repeat.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;

use super::*;
use crate::assert_golden;

fn stream(letter: char, records: u64) -> Stream {
    let mix = Mix::ycsb(letter).expect("a letter of YCSB");
    Stream::new(mix, records, Arc::new(AtomicU64::new(records)), 7)
}

#[test]
fn every_permutation_hits_every_number_once() {
    for count in [1, 2, 3, 5, 16, 17, 1000, 4097] {
        let permutation = Permutation::new(count);
        let images: BTreeSet<u64> = (0..count).map(|n| permutation.apply(n)).collect();
        assert_eq!(images, (0..count).collect(), "{count}");
    }
    let permutation = Permutation::new(10_000);
    let rising = (1..10_000).filter(|&n| permutation.apply(n - 1) < permutation.apply(n)).count();
    assert!((4000..6000).contains(&rising), "{rising} of 9999 steps go up: not scattered");
}

#[test]
fn records_have_their_own_keys_and_missing_ones_have_none() {
    let space = KeySpace::new(100, 16);
    let mut key = Vec::new();
    let mut keys = BTreeSet::new();
    for n in 0..250 {
        space.record(n, &mut key);
        assert_eq!(key.len(), 16);
        assert!(keys.insert(key.clone()), "record {n}");
    }
    for n in 0..100 {
        space.in_order(n, &mut key);
        assert!(keys.contains(&key));
        space.missing(n, &mut key);
        assert!(!keys.contains(&key));
    }
}

#[test]
fn the_zipfian_choice_is_as_skewed_as_its_theta_says() {
    let mut rng = Rng::from_env_or(3);
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let zipfian = Zipfian::new(1000);
    for _ in 0..100_000 {
        *counts.entry(zipfian.next(&mut rng)).or_default() += 1;
    }
    // The first of 1000 has 1/zeta = 12.8 %, the second about half of that.
    assert!((12_300..13_300).contains(&counts[&0]), "{}", counts[&0]);
    assert!((5_900..7_200).contains(&counts[&1]), "{}", counts[&1]);
    assert!(counts.keys().all(|&n| n < 1000) && counts.len() > 800);
}

#[test]
fn zeta_by_the_integral_equals_zeta_by_the_sum() {
    let sum: f64 = (1..=1_000_000u64).map(|n| (n as f64).powf(-ZIPFIAN_THETA)).sum();
    assert!((zeta(1_000_000) - sum).abs() < 1e-9 * sum);
    let mut grown = Zipfian::new(100);
    grown.grow(1000);
    assert!(
        (grown.zeta_count - zeta(1000)).abs() < 1e-9
            && (grown.eta - Zipfian::new(1000).eta).abs() < 1e-9
    );
}

#[test]
fn values_compress_to_about_half_and_have_their_length() {
    let mut values = Values::new(1, 4000);
    for len in [0, 1, 100, 4000] {
        for _ in 0..2000 {
            assert_eq!(values.next(len).len(), len);
        }
    }
    let value = values.next(4000).to_vec();
    let pieces: BTreeSet<&[u8]> = value.windows(8).collect();
    assert!((1900..2700).contains(&pieces.len()), "{} of 3993 windows differ", pieces.len());
}

#[test]
fn mixes_hold_their_shares() {
    for letter in ['a', 'b', 'c', 'd', 'e', 'f', 'w'] {
        let mut stream = stream(letter, 1000);
        let mut writes = 0;
        for _ in 0..10_000 {
            writes += u32::from(!matches!(stream.draw(), Operation::Read(_) | Operation::Scan(..)));
        }
        let expected = match letter {
            'a' | 'f' => 4700..5300,
            'c' => 0..1,
            'w' => 10_000..10_001,
            _ => 400..600,
        };
        assert!(expected.contains(&writes), "{letter}: {writes} writes");
    }
    assert_eq!(Mix::ycsb('x'), None);
}

#[test]
fn the_latest_choice_prefers_the_youngest() {
    let mut stream = stream('d', 1000);
    let mut young = 0;
    for _ in 0..10_000 {
        if let Operation::Read(n) = stream.draw() {
            let count = stream.inserted.load(Ordering::Relaxed);
            assert!(n < count);
            young += u32::from(n + 10 >= count);
        }
    }
    assert!(young > 3000, "{young}");
}

#[test]
fn a_seed_gives_the_same_operations_for_ever() {
    let mut text = String::new();
    for letter in ['a', 'd', 'e', 'f'] {
        let mut stream = stream(letter, 100);
        for _ in 0..8 {
            writeln!(text, "ycsb-{letter} {:?}", stream.draw())
                .expect("a string takes every write");
        }
    }
    let space = KeySpace::new(100, 12);
    let mut key = Vec::new();
    for n in [0, 1, 2, 100] {
        space.record(n, &mut key);
        writeln!(text, "record {n} \"{}\"", key.escape_ascii())
            .expect("a string takes every write");
    }
    assert_golden("workload.txt", &text);
}
