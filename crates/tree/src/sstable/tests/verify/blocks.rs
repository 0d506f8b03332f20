//! Blocks whose checksum is right and whose content is not.

use super::*;

/// The numbers of visible and of hidden entries before entry `i` of all.
fn counts_before(block: &Block, i: usize) -> (usize, usize) {
    let mut visible = 0;
    let mut hidden = 0;
    while visible + hidden < i {
        if block.is_hidden_next(visible, hidden) {
            hidden += 1;
        } else {
            visible += 1;
        }
    }
    (visible, hidden)
}

/// Walks a block that parsed, hidden entries included: whatever it holds, it must be in order.
fn use_block(block: &Block, suffix: &[u8]) {
    let mut last: Option<InternalKey> = None;
    let mut user = Vec::new();
    let count = block.len() + block.hidden_len();
    for i in 0..count {
        let (visible, hidden) = counts_before(block, i);
        let is_hidden = counts_before(block, i + 1).0 == visible;
        let trailer = if is_hidden {
            let head = block.hidden_head(hidden);
            let trailer = block.hidden_key(hidden, suffix, &mut user);
            let mut payload = Vec::new();
            head.expand(block.bytes(), trailer.seq(), &mut payload);
            assert_eq!(payload.len(), head.payload_len());
            trailer
        } else {
            let entry = block.key(visible);
            user = [entry.key.shared, entry.key.suffix].concat();
            entry.trailer
        };
        let key = KeyRef::new(&user, trailer);
        assert_eq!(block.lower_bound_all(key, suffix), (visible, hidden));
        assert!(last.as_ref().is_none_or(|last| last.as_ref() < key));
        last = Some(key.to_owned());
    }
    let (first, end) = block.edges(suffix);
    assert!(first <= end && last == Some(end));
}

fn payload_of(bytes: &[u8]) -> StoredPayload {
    // Bytes after the payload, as there are in an uncompressed block.
    StoredPayload { bytes: [bytes, &[0xee; 9]].concat().into(), len: bytes.len() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// The checksum does not guard against a writer with a fault, or with intent.
    #[test]
    fn a_block_with_false_hidden_entries_is_refused_or_in_order(
        edits in vec((any::<Index>(), any::<u8>()), 0..4),
        flip in (any::<Index>(), 0..8_u8),
    ) {
        let options = options(1 << 20, Compression::None);
        let (bytes, _, _) = table().write(&[1], options, 1 << 20, |_| true);
        let reader = open(&bytes, None).unwrap();
        let mut payload = bytes[..reader.properties().data_bytes as usize - 9].to_vec();
        use_block(&Block::parse(payload_of(&payload), Some(&[1])).unwrap(), &[1]);
        prop_assert!(Block::parse(payload_of(&payload), None).is_err());
        let sound = TolerantBlock::decode(&payload_of(&payload), Some(&[1]));
        prop_assert!(sound.is_complete && sound.entries.len() == table().all.len());
        let at = flip.0.index(payload.len());
        payload[at] ^= 1 << flip.1;
        for (place, byte) in edits {
            let at = place.index(payload.len());
            payload[at] = byte;
        }
        if let Ok(block) = Block::parse(payload_of(&payload), Some(&[1])) {
            use_block(&block, &[1]);
        }
        TolerantBlock::decode(&payload_of(&payload), Some(&[1]));
    }

    #[test]
    fn no_bytes_make_a_hidden_or_suspect_entry_panic(
        mut payload in vec(prop_oneof![any::<u8>(), 0..4_u8, Just(0x30), Just(0x70), Just(0xf0), Just(0xb0), Just(0x50)], 0..60),
        count in 0..4_u8,
        is_tailed: bool,
    ) {
        if is_tailed {
            payload.extend([&[0; 4][..], &[0; 12], &[count, 0, 0, 0]].concat());
        }
        if let Ok(block) = Block::parse(payload_of(&payload), Some(&[1])) {
            use_block(&block, &[1]);
        }
        let mut suspect = TolerantBlock::decode(&payload_of(&payload), Some(&[1]));
        let mut key = Vec::new();
        let mut value = Vec::new();
        suspect.entries.iter().for_each(|entry| suspect.expand(entry, &mut key, &mut value));
        suspect.keep_ordered(None, &entry(&[0xff; 9], 0, EntryKind::Value, b"").0);
    }
}
