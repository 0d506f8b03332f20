//! Damages every file in every way: flipped bits, cuts, overwritten bytes, files that are missing
//! or of another store.

use super::*;
use crate::crash::seed_or;

fn loss_at(path: &Path, loss: Loss) -> Loss {
    if Store::kind(path) == Some(FileKind::Wal) { loss } else { Loss::Nothing }
}

/// Flips three bits of each byte, others in the next byte. Runs with `SEED` from 0 to 7 flip all
/// bits.
fn flip_bits(store: &Store, seed: u64) {
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let len = store.fs.read_raw(&path).unwrap().len();
        for at in 0..len {
            for bit in [0, 3, 6].map(|step| (seed as usize + at + step) % 8) {
                let loss = loss_at(&path, Loss::Unattested);
                tally.case(
                    store,
                    "flips",
                    loss,
                    || format!("bit {bit} of byte {at} of {} flipped", path.display()),
                    |fs| fs.corrupt(&path, at as u64, 1 << bit),
                );
            }
        }
    }
    tally.finish(store);
}

#[test]
fn no_flipped_bit_of_a_closed_store_is_silent() {
    let seed = seed_or(0);
    println!("SEED={seed}");
    flip_bits(&build("closed", 1, true), seed);
}

#[test]
fn no_flipped_bit_of_a_crashed_store_is_silent() {
    let seed = seed_or(0);
    println!("SEED={seed}");
    flip_bits(&build("crashed", 1, false), seed);
}

/// Lengths to which files are cut: all of them, but only every 64th in the zeros after a log.
fn lengths(bytes: &[u8]) -> Vec<u64> {
    let content = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    (0..bytes.len()).filter(|at| *at <= content + 8 || at % 64 == 0).map(|at| at as u64).collect()
}

