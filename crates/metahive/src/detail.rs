//! The message that a filter sends to the repair of a fault, through [`Fault::detail`].
//!
//! This crate writes and reads the message in one process. The bytes are never stored.
//!
//! [`Fault::detail`]: lsm_core::hooks::Fault::detail

use lsm_core::codec::{Malformed, Reader, put_bytes, put_u32, put_u64};
use lsm_core::hooks::Origin;
use lsm_core::types::FileNo;

/// The sort of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The entry disagrees with its metadata.
    Disagrees = 0,
    /// The entry has no metadata where it must have some, or where its block is damaged.
    Unpaired = 1,
    /// The metadata has no entry.
    Orphan = 2,
}

/// The place of an entry, without what may change between two runs of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryPlace {
    pub(crate) file: Option<FileNo>,
    pub(crate) block_offset: u64,
    pub(crate) entry: u32,
}

impl From<&Origin> for EntryPlace {
    fn from(at: &Origin) -> EntryPlace {
        EntryPlace { file: at.file, block_offset: at.block_offset, entry: at.entry }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Detail {
    pub(crate) cause: Cause,
    /// `true` if the table has metadata for each entry.
    pub(crate) is_sealed: bool,
    /// V+, if one was found.
    pub(crate) payload: Option<Vec<u8>>,
    /// The other half of a pair that came apart: its key and its place.
    pub(crate) partner: Option<(Vec<u8>, EntryPlace)>,
}

impl Detail {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.cause as u8, u8::from(self.is_sealed)];
        // A payload that is there may be empty, if its length was the damage.
        out.push(u8::from(self.payload.is_some()));
        put_bytes(&mut out, self.payload.as_deref().unwrap_or_default());
        if let Some((key, place)) = &self.partner {
            put_bytes(&mut out, key);
            out.push(u8::from(place.file.is_some()));
            put_u64(&mut out, place.file.unwrap_or_default().0);
            put_u64(&mut out, place.block_offset);
            put_u32(&mut out, place.entry);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Detail, Malformed> {
        let mut reader = Reader::new(bytes);
        let cause = match reader.u8()? {
            0 => Cause::Disagrees,
            1 => Cause::Unpaired,
            2 => Cause::Orphan,
            _ => return Err(reader.malformed("cause of a fault")),
        };
        let is_sealed = reader.u8()? != 0;
        let has_payload = reader.u8()? != 0;
        let payload = reader.bytes()?;
        let payload = has_payload.then(|| payload.to_vec());
        let partner = if reader.is_empty() { None } else { Some(partner(&mut reader)?) };
        reader.finish()?;
        Ok(Detail { cause, is_sealed, payload, partner })
    }
}

fn partner(reader: &mut Reader<'_>) -> Result<(Vec<u8>, EntryPlace), Malformed> {
    let key = reader.bytes()?.to_vec();
    let has_file = reader.u8()? != 0;
    let file = reader.u64()?;
    let file = has_file.then_some(FileNo(file));
    let place = EntryPlace { file, block_offset: reader.u64()?, entry: reader.u32()? };
    Ok((key, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_read_back() {
        let place = EntryPlace { file: Some(FileNo(9)), block_offset: 4096, entry: 3 };
        for cause in [Cause::Disagrees, Cause::Unpaired, Cause::Orphan] {
            for payload in [None, Some(vec![]), Some(vec![1; 24])] {
                for partner in [None, Some((b"k\x01".to_vec(), place))] {
                    let payload = payload.clone();
                    let detail = Detail { cause, is_sealed: true, payload, partner };
                    assert_eq!(Detail::decode(&detail.encode()), Ok(detail));
                }
            }
        }
    }
}
