//! The bytes of a file in memory: pages that are shared until one is written to.
//!
//! Used by `mem/inode.rs` alone, once for the bytes that reads see and once for those that survive
//! a power cut.
//!
//! Invariants:
//! 1. Pages after the last one in the list are zeros with their space reserved; so a log segment
//!    that was preallocated costs nothing until it is written.
//! 2. Bytes of the last page after `len` are zeros.

use std::sync::Arc;

const PAGE_BYTES: usize = 4096;

#[derive(Clone)]
enum Page {
    /// Zeros, space reserved.
    Zero,
    /// Zeros whose space was given back.
    Hole,
    Data(Arc<[u8; PAGE_BYTES]>),
}

#[derive(Clone, Default)]
pub(super) struct Content {
    pages: Vec<Page>,
    len: u64,
    hole_count: u64,
}

impl Content {
    pub(super) fn from_bytes(bytes: &[u8]) -> Content {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Space that the file takes, in bytes.
    pub(super) fn allocated_bytes(&self) -> u64 {
        self.len - self.hole_count * PAGE_BYTES as u64
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let left = self.len.saturating_sub(offset);
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let mut at = offset;
        let mut rest = &mut buf[..count];
        while !rest.is_empty() {
            let (page, within) = place(at);
            let n = rest.len().min(PAGE_BYTES - within);
            let (now, later) = rest.split_at_mut(n);
            match self.pages.get(page) {
                Some(Page::Data(data)) => now.copy_from_slice(&data[within..within + n]),
                // Also after the last page of the list, by invariant 1.
                _ => now.fill(0),
            }
            at += n as u64;
            rest = later;
        }
        count
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (page, within) = place(at);
            let (now, later) = rest.split_at(rest.len().min(PAGE_BYTES - within));
            self.page_mut(page)[within..within + now.len()].copy_from_slice(now);
            at += now.len() as u64;
            rest = later;
        }
        self.len = self.len.max(at);
    }

    pub(super) fn xor(&mut self, offset: u64, mask: u8) {
        if offset < self.len {
            let (page, within) = place(offset);
            self.page_mut(page)[within] ^= mask;
        }
    }

    /// Extends to `len` bytes; a longer file does not change.
    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
    }

    /// Cuts or extends to `len` bytes.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len);
            // Whole pages after the new end are removed, and holes among them no longer count.
            let kept = place(len.next_multiple_of(PAGE_BYTES as u64)).0.min(self.pages.len());
            let holes = self.pages[kept..].iter().filter(|page| matches!(page, Page::Hole));
            self.hole_count -= holes.count() as u64;
            self.pages.truncate(kept);
            // A hole that the end now cuts is counted whole: make it plain zeros.
            if kept > 0 && len < self.len && matches!(self.pages[kept - 1], Page::Hole) {
                self.pages[kept - 1] = Page::Zero;
                self.hole_count -= 1;
            }
        }
        self.len = len;
    }

    /// Frees the space of the whole pages in the range; the rest of it becomes zeros.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len);
        if offset >= end {
            return;
        }
        self.zero(offset, end);
        let first = place(offset.next_multiple_of(PAGE_BYTES as u64)).0;
        let after = place(end).0;
        // Only pages in the list can be marked as holes.
        if first < after && self.pages.len() < after {
            self.pages.resize(after, Page::Zero);
        }
        for page in first..after {
            if !matches!(self.pages[page], Page::Hole) {
                self.pages[page] = Page::Hole;
                self.hole_count += 1;
            }
        }
    }

    /// Zeros from `start` to `end`, without making pages of zeros.
    fn zero(&mut self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let (page, within) = place(at);
            if page >= self.pages.len() {
                return;
            }
            let left = usize::try_from(end - at).unwrap_or(usize::MAX);
            let n = left.min(PAGE_BYTES - within);
            match &mut self.pages[page] {
                // A whole page of zeros needs no memory.
                data @ Page::Data(_) if n == PAGE_BYTES => *data = Page::Zero,
                Page::Data(data) => Arc::make_mut(data)[within..within + n].fill(0),
                Page::Zero | Page::Hole => {}
            }
            at += n as u64;
        }
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8; PAGE_BYTES] {
        if page >= self.pages.len() {
            self.pages.resize(page + 1, Page::Zero);
        }
        let slot = &mut self.pages[page];
        if !matches!(slot, Page::Data(_)) {
            // Its space was freed and is taken again.
            if matches!(slot, Page::Hole) {
                self.hole_count -= 1;
            }
            *slot = Page::Data(Arc::new([0; PAGE_BYTES]));
        }
        let Page::Data(data) = slot else { unreachable!("it was made data just above") };
        // Copied if a crash image or the durable state shares it.
        Arc::make_mut(data)
    }
}

/// Page of an offset, and the place in it.
fn place(offset: u64) -> (usize, usize) {
    let page = usize::try_from(offset / PAGE_BYTES as u64).expect("a file in memory fits into it");
    (page, (offset % PAGE_BYTES as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(content: &Content) -> Vec<u8> {
        let mut buf = vec![7; usize::try_from(content.len()).unwrap() + 3];
        let n = content.read(0, &mut buf);
        buf.truncate(n);
        buf
    }

    proptest! {
        #[test]
        fn pages_hold_what_a_plain_vector_holds(
            ops in prop::collection::vec((0u8..4, 0usize..20_000, 0usize..9_000), 1..40)
        ) {
            let mut content = Content::default();
            let mut plain = Vec::new();
            for (i, (op, a, n)) in ops.into_iter().enumerate() {
                let shared = content.clone();
                let before = all(&shared);
                match op {
                    0 => {
                        let bytes = vec![i as u8 + 1; n];
                        content.write(a as u64, &bytes);
                        if n > 0 {
                            plain.resize(plain.len().max(a + n), 0);
                            plain[a..a + n].copy_from_slice(&bytes);
                        }
                    }
                    1 => {
                        content.grow(a as u64);
                        plain.resize(plain.len().max(a), 0);
                    }
                    2 => {
                        content.set_len(a as u64);
                        plain.resize(a, 0);
                    }
                    _ => {
                        content.punch(a as u64, n as u64);
                        let end = (a + n).min(plain.len());
                        if a < end {
                            plain[a..end].fill(0);
                        }
                    }
                }
                prop_assert_eq!(&all(&content), &plain);
                prop_assert_eq!(all(&shared), before, "a clone is not touched");
                let holes = content.pages.iter().filter(|p| matches!(p, Page::Hole)).count();
                prop_assert_eq!(content.hole_count, holes as u64);
                prop_assert!(content.hole_count * PAGE_BYTES as u64 <= content.len());
            }
        }
    }
}
