//! [`Predictor`]: a level for reads that have none, from how often their keys are read, and from what clients said.
//!
//! A server has one, or a router, as their options say (`reads.rs`, `route/item.rs`). Its subject is only the
//! prediction: a read at a predicted level is an ordinary read at that level.
//!
//! Invariants:
//! 1. A prediction takes the place of `AUTO` alone. The level of the client is before it, and that of the partition.
//! 2. A prediction guarantees nothing about the level that its read needs: the reply names the level, and the client corrects.
//! 3. The memory is fixed, and no call waits.

mod sketch;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use self::sketch::Sketch;
use crate::exposition::count;
use crate::level::{Asked, Wanted};
use crate::reply::Reply;

/// Levels that clients named, by the upper bits of the key's hash.
const NAMED: usize = 1 << 16;
/// The bits of a hash that a level takes the place of.
const LEVEL_BITS: u64 = 7;

/// A prediction of the consistency level that a read needs.
///
/// It has two sources. A level that a client named after a wrong prediction is remembered for its key, until another key
/// takes its place: 65,536 are. Without one, the keys that are read most often have level 1, and those that are read least
/// level 5: the counts of the last 65,536 reads are cut so that each level gets about a fifth of the reads.
///
/// It takes 1.5 MiB, and begins to predict after 1,024 reads. Threads share it without a lock.
///
/// # Examples
/// ```
/// use server::Predictor;
///
/// let predictor = Predictor::new();
/// for n in 0..5000_u32 {
///     predictor.predict("users", b"hot");
///     predictor.predict("users", &n.to_be_bytes());
/// }
/// assert_eq!(predictor.predict("users", b"hot"), Some(1));
/// assert_eq!(predictor.predict("users", b"new"), Some(3));
///
/// predictor.correct("users", b"new", 3, 2); // it needed level 2
/// assert_eq!(predictor.predict("users", b"new"), Some(2));
/// ```
pub struct Predictor {
    sketch: Sketch,
    /// A hash with the level in its lowest bits, and 0 for none. Relaxed: a word is all that is shared.
    named: Box<[AtomicU64]>,
    /// Predictions and corrections, by the level that was predicted.
    predictions: [AtomicU64; 5],
    corrections: [AtomicU64; 5],
}

impl Default for Predictor {
    fn default() -> Predictor {
        Predictor::new()
    }
}

impl fmt::Debug for Predictor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Predictor").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

fn values(of: &[AtomicU64; 5]) -> [u64; 5] {
    of.each_ref().map(|it| it.load(Ordering::Relaxed))
}

/// The hash of a partition and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    pub(crate) fn new(partition: &str, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, xxh3_64(partition.as_bytes())))
    }
}

/// The last prediction for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prediction {
    pub(crate) key: KeyHash,
    pub(crate) level: u8,
}

/// The part of a read that a predictor learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lesson {
    /// A read without a level, and the level that was predicted for it.
    Read(KeyHash, Option<u8>),
    /// A prediction, and the level that its read needed.
    Correction(Prediction, u8),
}

/// Predictions and corrections, by the level that was predicted: 1 to 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) predictions: [u64; 5],
    pub(crate) corrections: [u64; 5],
}

impl Predictor {
    /// A predictor that has seen no read.
    pub fn new() -> Predictor {
        Predictor {
            sketch: Sketch::new(),
            named: (0..NAMED).map(|_| AtomicU64::new(0)).collect(),
            predictions: Default::default(),
            corrections: Default::default(),
        }
    }

    /// Counts a read of `key`, and returns the level that it is expected to need, from 1 to 5; `None` while too little is
    /// known.
    ///
    /// # Cost
    /// Nine words of memory, and no lock. Five of them are at random places in 1.5 MiB. The read that ends a window looks at 64
    /// words more.
    pub fn predict(&self, partition: &str, key: &[u8]) -> Option<u8> {
        self.predict_at(KeyHash::new(partition, key))
    }

