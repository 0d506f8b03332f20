//! Predictions over random reads.

use testkit::Rng;
use testkit::workload::Zipfian;

use super::sketch::{FIRST_CUT_READS, WINDOW_READS};
use super::*;

const KEYS: u64 = 10_000;

fn key(rank: u64) -> [u8; 8] {
    rank.to_be_bytes()
}

/// Reads by Zipf's law, with `first` as the key that is read most often; returns the sums and numbers of the levels of the
/// keys of the ranks below 5 and of those above half of all.
fn read(predictor: &Predictor, rng: &mut Rng, reads: u64, first: u64) -> [f64; 2] {
    let zipfian = Zipfian::new(KEYS);
    let mut sums = [(0, 0); 2];
    for _ in 0..reads {
        let rank = zipfian.next(rng);
        let level = predictor.predict("p", &key((rank + first) % KEYS));
        let group = usize::from(rank >= 5);
        if let Some(level) = level.filter(|_| !(5..=KEYS / 2).contains(&rank)) {
            sums[group].0 += u64::from(level);
            sums[group].1 += 1;
        }
    }
    sums.map(|(sum, count): (u64, u64)| sum as f64 / count.max(1) as f64)
}

#[test]
fn hot_keys_get_strong_levels_and_each_level_a_share_of_the_reads() {
    let mut rng = Rng::from_env_or(51);
    let predictor = Predictor::new();
    let [hot, cold] = read(&predictor, &mut rng, 3 * WINDOW_READS, 0);
    assert!(hot < 1.5 && cold > 4.0, "{hot} {cold}");
    let before = predictor.counts().predictions;
    read(&predictor, &mut rng, WINDOW_READS, 0);
    let after = predictor.counts().predictions;
    for level in 0..5 {
        let share = (after[level] - before[level]) as f64 / WINDOW_READS as f64;
        assert!((0.1..0.3).contains(&share), "level {}: {share}", level + 1);
    }
}

#[test]
fn predictions_follow_keys_that_change_their_rank() {
    let mut rng = Rng::from_env_or(52);
    let predictor = Predictor::new();
    read(&predictor, &mut rng, 2 * WINDOW_READS, 0);
    // Keys that were cold are hot from now on, and the other way around.
    read(&predictor, &mut rng, 2 * WINDOW_READS, KEYS / 2);
    let [hot, cold] = read(&predictor, &mut rng, WINDOW_READS, KEYS / 2);
    assert!(hot < 1.5 && cold > 4.0, "{hot} {cold}");
}

#[test]
fn nothing_is_predicted_before_something_is_known() {
    let predictor = Predictor::new();
    for _ in 0..FIRST_CUT_READS {
        assert_eq!(predictor.predict("p", b"a"), None);
    }
    assert_eq!(predictor.predict("p", b"a"), Some(1));
    assert_eq!(predictor.counts().predictions, [1, 0, 0, 0, 0]);
}

#[test]
fn a_correction_is_remembered_for_its_key_alone() {
    let mut rng = Rng::from_env_or(53);
    let predictor = Predictor::new();
    read(&predictor, &mut rng, 2 * WINDOW_READS, 0);
    let usual: Vec<u8> = (0..50).filter_map(|rank| predictor.predict("p", &key(rank))).collect();
    assert_eq!(predictor.predict("p", &key(0)), Some(1));
    predictor.correct("p", &key(0), 1, 5);
    assert_eq!(predictor.predict("p", &key(0)), Some(5));
    predictor.correct("p", &key(0), 5, 2);
    assert_eq!(predictor.predict("p", &key(0)), Some(2));
    assert_eq!(predictor.counts().corrections, [1, 0, 0, 0, 1]);
    // Of another partition, and other keys.
    assert_ne!(predictor.predict("q", &key(0)), Some(2));
    let again: Vec<u8> = (0..50).filter_map(|rank| predictor.predict("p", &key(rank))).collect();
    assert_eq!(again[1..], usual[1..]);
}

#[test]
fn threads_share_a_predictor() {
    let predictor = Predictor::new();
    let mut rng = Rng::from_env_or(54);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut rng = rng.fork();
            let predictor = &predictor;
            scope.spawn(move || read(predictor, &mut rng, WINDOW_READS / 2, 0));
        }
    });
    let [hot, cold] = read(&predictor, &mut rng, WINDOW_READS, 0);
    assert!(hot < 1.5 && cold > 4.0, "{hot} {cold}");
}

#[test]
fn a_second_read_that_names_another_level_is_a_correction() {
    let predictor = Predictor::new();
    for _ in 0..=FIRST_CUT_READS {
        predictor.predict("p", b"a");
    }
    let a = KeyHash::new("p", b"a");
    let b = KeyHash::new("p", b"b");
    let none = Asked::default();
    let fifth = Asked { level: Some(Wanted::Number(5)), ..none };
    let first = Asked { level: Some(Wanted::Auto), ..none };
    let mut last = None;
    // The connection or the partition has a level.
    assert_eq!(predictor.consider(&mut last, &none, Some(Wanted::Auto), a), None);
    assert_eq!(last, None);
    assert_eq!(predictor.consider(&mut last, &none, None, a), Some(1));
    // Another key, and the same level.
    assert_eq!(predictor.consider(&mut last, &fifth, None, b), None);
    assert_eq!(predictor.consider(&mut last, &first, None, a), None);
    assert_eq!(predictor.counts().corrections, [0; 5]);
    assert_eq!(predictor.consider(&mut last, &fifth, None, a), None);
    assert_eq!(predictor.counts().corrections, [1, 0, 0, 0, 0]);
    // Once.
    assert_eq!(predictor.consider(&mut last, &fifth, None, a), None);
    assert_eq!(predictor.counts().corrections, [1, 0, 0, 0, 0]);
    assert_eq!(predictor.consider(&mut last, &none, None, a), Some(5));
}
