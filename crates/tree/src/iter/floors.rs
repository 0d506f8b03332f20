//! [`Floors`]: the numbers below which a reader sees no entry: those of the last clear, and of the deleted ranges
//! over the present key.
//!
//! Used by [`VisibleIter`](super::VisibleIter). Keys come in order, so the part of the deleted ranges around the last
//! key is kept, and nearly every key lies in it.

use std::sync::Arc;

use crate::types::{SeqNo, SpanLayers, SpanPart};

/// Clear and deleted ranges as one reader sees them.
pub struct Floors {
    seq: SeqNo,
    clear_seq: SeqNo,
    /// `None` in the usual partition, which pays a comparison with null.
    spans: Option<Box<Ranges>>,
}

struct Ranges {
    layers: SpanLayers,
    /// The keys around the last one.
    part: SpanPart,
}

impl Floors {
    /// The floors that a reader at `seq` sees.
    pub fn new(seq: SeqNo, clear_seq: SeqNo, layers: SpanLayers) -> Floors {
        let spans = (!layers.is_empty()).then(|| {
            // A part that holds no key: none is before the empty one.
            let part = SpanPart { end: Some(Arc::default()), ..SpanPart::default() };
            Box::new(Ranges { layers, part })
        });
        Floors { seq, clear_seq, spans }
    }

    /// An entry of `key` below this number is absent.
    #[inline]
    pub fn at(&mut self, key: &[u8]) -> SeqNo {
        match &mut self.spans {
            None => self.clear_seq,
            Some(spans) => spans.at(key, self.seq).max(self.clear_seq),
        }
    }

    /// The same for every key of the part around the key that was asked for last.
    #[inline]
    pub(super) fn here(&self) -> SeqNo {
        match &self.spans {
            None => self.clear_seq,
            Some(spans) => spans.part.seq.max(self.clear_seq),
        }
    }

    /// The first key after that part.
    pub(super) fn end(&self) -> Option<&[u8]> {
        self.spans.as_ref().and_then(|spans| spans.part.end.as_deref())
    }

    /// The part around the key that was asked for last, if its newest range hides an entry with the number `entry`.
    pub(super) fn hiding(&self, entry: SeqNo) -> Option<&SpanPart> {
        let part = &self.spans.as_ref()?.part;
        (part.seq > entry).then_some(part)
    }
}

impl Ranges {
    #[inline]
    fn at(&mut self, key: &[u8], seq: SeqNo) -> SeqNo {
        if !self.part.contains(key) {
            self.part = self.layers.part_at(key, seq);
        }
        self.part.seq
    }
}
