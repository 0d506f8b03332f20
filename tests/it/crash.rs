//! The power is cut before every operation on the storage, also while recovery runs.
//!
//! A script runs once. Before each mutating operation, and after the last one, it takes images of
//! what a cut could leave, and each image is opened. It must hold a prefix of the commits, over all
//! partitions, with everything that was durable; it must have no unneeded file; and it must accept
//! writes. Some images are opened read-only first, and must show the same. `SEED=` repeats a run.
//!
//! These scripts pass through these known bugs: torn and reordered logs over segment switches
//! (holes between segments, a bad record in a segment that is not the last), batches over
//! partitions one of which was flushed, a log that is deleted while another partition needs it,
//! opening and crashing again before anything is written, file numbers after a crash between
//! creation and edit, generations of the manifest in each state of their switch, creation of
//! partitions cut in the middle, and level 0 after several flushes in a row.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{CrashOutcome, FaultFs, FsOp, MemFs};
#[cfg(feature = "zstd")]
use siltstone::Compression;
use siltstone::Resources;
use testkit::Rng;

use crate::sim::features::remove_leases;
use crate::sim::oracle::{
    Seen, check_files, check_goes_on, check_prefix, guarded, observe_read_only, reopen,
};
use crate::sim::script::{UNLOGGED, Variant, Writer, variants, with_features};
use crate::sim::{Passed, RecordPosition, Simulation, WriteRecord, context, open};

/// Steps of a script, and scripts of each variant.
const STEPS: usize = 70;
const SCRIPTS: u64 = 2;
/// Steps of a script on a store that is encrypted, or shares resources.
const STEPS_FEW: usize = 20;
const VARIANTS_FEW: [&str; 3] = ["segments", "manifest", "mixed"];
/// One image in so many is cut again while it recovers, and one in so many of those a third time.
const CUT_AGAIN: u64 = 13;
const CUT_THRICE: u64 = 29;

/// An image that a cut could leave.
struct Image {
    /// The operation before which the cut happens, and its outcome.
    what: String,
    mem: MemFs,
    position: RecordPosition,
}

/// Takes images of `mem` before each mutating operation that `fs` passes on.
fn take_images(
    fs: &FaultFs,
    mem: &MemFs,
    outcomes: impl Fn(&mut Rng) -> Vec<CrashOutcome> + Send + Sync + 'static,
    position: impl Fn() -> RecordPosition + Send + Sync + 'static,
    rng: Rng,
) -> Arc<Mutex<Vec<Image>>> {
    let images = Arc::new(Mutex::new(Vec::new()));
    let taken = images.clone();
    let mem = mem.clone();
    let rng = Mutex::new(rng);
    fs.set_observer(Arc::new(move |op: &FsOp| {
        if op.mutates() {
            let mut rng = rng.lock().unwrap();
            let what = format!(
                "op {} ({:?} of {} bytes at {})",
                op.index,
                op.kind,
                op.len,
                op.path.display()
            );
            for outcome in outcomes(&mut rng) {
                let image = image(&mem, &what, outcome, &mut rng, position());
                taken.lock().unwrap().push(image);
            }
        }
    }));
    images
}

fn image(
    mem: &MemFs,
    what: &str,
    outcome: CrashOutcome,
    rng: &mut Rng,
    position: RecordPosition,
) -> Image {
    let what = format!("{what}, {outcome:?}");
    let mem = mem.crash_clone(outcome, &mut || rng.next_u64());
    remove_leases(&mem);
    Image { what, mem, position }
}

/// All outcomes, the random ones twice.
fn all_outcomes(_: &mut Rng) -> Vec<CrashOutcome> {
    let random = [CrashOutcome::Prefix, CrashOutcome::Subset, CrashOutcome::Garbage];
    CrashOutcome::ALL.into_iter().chain(random).collect()
}

fn one_outcome(rng: &mut Rng) -> Vec<CrashOutcome> {
    vec![*rng.pick(&CrashOutcome::ALL)]
}

