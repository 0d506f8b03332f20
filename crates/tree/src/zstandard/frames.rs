//! Frames and dictionaries, by the library of Zstandard.

use std::cell::RefCell;

use ::zstd::dict::from_continuous;
use ::zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use ::zstd::zstd_safe::{CCtx, CParameter, DCtx, DDict, InBuffer, OutBuffer, compress_bound};

/// The level of every frame: the default of the library, and of RocksDB. An option for it would be one more figure to
/// tune, for some hundredths of the space.
const LEVEL: i32 = 3;
/// Bytes of a frame that are handed on at once.
const PIECE_BYTES: usize = 128 << 10;

thread_local! {
    /// A context has 100 KiB and more: one for each decompression would cost more than a block.
    static CONTEXT: RefCell<DCtx<'static>> = RefCell::new(DCtx::create());
}

/// Compresses frames, one after the other.
pub struct Compressor {
    context: CCtx<'static>,
}

impl Default for Compressor {
    fn default() -> Compressor {
        Compressor::new()
    }
}

impl Compressor {
    /// Without a dictionary.
    pub fn new() -> Compressor {
        let mut context = CCtx::create();
        // What holds the frame has a checksum, and says which dictionary it needs.
        let parameters = [
            CParameter::CompressionLevel(LEVEL),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ];
        for parameter in parameters {
            context.set_parameter(parameter).expect("each value is in its range");
        }
        Compressor { context }
    }

    /// Each frame with this dictionary.
    pub fn with_dictionary(dictionary: &[u8]) -> Compressor {
        let mut compressor = Compressor::new();
        // It fails for want of memory alone, where an allocation of this program ends it as well.
        compressor.context.load_dictionary(dictionary).expect("the dictionary is in memory twice");
        compressor
    }

    /// Appends the frame of `plain` to `out`; `false` without it.
    pub fn compress(&mut self, plain: &[u8], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        out.resize(start + compress_bound(plain.len()), 0);
        let len = self.context.compress2(&mut out[start..], plain);
        out.truncate(start + len.unwrap_or(0));
        len.is_ok()
    }

    /// Gives the frame of the pieces, one after the other, to `sink`. After `false`, what it gave is no frame.
    ///
    /// # Errors
    /// Those of `sink`.
    ///
    /// # Cost
    /// Memory for some MiB, whatever the length of the pieces.
    pub fn compress_pieces<E>(
        &mut self,
        pieces: &[&[u8]],
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.context.set_pledged_src_size(Some(len as u64)).is_err() {
            return Ok(false);
        }
        let mut room = vec![0; PIECE_BYTES];
        let ends = pieces.iter().map(|piece| (*piece, ZSTD_EndDirective::ZSTD_e_continue));
        for (piece, end) in ends.chain([(&[][..], ZSTD_EndDirective::ZSTD_e_end)]) {
            let is_end = end == ZSTD_EndDirective::ZSTD_e_end;
            let mut input = InBuffer::around(piece);
            loop {
                let mut output = OutBuffer::around(&mut room[..]);
                let Ok(left) = self.context.compress_stream2(&mut output, &mut input, end) else {
                    return Ok(false);
                };
                sink(output.as_slice())?;
                // At the end it says how much is left to hand on.
                if if is_end { left == 0 } else { input.pos() == piece.len() } {
                    break;
                }
            }
        }
        Ok(true)
    }
}

/// A dictionary in the form in which frames are decompressed with it.
pub struct Dictionary(DDict<'static>);

impl Dictionary {
    /// Of these bytes; `None` if they are none.
    pub fn new(bytes: &[u8]) -> Option<Dictionary> {
        DDict::try_create(bytes).map(Dictionary)
    }

    /// Memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.0.sizeof()
    }
}

/// Decompresses a frame into `target`, which has its plain length; `false` if the bytes are no such frame.
pub fn decompress(frame: &[u8], target: &mut [u8], dictionary: Option<&Dictionary>) -> bool {
    let expected = target.len();
    let len = CONTEXT.with_borrow_mut(|context| match dictionary {
        Some(dictionary) => context.decompress_using_ddict(target, frame, &dictionary.0),
        None => context.decompress(target, frame),
    });
    len == Ok(expected)
}

/// Trains a dictionary of at most `bytes_max` bytes with samples, which lie one after the other and have these
/// lengths. `None` if they do not suffice. Equal samples make equal dictionaries.
pub fn train(samples: &[u8], lens: &[usize], bytes_max: usize) -> Option<Vec<u8>> {
    from_continuous(samples, lens, bytes_max).ok()
}
