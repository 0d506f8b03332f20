//! Seeded randomness: the same seed gives the same run, on every machine and in every release.
//!
//! Tests begin with [`Rng::from_env_or`]: `SEED=7 cargo test name` repeats a failure, and a test
//! that fails prints the seed it ran with. The generator is xoshiro256++, seeded by splitmix64;
//! it is for tests and workloads, never for secrets.
//!
//! Invariant: the sequence of a seed never changes, because written-down seeds would lose their
//! meaning.

use std::ops::Range;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
    /// Printed when the generator is dropped by a panic.
    announced_seed: Option<u64>,
}

/// A bijection of 64-bit words that scatters them (the finaliser of splitmix64).
#[inline]
pub fn mix64(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = |n: u64| mix64(seed.wrapping_add(GOLDEN_RATIO.wrapping_mul(n)));
        Rng { state: [word(1), word(2), word(3), word(4)], announced_seed: None }
    }

    /// The generator of the environment's `SEED`, or else of `seed`. Prints the seed if the test
    /// that holds it fails.
    ///
    /// # Panics
    /// If `SEED` is not a number.
    pub fn from_env_or(seed: u64) -> Rng {
        let seed = match std::env::var("SEED") {
            Ok(text) => text.parse().expect("SEED is a decimal number"),
            Err(_) => seed,
        };
        let mut rng = Rng::new(seed);
        rng.announced_seed = Some(seed);
        rng
    }

    /// An independent generator, for example for a thread.
    #[must_use]
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next_u64())
    }

    /// 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `end`, by a widening multiplication: the bias is below `end / 2^64`.
    ///
    /// # Panics
    /// If `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "no number is below 0");
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index below `end`.
    #[inline]
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// A number in `range`, which must not be empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// True in `wins` of `tries` cases.
    pub fn chance(&mut self, wins: u64, tries: u64) -> bool {
        self.below(tries) < wins
    }

    /// A number in `0.0..1.0`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

impl Drop for Rng {
    #[expect(clippy::print_stderr, reason = "a failing test prints how to repeat it")]
    fn drop(&mut self) {
        if let Some(seed) = self.announced_seed.filter(|_| std::thread::panicking()) {
            eprintln!("random seed: SEED={seed}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_of_a_seed_never_changes() {
        let mut rng = Rng::new(42);
        let words: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(words, [0xd076_4d4f_4476_689f, 0x519e_4174_576f_3791, 0xfbe0_7cfb_0c24_ed8c]);
        let mut other = rng.fork();
        assert_ne!(other.next_u64(), rng.next_u64());
    }

    #[test]
    fn numbers_stay_in_range_and_reach_its_ends() {
        let mut rng = Rng::from_env_or(1);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[rng.index(5)] += 1;
            assert!((3..7).contains(&rng.range(3..7)));
            assert!((0.0..1.0).contains(&rng.unit()));
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
        let mut items: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