/// Makes a copy that can be changed without changing the image.
fn copy(mem: &MemFs) -> MemFs {
    mem.crash_clone(CrashOutcome::Everything, &mut || 0)
}

/// Counts over all threads.
#[derive(Default)]
struct Counts {
    images: AtomicU64,
    in_recovery: AtomicU64,
    read_only: AtomicU64,
    passed: Mutex<Passed>,
}

/// Runs a script and checks every image of it.
fn run_script(
    variant: &Variant,
    steps: usize,
    rng: &mut Rng,
    counts: &Counts,
) -> Result<(), String> {
    let mut simulation = Simulation::new(variant, MemFs::new(), WriteRecord::default(), rng.fork());
    let record = simulation.record.clone();
    // Documents take megabytes.
    let outcomes = if variant.documents > 0 { one_outcome } else { all_outcomes };
    let images = take_images(
        &simulation.fs,
        &simulation.mem,
        outcomes,
        move || record.lock().unwrap().position(),
        rng.fork(),
    );
    run_deeds(variant, &mut simulation, rng, steps)?;
    for outcome in outcomes(rng) {
        let last = image(
            &simulation.mem,
            "after the last op",
            outcome,
            rng,
            simulation.record().position(),
        );
        images.lock().unwrap().push(last);
    }
    simulation.fs.clear_observer();
    counts.passed.lock().unwrap().add(&simulation.passed);
    let images = std::mem::take(&mut *images.lock().unwrap());
    for (at, image) in images.iter().enumerate() {
        let again = at as u64 % CUT_AGAIN == rng.below(CUT_AGAIN);
        check_image(variant, &simulation, image, again, rng, counts)
            .map_err(|what| format!("{}: {what}", image.what))?;
    }
    Ok(())
}

fn run_deeds(
    variant: &Variant,
    simulation: &mut Simulation,
    rng: &mut Rng,
    count: usize,
) -> Result<(), String> {
    let is_new = simulation.record().model.log().is_empty();
    simulation.open().map_err(context("open"))?;
    if is_new {
        simulation.prepare().map_err(context("prepare"))?;
    }
    let live: Vec<_> = ["p", "q"]
        .into_iter()
        .filter(|name| simulation.record().model.partition_names().any(|other| other == *name))
        .collect();
    let mut writer = Writer::new(variant, &live, rng.fork());
    for (at, step) in writer.script(count).into_iter().enumerate() {
        simulation.act(&step).map_err(context("a step on a sound store"))?;
        if at.is_multiple_of(3) {
            simulation.check_secondary()?;
        }
    }
    simulation.count();
    Ok(())
}

fn check_image(
    variant: &Variant,
    simulation: &Simulation,
    image: &Image,
    again: bool,
    rng: &mut Rng,
    counts: &Counts,
) -> Result<(), String> {
    let settle = rng.chance(1, 4);
    let untouched = again.then(|| copy(&image.mem));
    let reads_first = rng.chance(1, 4);
    let seen = guarded(|| {
        let shown = if reads_first { observe_read_only(variant, &image.mem)? } else { None };
        let seen = check_goes_on(variant, &image.mem, settle)?;
        check_prefix(&simulation.record(), &image.position, &seen)?;
        if shown.is_some_and(|shown| shown != seen) {
            return Err("opened read-only it shows another state".to_owned());
        }
        Ok(seen)
    })?;
    counts.read_only.fetch_add(reads_first.into(), Ordering::Relaxed);
    counts.images.fetch_add(1, Ordering::Relaxed);
    match untouched {
        Some(mem) => cut_recovery(variant, &mem, &image.position, &seen, 2, rng, counts),
        None => Ok(()),
    }
}

