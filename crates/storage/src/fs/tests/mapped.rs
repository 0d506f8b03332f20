//! Appends through a mapping leave the same file as written ones, on every file system.

use super::*;

/// Small numbers that depend on `seed` alone.
fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    }
}

#[test]
fn mapped_appends_leave_what_written_ones_leave() {
    const RESERVED: usize = 3 << 20;
    on_each(|fs, dir| {
        let path = dir.join("a");
        let file = create(fs, &path, b"header--");
        file.preallocate(RESERVED as u64).unwrap();
        file.map_appends();
        let mut number = numbers(5);
        let mut expected = b"header--".to_vec();
        // Beyond the reserved range, so that the last appends make the file grow.
        while expected.len() < RESERVED + (64 << 10) {
            // Runs without a sync of all lengths: a mapping needs some.
            match number(2000) {
                0..20 => file.sync().unwrap(),
                20 if expected.len() < RESERVED => {
                    let rest = RESERVED - expected.len();
                    file.punch(expected.len() as u64, rest as u64).unwrap();
                }
                21 => {
                    let mut read = vec![0; expected.len()];
                    assert_eq!(file.read_at(0, &mut read).unwrap(), read.len());
                    assert!(read == expected, "at {}", expected.len());
                }
                _ => {}
            }
            let len = if number(40) == 0 { number(20_000) } else { number(600) };
            let bytes = vec![number(256) as u8; len];
            file.append(&bytes).unwrap();
            expected.extend_from_slice(&bytes);
        }
        file.sync().unwrap();
        assert!(load(fs, &path) == expected, "another handle reads the same");
    });
}

#[test]
fn mapped_appends_of_many_threads_do_not_overlap_while_one_syncs() {
    const COUNT: usize = 4000;
    on_each(|fs, dir| {
        let file = create(fs, &dir.join("a"), b"");
        file.preallocate(3 * COUNT as u64 * 100).unwrap();
        file.map_appends();
        std::thread::scope(|scope| {
            for id in 1..=3u8 {
                let file = &file;
                scope.spawn(move || (0..COUNT).for_each(|_| file.append(&[id; 100]).unwrap()));
            }
            (0..3).for_each(|_| file.sync().unwrap());
        });
        let bytes = read_all(&file);
        let mut counts = [0; 4];
        for record in bytes.chunks(100) {
            assert!(record.iter().all(|byte| *byte == record[0]), "an append was torn");
            counts[usize::from(record[0])] += 1;
        }
        assert_eq!(counts, [0, COUNT, COUNT, COUNT]);
    });
}
