//! [`prefetch`]: a hint to the processor.
//!
//! The tempting way without `unsafe` is to load a byte and discard it. But the processor retires no
//! later instruction before that load has come from memory. A hint delays nothing.

/// Length of a cache line of the common processors.
pub const LINE_BYTES: usize = 64;

/// Asks the processor for a cache line that is needed soon. Any address may be given. Does nothing on
/// processors other than those of x86-64 and ARM64.
#[inline(always)]
pub fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads no memory as far as the program can tell, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: as above. It changes neither the stack nor the flags.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

/// Asks for `count` lines from the one of `address` on.
#[inline(always)]
pub fn prefetch_lines(address: *const u8, count: usize) {
    for line in 0..count {
        prefetch(address.wrapping_add(line * LINE_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_may_be_given() {
        prefetch(&7);
        for address in [0, 1, usize::MAX] {
            prefetch(std::ptr::without_provenance(address));
        }
    }
}
