//! Documents with much in common, so many that a table of them gets a dictionary of zstd.

use siltstone::Result;
use testkit::Rng;

use super::Simulation;
use super::script::ScriptStep;

/// A dictionary is trained with the first 400.
#[cfg(feature = "zstd")]
pub const DOCUMENTS: u32 = 450;
/// The key of the first one.
pub const FIRST_KEY: &str = "k01000";
const DOCUMENT_BYTES: usize = 4 << 10;
/// A document has few words twice, so it is compressed by a dictionary alone.
const WORDS: usize = 128;
const WORD_BYTES: usize = 64;

/// The words of documents, one after the other.
pub struct Words(Vec<u8>);

impl Words {
    pub fn draw(rng: &mut Rng) -> Words {
        Words(rng.bytes(WORDS * WORD_BYTES))
    }

    /// Appends words to `value` until it has so many bytes.
    pub fn fill(&self, rng: &mut Rng, bytes: usize, value: &mut Vec<u8>) {
        while value.len() < bytes {
            let word = rng.index(WORDS) * WORD_BYTES;
            value.extend_from_slice(&self.0[word..word + WORD_BYTES]);
        }
    }
}

/// Writes the documents of the variant, to keys that no other step of a script puts.
pub fn write(simulation: &mut Simulation) -> Result<()> {
    let count = simulation.variant.documents;
    let ops: Vec<_> = (0..count).map(|n| ("default", 1000 + n, Some(DOCUMENT_BYTES))).collect();
    for ops in ops.chunks(50) {
        simulation.act(&ScriptStep::Commit { ops: ops.to_vec(), sync: false })?;
    }
    simulation.act(&ScriptStep::Flush)?;
    // Level 0 is not compressed: a compaction trains the dictionary. The table has it in memory from its first reader on,
    // and scripts do not read.
    simulation.act(&ScriptStep::Compact("default"))?;
    simulation.db().partition("default")?.get(FIRST_KEY)?;
    simulation.passed.note(&simulation.db().stats());
    Ok(())
}