fn cut_and_extend(store: &Store) {
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let bytes = store.fs.read_raw(&path).unwrap();
        let name = path.display();
        for len in lengths(&bytes) {
            let loss = loss_at(&path, Loss::Tail);
            tally.case(
                store,
                "cuts",
                loss,
                || format!("{name} cut to {len} bytes"),
                |fs| fs.truncate_raw(&path, len),
            );
        }
        let mut rng = Rng::new(5);
        for count in [1, 7, 8, 24, 512, 4096] {
            let zeros = bytes.len() as u64 + count;
            tally.case(
                store,
                "zeros",
                Loss::Nothing,
                || format!("{name} extended by {count} zeros"),
                |fs| fs.truncate_raw(&path, zeros),
            );
            let garbage = (0..count).map(|_| rng.next_u64() as u8);
            let bytes: Vec<u8> = bytes.iter().copied().chain(garbage).collect();
            tally.case(
                store,
                "garbage",
                Loss::Nothing,
                || format!("{name} extended by {count} bytes of garbage"),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    tally.finish(store);
}

#[test]
fn no_cut_or_extended_file_of_a_closed_store_is_silent() {
    cut_and_extend(&build("closed", 2, true));
}

#[test]
fn no_cut_or_extended_file_of_a_crashed_store_is_silent() {
    cut_and_extend(&build("crashed", 2, false));
}

fn overwrite(store: &Store) {
    const SECTOR: usize = 512;
    let mut tally = Tally::default();
    for path in store.fs.paths() {
        let bytes = store.fs.read_raw(&path).unwrap();
        let name = path.display();
        for (at, &byte) in bytes.iter().enumerate() {
            let set = if at % 2 == 0 { 0 } else { 0xff };
            if byte == set || (byte == 0 && at % 16 != 1) {
                continue;
            }
            let mask = byte ^ set;
            let loss = loss_at(&path, Loss::Unattested);
            tally.case(
                store,
                "bytes",
                loss,
                || format!("byte {at} of {name} set to {set:#x}"),
                |fs| fs.corrupt(&path, at as u64, mask),
            );
        }
        let sectors: Vec<usize> = (0..bytes.len()).step_by(SECTOR).collect();
        let end = |at: usize| (at + SECTOR).min(bytes.len());
        for (number, &at) in sectors.iter().enumerate() {
            let mut zeroed = bytes.clone();
            zeroed[at..end(at)].fill(0);
            let loss = loss_at(&path, Loss::Tail);
            tally.case(
                store,
                "zeroed",
                loss,
                || format!("sector {at} of {name} zeroed"),
                |fs| fs.write_raw(&path, &zeroed),
            );
            for &other in &sectors[number + 1..] {
                let len = (end(at) - at).min(end(other) - other);
                let mut swapped = bytes.clone();
                let (left, right) = swapped.split_at_mut(other);
                left[at..at + len].swap_with_slice(&mut right[..len]);
                tally.case(
                    store,
                    "sector swaps",
                    loss,
                    || format!("sectors {at} and {other} of {name} swapped"),
                    |fs| fs.write_raw(&path, &swapped),
                );
            }
        }
    }
    tally.finish(store);
}

#[test]
fn no_overwritten_byte_or_sector_of_a_closed_store_is_silent() {
    overwrite(&build("closed", 3, true));
}

#[test]
fn no_overwritten_byte_or_sector_of_a_crashed_store_is_silent() {
    overwrite(&build("crashed", 3, false));
}

fn mix_up_files(store: &Store, twin: &Store) {
    let mut tally = Tally::default();
    for kind in [FileKind::Sst, FileKind::Wal, FileKind::Manifest] {
        let files = store.files(kind);
        for (number, path) in files.iter().enumerate() {
            let name = path.display();
            let bytes = store.fs.read_raw(path).unwrap();
            let outcome = tally.case(
                store,
                "missing",
                Loss::Nothing,
                || format!("{name} missing"),
                |fs| fs.remove_raw(path),
            );
            assert_ne!(outcome, Some(Outcome::Whole), "{name} is not needed");
            for other in &files[number + 1..] {
                let others = store.fs.read_raw(other).unwrap();
                tally.case(
                    store,
                    "file swaps",
                    Loss::Nothing,
                    || format!("{name} and {} swapped", other.display()),
                    |fs| {
                        fs.write_raw(path, &others)?;
                        fs.write_raw(other, &bytes)
                    },
                );
            }
            for (age, past) in store.past.iter().enumerate() {
                let Ok(stale) = past.read_raw(path) else { continue };
                let loss = loss_at(path, Loss::Tail);
                tally.case(
                    store,
                    "stale",
                    loss,
                    || format!("{name} as it was at moment {age}"),
                    |fs| fs.write_raw(path, &stale),
                );
            }
            for other in twin.files(kind) {
                let foreign = twin.fs.read_raw(&other).unwrap();
                // A reserve holds only zeros, so that those of two stores are equal.
                let is_zeros = foreign.iter().all(|byte| *byte == 0);
                let loss = if is_zeros { loss_at(path, Loss::Tail) } else { Loss::Nothing };
                tally.case(
                    store,
                    "foreign",
                    loss,
                    || format!("{name} replaced by {} of a twin", other.display()),
                    |fs| fs.write_raw(path, &foreign),
                );
            }
        }
    }
    for (path, age) in store
        .past
        .iter()
        .enumerate()
        .flat_map(|(age, past)| past.paths().into_iter().map(move |path| (path, age)))
    {
        if store.fs.read_raw(&path).is_err() {
            let bytes = store.past[age].read_raw(&path).unwrap();
            tally.case(
                store,
                "back",
                Loss::Nothing,
                || format!("{} of moment {age} is back", path.display()),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    for path in twin.fs.paths() {
        if store.fs.read_raw(&path).is_err() {
            let bytes = twin.fs.read_raw(&path).unwrap();
            tally.case(
                store,
                "besides",
                Loss::Nothing,
                || format!("{} of a twin besides", path.display()),
                |fs| fs.write_raw(&path, &bytes),
            );
        }
    }
    tally.finish(store);
}

#[test]
fn no_missing_stale_or_foreign_file_of_a_closed_store_is_silent() {
    mix_up_files(&build("closed", 4, true), &build("twin", 5, true));
    mix_up_files(&build("closed", 4, true), &build("older twin", 5, false));
}

#[test]
fn no_missing_stale_or_foreign_file_of_a_crashed_store_is_silent() {
    mix_up_files(&build("crashed", 4, false), &build("twin", 5, false));
}

#[test]
fn foreign_files_in_the_folder_do_not_matter_and_stay() {
    let store = build("closed", 6, true);
    let names = [
        ".DS_Store",
        "notes.txt",
        "LOCK2",
        "0000.sst",
        "0000000000000001-00000001.SST",
        "0000000000000001-00000001.sst.bak",
        "notes.manifest.tmp",
        "backup/0000000000000001-00000001.sst",
    ];
    let mut tally = Tally::default();
    for name in names {
        let fs = copy_of(&store.fs);
        let path = Path::new(DIR).join(name);
        let put = |fs: &MemFs| {
            fs.create_dir(path.parent().unwrap())?;
            fs.write_raw(&path, b"not ours")
        };
        let outcome =
            tally.case(&store, "besides", Loss::Nothing, || format!("{name} besides"), put);
        assert!(outcome.is_none_or(|outcome| outcome == Outcome::Whole), "{name}: {outcome:?}");
        put(&fs).unwrap();
        open(&fs, 1).unwrap().close().unwrap();
        assert_eq!(fs.read_raw(&path).unwrap(), b"not ours", "{name}");
    }
    tally.finish(&store);
}