/// Opens an image and cuts the power before every operation of that open. Each result must recover
/// to the same state, at any depth.
fn cut_recovery(
    variant: &Variant,
    mem: &MemFs,
    position: &RecordPosition,
    seen: &Seen,
    deeper: u32,
    rng: &mut Rng,
    counts: &Counts,
) -> Result<(), String> {
    let fs = FaultFs::over_mem(mem.clone());
    let same = position.clone();
    let images = take_images(&fs, mem, one_outcome, move || same.clone(), rng.fork());
    drop(guarded(|| open(variant, Arc::new(fs.clone()), rng.next_u64()).map_err(context("open")))?);
    fs.clear_observer();
    let images = std::mem::take(&mut *images.lock().unwrap());
    for image in &images {
        let deep = deeper > 0 && rng.chance(1, CUT_THRICE);
        let untouched = deep.then(|| copy(&image.mem));
        let found = guarded(|| reopen(variant, &image.mem, 3).map(|(_, found)| found));
        let result = found.and_then(|found| {
            if found != *seen {
                return Err("another state than without the cut".to_owned());
            }
            counts.in_recovery.fetch_add(1, Ordering::Relaxed);
            match untouched {
                Some(mem) => cut_recovery(variant, &mem, position, seen, deeper - 1, rng, counts),
                None => Ok(()),
            }
        });
        result.map_err(|what| format!("recovery cut before {}: {what}", image.what))?;
    }
    Ok(())
}

/// Cuts the power several times in a row, with writes in between.
fn run_chain(variant: &Variant, rng: &mut Rng, counts: &Counts) -> Result<(), String> {
    let mut mem = MemFs::new();
    let mut record = WriteRecord::default();
    for round in 0..6 {
        let mut simulation = Simulation::new(variant, mem, record, rng.fork());
        let record_now = simulation.record.clone();
        let images = take_images(
            &simulation.fs,
            &simulation.mem,
            one_outcome,
            move || record_now.lock().unwrap().position(),
            rng.fork(),
        );
        let steps = rng.range(3..40) as usize;
        run_deeds(variant, &mut simulation, rng, steps)
            .map_err(|w| format!("round {round}: {w}"))?;
        simulation.fs.clear_observer();
        let images = std::mem::take(&mut *images.lock().unwrap());
        let next = rng.index(images.len());
        let base = copy(&images[next].mem);
        for image in &images {
            check_image(variant, &simulation, image, false, rng, counts)
                .map_err(|what| format!("round {round}, {}: {what}", image.what))?;
        }
        let (db, seen) = reopen(variant, &base, 4)?;
        db.close().map_err(context("close"))?;
        check_files(variant, &base)?;
        mem = base;
        record = WriteRecord::of(&seen, None);
        // The cut was before the unlogged partition existed: the next script may run without it.
        if variant.has_unlogged && !seen.logged.contains_key(UNLOGGED) {
            return Ok(());
        }
    }
    Ok(())
}

/// Runs `job` for each variant and each number below `repeats`, on two threads.
pub fn for_each_variant(
    repeats: u64,
    seed: u64,
    job: impl Fn(&Variant, &mut Rng) -> Result<(), String> + Sync,
) {
    for_each_of(&variants(), repeats, seed, job);
}

