//! Features, kinds of faults, and the table of what met.

use std::fmt::Write;

/// Defines [`Feature`] and the list of all.
macro_rules! features {
    ($($feature:ident,)*) => {
        /// A part of the public interface that a run may use.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Feature {
            $($feature,)*
        }

        impl Feature {
            pub const ALL: &[Feature] = &[$(Feature::$feature,)*];
        }
    };
}

features! {
    Batches,
    Transactions,
    Savepoints,
    Locks,
    RangeDeletes,
    Merges,
    Expiry,
    Clear,
    BulkLoad,
    Ingest,
    LargeValues,
    MetaHive,
    Hooks,
    Partitions,
    Checkpoints,
    Backups,
    Secondaries,
    Promotion,
    Remote,
    Changes,
    Fifo,
    Prefixes,
    Resources,
    Encryption,
    Snapshots,
}

use Feature::*;

impl Feature {
    /// Those that a step of a script uses. The others belong to the whole run.
    pub fn of_steps() -> impl Iterator<Item = Feature> {
        Feature::ALL.iter().copied().filter(|it| !matches!(it, Remote | Resources | Encryption))
    }
}

/// A set of features.
#[derive(Clone, Copy, Debug, Default)]
pub struct FeatureSet(u32);

impl FeatureSet {
    pub fn add(&mut self, feature: Feature) {
        self.0 |= 1 << feature as u32;
    }

    fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u32) != 0
    }
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One operation fails.
    Once,
    /// Every operation fails from one on, until the fault is mended.
    Lasting,
    /// There is no space from one operation on, until there is some again.
    NoSpace,
    /// An append writes a part.
    ShortWrite,
    /// A sync fails, and what it should have saved is never saved; it may be gone at once.
    LostSync,
    /// No file can be opened from one operation on, until one can again.
    NoHandles,
    /// A bit of a file changes.
    FlippedBit,
    /// The process is killed before an operation.
    Kill,
    /// The power is cut before an operation, and some unsynced changes are gone.
    PowerCut,
    /// The power is cut again while the store recovers.
    CutAgain,
    /// Some calls of the bucket fail, before or after they have had their effect.
    Bucket,
}

impl Kind {
    pub const ALL: [Kind; 11] = [
        Kind::Once,
        Kind::Lasting,
        Kind::NoSpace,
        Kind::ShortWrite,
        Kind::LostSync,
        Kind::NoHandles,
        Kind::FlippedBit,
        Kind::Kill,
        Kind::PowerCut,
        Kind::CutAgain,
        Kind::Bucket,
    ];
}

const COUNT: usize = Feature::ALL.len();

/// The times that two features were at work in a database that a fault met.
#[derive(Default)]
pub struct Table {
    counts: Vec<[[u64; COUNT]; COUNT]>,
}

impl Table {
    /// A fault came while these features were at work.
    pub fn note(&mut self, kind: Kind, features: FeatureSet) {
        self.counts.resize(Kind::ALL.len(), [[0; COUNT]; COUNT]);
        for first in Feature::ALL.iter().copied().filter(|it| features.has(*it)) {
            for second in Feature::ALL.iter().copied().filter(|it| features.has(*it)) {
                self.counts[kind as usize][first as usize][second as usize] += 1;
            }
        }
    }

    fn of_pairs(&self, kind: Kind) -> Vec<u64> {
        let counts = self.counts.get(kind as usize);
        let pairs = (0..COUNT).flat_map(|first| (0..first).map(move |second| (first, second)));
        let mut of_pairs: Vec<u64> =
            pairs.map(|(first, second)| counts.map_or(0, |it| it[first][second])).collect();
        of_pairs.sort_unstable();
        of_pairs
    }

    /// The pairs that a kind of fault did not meet.
    pub fn missing(&self) -> usize {
        let all = Kind::ALL.iter().flat_map(|kind| self.of_pairs(*kind));
        all.filter(|count| *count == 0).count()
    }

    /// The table as text: for each kind the least, median and largest count of a pair; for each pair the least count
    /// of a kind.
    pub fn text(&self) -> String {
        let mut text =
            "| fault | pairs | fewest | median | most |\n| --- | --- | --- | --- | --- |\n"
                .to_owned();
        for kind in Kind::ALL {
            let counts = self.of_pairs(kind);
            let met = counts.iter().filter(|count| **count > 0).count();
            let ends = [counts[0], counts[counts.len() / 2], counts[counts.len() - 1]];
            let [fewest, median, most] = ends;
            writeln!(
                text,
                "| {kind:?} | {met} of {} | {fewest} | {median} | {most} |",
                counts.len()
            )
            .expect("it is a string");
        }
        text += "\n| |";
        (1..COUNT).for_each(|number| text += &format!(" {number} |"));
        text += &format!("\n|{}\n", " --- |".repeat(COUNT));
        for first in 1..COUNT {
            text += &format!("| {} {:?} |", first + 1, Feature::ALL[first]);
            for second in 0..COUNT - 1 {
                let of_kinds = self.counts.iter().map(|counts| counts[first][second]);
                let fewest = of_kinds.min().filter(|_| second < first);
                text += &fewest.map_or(" |".to_owned(), |fewest| format!(" {fewest} |"));
            }
            text.push('\n');
        }
        text += &format!("\n1 is {:?}\n", Feature::ALL[0]);
        text
    }
}