    /// Notes that a read of `key` whose predicted level was `predicted` needed the level `needed`.
    ///
    /// # Panics
    /// If a level is not from 1 to 5.
    pub fn correct(&self, partition: &str, key: &[u8], predicted: u8, needed: u8) {
        assert!((1..=5).contains(&predicted) && (1..=5).contains(&needed), "levels are 1 to 5");
        let key = KeyHash::new(partition, key);
        self.learn(Prediction { key, level: predicted }, needed);
    }

    fn predict_at(&self, key: KeyHash) -> Option<u8> {
        let class = self.sketch.read(key.0);
        let level = self.level_of(key, class)?;
        count(&self.predictions[usize::from(level) - 1]);
        Some(level)
    }

    /// The level of a key whose reads have this class.
    fn level_of(&self, key: KeyHash, class: Option<u8>) -> Option<u8> {
        let named = self.named_at(key).load(Ordering::Relaxed);
        let is_of_key = named != 0 && (named ^ key.0) <= LEVEL_BITS;
        if is_of_key { Some((named & LEVEL_BITS) as u8) } else { class }
    }

    fn learn(&self, prediction: Prediction, needed: u8) {
        let named = prediction.key.0 & !LEVEL_BITS | u64::from(needed);
        self.named_at(prediction.key).store(named, Ordering::Relaxed);
        count(&self.corrections[usize::from(prediction.level) - 1]);
    }

    fn named_at(&self, key: KeyHash) -> &AtomicU64 {
        &self.named[(key.0 >> 48) as usize % NAMED]
    }

    /// Returns the level that is predicted for a read of a connection, if the read gets one. `asked` is what the read
    /// names, `given` the level of the connection or of the partition. A read of the key of the `last` prediction that
    /// names another level is its correction.
    pub(crate) fn consider(
        &self,
        last: &mut Option<Prediction>,
        asked: &Asked,
        given: Option<Wanted>,
        key: KeyHash,
    ) -> Option<u8> {
        match lesson(last, asked, given, key)? {
            Lesson::Correction(wrong, needed) => {
                self.learn(wrong, needed);
                None
            }
            Lesson::Read(..) => {
                let level = self.predict_at(key);
                *last = level.map(|level| Prediction { key, level });
                level
            }
        }
    }

    /// The same for a read that may be refused: nothing is learnt from it before [`Predictor::note`] of the lesson.
    pub(crate) fn foresee(
        &self,
        last: &mut Option<Prediction>,
        asked: &Asked,
        given: Option<Wanted>,
        key: KeyHash,
    ) -> Option<Lesson> {
        let lesson = lesson(last, asked, given, key)?;
        let Lesson::Read(..) = lesson else { return Some(lesson) };
        let level = self.level_of(key, self.sketch.look(key.0));
        *last = level.map(|level| Prediction { key, level });
        Some(Lesson::Read(key, level))
    }

    /// Learns from a read that was not refused.
    pub(crate) fn note(&self, lesson: Lesson) {
        match lesson {
            Lesson::Correction(wrong, needed) => self.learn(wrong, needed),
            Lesson::Read(key, level) => {
                self.sketch.read(key.0);
                if let Some(level) = level {
                    count(&self.predictions[usize::from(level) - 1]);
                }
            }
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts { predictions: values(&self.predictions), corrections: values(&self.corrections) }
    }

    /// `SCID.PREDICTIONS`: the predictions and the corrections of each level that was predicted.
    pub(crate) fn described(&self) -> Reply {
        let Counts { predictions, corrections } = self.counts();
        let both = [("predictions", predictions), ("corrections", corrections)];
        let pairs = both.map(|(name, levels)| {
            (Reply::text(name), Reply::Array(levels.map(Reply::count).to_vec()))
        });
        Reply::Map(pairs.to_vec())
    }
}

/// The lesson of a read: see [`Predictor::consider`].
fn lesson(
    last: &mut Option<Prediction>,
    asked: &Asked,
    given: Option<Wanted>,
    key: KeyHash,
) -> Option<Lesson> {
    if let Some(needed) = asked.named() {
        let wrong = last.take_if(|it| it.key == key && it.level != needed);
        return wrong.map(|wrong| Lesson::Correction(wrong, needed));
    }
    given.is_none().then_some(Lesson::Read(key, None))
}