/// The same for each of these.
pub fn for_each_of(
    variants: &[Variant],
    repeats: u64,
    seed: u64,
    job: impl Fn(&Variant, &mut Rng) -> Result<(), String> + Sync,
) {
    let only = std::env::var("VARIANT").ok();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let repeat = (at / variants.len()) as u64;
            if repeat >= repeats || !failures.lock().unwrap().is_empty() {
                return;
            }
            let number = at % variants.len();
            // Variants run in turns with and without a mapped log, and the same for tables. All
            // four pairs occur over all variants.
            let is_mapped = (number as u64 + repeat).is_multiple_of(2);
            let are_mapped = (number as u64 / 2 + repeat).is_multiple_of(2);
            let mut variant = variants[number].at_the_begin();
            variant.options = variant.options.wal_mapped(is_mapped).tables_mapped(are_mapped);
            // Each variant in turns with and without, if it runs more than once.
            #[cfg(feature = "zstd")]
            if is_mapped {
                let with_zstd = variant.partition_options.compression(Compression::Zstd);
                variant.partition_options = with_zstd;
            }
            if only.as_ref().is_some_and(|only| only != variant.name) {
                continue;
            }
            let mut rng = Rng::new(seed ^ (at as u64) << 32);
            if let Err(what) = job(&variant, &mut rng) {
                let text = format!(
                    "variant {}, run {repeat}, log mapped {is_mapped}, tables mapped {are_mapped}, \
                     SEED={seed}: {what}",
                    variant.name
                );
                failures.lock().unwrap().push(text);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The seed of a run: `SEED` of the environment, or `seed`.
pub fn seed_or(seed: u64) -> u64 {
    std::env::var("SEED").map_or(seed, |text| text.parse().expect("SEED is a decimal number"))
}

#[test]
fn every_power_cut_leaves_a_prefix_that_accepts_writes() {
    let counts = Counts::default();
    let seed = seed_or(20_261_121);
    for_each_variant(SCRIPTS, seed, |variant, rng| run_script(variant, STEPS, rng, &counts));
    let images = counts.images.load(Ordering::Relaxed);
    let in_recovery = counts.in_recovery.load(Ordering::Relaxed);
    let passed = *counts.passed.lock().unwrap();
    let read_only = counts.read_only.load(Ordering::Relaxed);
    println!(
        "{images} images ({read_only} read-only too), {in_recovery} more while recovering, \
         {passed:?}, SEED={seed}"
    );
    if std::env::var("VARIANT").is_err() {
        assert!(images >= 20_000 && in_recovery >= 5_000, "too few: {images}, {in_recovery}");
        assert!(read_only >= 4_000, "too few: {read_only}");
        assert!(passed.flushes > 100 && passed.compactions > 100 && passed.moves > 5);
        assert!(passed.with_ranges > 5 && passed.with_ranges_and_snapshot > 2, "{passed:?}");
        assert!(passed.wal_segments_most > 3 && passed.tables_most > 6, "{passed:?}");
    }
}

/// The same with transactions, expiry, a FIFO, ingests, streams and a secondary in one history.
#[test]
fn every_power_cut_of_a_store_with_all_features_leaves_a_prefix_that_accepts_writes() {
    let counts = Counts::default();
    let seed = seed_or(20_261_132);
    for_each_of(&[with_features()], SCRIPTS, seed, |variant, rng| {
        run_script(variant, STEPS, rng, &counts)
    });
    let images = counts.images.load(Ordering::Relaxed);
    let in_recovery = counts.in_recovery.load(Ordering::Relaxed);
    let passed = *counts.passed.lock().unwrap();
    println!("{images} images, {in_recovery} more while recovering, {passed:?}, SEED={seed}");
    assert!(images >= 2_000 && in_recovery >= 500, "too few: {images}, {in_recovery}");
    assert!(passed.ingests > 1 && passed.conflicts > 0, "{passed:?}");
}

/// The same under encryption: a torn record is as a torn append, and the end of a file is written again.
#[test]
fn every_power_cut_of_an_encrypted_store_leaves_a_prefix_that_accepts_writes() {
    let counts = Counts::default();
    let seed = seed_or(20_261_129);
    for_each_variant(1, seed, |variant, rng| {
        if !VARIANTS_FEW.contains(&variant.name) {
            return Ok(());
        }
        run_script(&variant.encrypted(), STEPS_FEW, rng, &counts)
    });
    let images = counts.images.load(Ordering::Relaxed);
    let in_recovery = counts.in_recovery.load(Ordering::Relaxed);
    println!("{images} images, {in_recovery} more while recovering, SEED={seed}");
    if std::env::var("VARIANT").is_err() {
        assert!(images >= 2_000 && in_recovery >= 500, "too few: {images}, {in_recovery}");
    }
}

/// The same of a store that shares resources with another one, and with each image of itself that is opened.
#[test]
fn every_power_cut_of_a_store_that_shares_resources_leaves_a_prefix_that_accepts_writes() {
    let counts = Counts::default();
    let seed = seed_or(20_261_130);
    for_each_variant(1, seed, |variant, rng| {
        if !VARIANTS_FEW.contains(&variant.name) {
            return Ok(());
        }
        let shared = variant.shared();
        run_script(&shared, STEPS_FEW, rng, &counts)?;
        let usage = shared.resources.iter().map(Resources::usage).next().unwrap();
        let left = [usage.active_memtable_bytes, usage.sealed_memtable_bytes, usage.open_files];
        if left == [0; 3] { Ok(()) } else { Err(format!("closed databases keep {usage:?}")) }
    });
    let images = counts.images.load(Ordering::Relaxed);
    let in_recovery = counts.in_recovery.load(Ordering::Relaxed);
    println!("{images} images, {in_recovery} more while recovering, SEED={seed}");
    if std::env::var("VARIANT").is_err() {
        assert!(images >= 2_000 && in_recovery >= 500, "too few: {images}, {in_recovery}");
    }
}

/// The same with tables that have a dictionary of zstd, which compactions train.
#[test]
#[cfg(feature = "zstd")]
fn every_power_cut_of_a_store_with_dictionaries_leaves_a_prefix_that_accepts_writes() {
    let counts = Counts::default();
    let seed = seed_or(20_261_131);
    for_each_variant(1, seed, |variant, rng| match variant.name {
        "compactions" | "ranges" => {
            run_script(&variant.with_dictionaries(), STEPS_FEW, rng, &counts)
        }
        _ => Ok(()),
    });
    let images = counts.images.load(Ordering::Relaxed);
    let passed = *counts.passed.lock().unwrap();
    println!("{images} images, {passed:?}, SEED={seed}");
    if std::env::var("VARIANT").is_err() {
        // Each of both variants begins with one.
        assert!(images >= 100 && passed.compactions >= 2, "too few: {images}, {passed:?}");
        // A dictionary that is ready for use takes 44 KiB.
        assert!(passed.open_table_bytes_most > 40 << 10, "no dictionary: {passed:?}");
    }
}

#[test]
fn repeated_power_cuts_keep_the_state_of_each_recovery() {
    let counts = Counts::default();
    let seed = seed_or(7);
    // Not with all features: each script numbers the keys of its FIFO from the beginning.
    for_each_variant(3, seed, |variant, rng| run_chain(variant, rng, &counts));
    println!("{} images, SEED={seed}", counts.images.load(Ordering::Relaxed));
}

#[test]
fn a_replay_in_several_tables_keeps_deletions() {
    let variant = &variants()[0];
    let mem = MemFs::new();
    let db = open(variant, Arc::new(mem.clone()), 1).unwrap();
    let default = db.partition("default").unwrap();
    default.put("deleted", "once").unwrap();
    default.put("large", vec![7; 2 * variant.options.write_buffer_bytes as usize]).unwrap();
    default.delete("deleted").unwrap();
    db.close().unwrap();
    let (_db, seen) = reopen(variant, &mem, 2).unwrap();
    assert!(!seen.logged["default"].contains_key(&b"deleted"[..]));
}

#[test]
fn a_frame_larger_than_the_reserve_does_not_reorder_the_log() {
    let mut variant = variants()[0].clone();
    variant.options = variant.options.wal_segment_bytes(4 << 10);
    let mem = MemFs::new();
    let db = open(&variant, Arc::new(mem.clone()), 1).unwrap();
    let default = db.partition("default").unwrap();
    let put = |n: u8, bytes: usize| {
        let batch = db.batch().put(&default, [n], vec![n; bytes]);
        batch.commit(siltstone::Durability::Sync).unwrap();
    };
    put(1, 3000);
    put(2, 3000);
    // The second segment is in use: a step creates the third one as a reserve.
    while db.step().unwrap() {}
    put(3, 9000);
    put(4, 3000);
    put(5, 3000);
    let cut = mem.crash_clone(CrashOutcome::Nothing, &mut || 0);
    let (_db, seen) = reopen(&variant, &cut, 2).unwrap();
    assert_eq!(seen.logged["default"].len(), 5);
}
