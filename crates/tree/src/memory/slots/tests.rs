//! The pool by itself: slots that are taken, filled and dropped in random order.

use super::*;
use crate::memory::BlockBuffer;

/// The shortest slot has 16 lines.
const ANY: u64 = u64::MAX;
/// Miri takes a minute for a thousand steps.
const STEPS: u64 = if cfg!(miri) { 300 } else { 60_000 };

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*state >> 33) % below
}

/// Memory of a block, of about `bytes` bytes: words of `n`, and bytes that are not `n`.
fn filled(n: u8, bytes: u64) -> BlockBuffer {
    let words = vec![u64::from_ne_bytes([n; 8]); bytes as usize / 80];
    let bytes = vec![!n; bytes as usize - 8 * words.len()];
    BlockBuffer::new(words, bytes.into())
}

fn assert_filled(buffer: &BlockBuffer, n: u8) {
    assert!(buffer.words().iter().all(|word| *word == u64::from_ne_bytes([n; 8])));
    assert!(buffer.bytes().iter().all(|byte| *byte == !n));
}

/// Free memory as the slabs themselves have it, and the number of slabs.
fn counted(pool: &SlotPool) -> (u64, usize) {
    let slabs = pool.slabs.lock();
    let cut: Vec<&CutSlab> = slabs.cut.iter().flatten().collect();
    for (number, slab) in slabs.cut.iter().enumerate() {
        let is_open = slabs.open.iter().any(|open| open.contains(&(number as u32)));
        let may_give = slab.as_ref().is_some_and(|slab| !slab.is_closed && !slab.free.is_empty());
        assert_eq!(is_open, may_give, "slab {number}");
    }
    let open = cut.iter().filter(|slab| !slab.is_closed);
    let idle = (slabs.idle.len() * SLAB_BYTES) as u64;
    (open.map(|slab| slab.free_bytes()).sum::<u64>() + idle, cut.len())
}

#[test]
fn slots_keep_their_bytes_whatever_comes_and_goes() {
    let pool = Arc::new(SlotPool::new(SLAB_BYTES as u64));
    let mut state = 7;
    let mut kept: Vec<(u8, BlockBuffer)> = Vec::new();
    for step in 0..STEPS {
        let n = step as u8;
        // Lengths drift, so that classes run empty.
        let bytes = 1100 + step * 40_000 / STEPS + random(&mut state, 3000);
        let whole = filled(n, bytes);
        if let Some(moved) = whole.moved(&pool, 16 * SLAB_BYTES as u64) {
            assert!(moved.memory_bytes() as u64 >= bytes);
            assert!(moved.memory_bytes() as u64 <= bytes + bytes / 16 + 64);
            kept.push((n, moved));
        }
        if kept.len() > 1000 {
            let (n, gone) = kept.swap_remove(random(&mut state, 1000) as usize);
            assert_filled(&gone, n);
        }
        if step % 64 == 0 {
            assert_eq!(counted(&pool).0, pool.free_bytes());
            if pool.free_bytes() > 8 * SLAB_BYTES as u64 {
                pool.close_sparsest().unwrap();
            }
        }
    }
    assert!(cfg!(miri) || counted(&pool).1 > 8);
    kept.iter().for_each(|(n, buffer)| assert_filled(buffer, *n));
    drop(kept);
    // One slab is kept for the next block.
    assert_eq!(counted(&pool), (pool.free_bytes(), 0));
    assert_eq!((pool.slab_bytes(), pool.free_bytes()), (SLAB_BYTES as u64, SLAB_BYTES as u64));
    assert_eq!(pool.close_sparsest(), Some(Closed::Idle));
    assert_eq!((pool.slab_bytes(), pool.free_bytes(), pool.close_sparsest()), (0, 0, None));
}

#[test]
fn a_slab_is_opened_within_the_bound_and_for_lengths_that_have_a_class() {
    let pool = Arc::new(SlotPool::new(SLAB_BYTES as u64));
    for bytes in [0, 1, SLOT_BYTES_MIN - 1, SLOT_BYTES_MAX + 1, SLAB_BYTES] {
        assert!(pool.take(bytes, ANY).is_none(), "{bytes}");
    }
    let slab_bytes = SLAB_BYTES as u64;
    assert!(pool.take(5000, slab_bytes - 1).is_none());
    let first = pool.take(5000, slab_bytes).unwrap();
    // There is a slab of its class, and none of others.
    let second = pool.take(5000, 0).unwrap();
    assert_eq!(second.start.addr().get() - first.start.addr().get(), first.slot.bytes());
    assert!(pool.take(9000, slab_bytes).is_none());
    let other = pool.take(9000, 2 * slab_bytes).unwrap();
    assert_eq!(pool.slab_bytes(), 2 * slab_bytes);
    let most = *pool.class_bytes.last().unwrap();
    let longest = pool.take(most, ANY).unwrap();
    assert!(longest.slot.bytes() == most && first.slot.bytes() < 5000 + 5000 / 16 + 64);
    drop((first, second, other, longest));
    // The idle slab is memory that is free already.
    assert_eq!(pool.slab_bytes(), slab_bytes);
    assert!(pool.take(9000, 0).is_some());
    // A pool may keep none.
    let pool = Arc::new(SlotPool::new(slab_bytes - 1));
    drop(pool.take(5000, ANY).unwrap());
    assert_eq!((pool.slab_bytes(), pool.free_bytes()), (0, 0));
}

#[test]
fn a_closed_slab_gives_no_slots_until_its_class_needs_a_slab() {
    let pool = Arc::new(SlotPool::new(SLAB_BYTES as u64));
    let count = SLAB_BYTES / pool.take(60 << 10, ANY).unwrap().slot.bytes();
    let mut kept: Vec<Taken> = (0..2 * count).map(|_| pool.take(60 << 10, ANY).unwrap()).collect();
    kept.drain(count + 1..);
    let start = SlabStart::of(kept[count].start);
    assert_eq!(pool.close_sparsest(), Some(Closed::Slab(start)));
    // Its free slots are no part of the free memory any more, and are handed out only if there is
    // no other way.
    assert_eq!(pool.free_bytes(), counted(&pool).0);
    assert!(pool.free_bytes() < 64 << 10);
    drop(kept.remove(0));
    assert_ne!(SlabStart::of(pool.take(60 << 10, 0).unwrap().start), start);
    kept.push(pool.take(60 << 10, 0).unwrap());
    assert!(pool.take(60 << 10, SLAB_BYTES as u64 - 1).is_none());
    let again = pool.take(60 << 10, ANY).unwrap();
    assert_eq!((SlabStart::of(again.start), pool.slab_bytes()), (start, 2 * SLAB_BYTES as u64));
    assert_eq!(pool.free_bytes(), counted(&pool).0);
    // Closed again, it is freed with the last of its slots, beyond the reserve.
    drop(again);
    assert_eq!(pool.close_sparsest(), Some(Closed::Slab(start)));
    assert_eq!(pool.slab_bytes(), 2 * SLAB_BYTES as u64);
    kept.retain(|taken| SlabStart::of(taken.start) != start);
    assert_eq!(pool.slab_bytes(), SLAB_BYTES as u64);
}
