//! Readers during a promotion: read-only opens after an unfinished one, and secondaries that have
//! the cursor of the epoch that ends.

use std::sync::atomic::Ordering;

use lsm_core::codec::checksum64;
use lsm_core::fs::MapMode;

use super::claimants::die_while_taking_over;
use super::*;

/// Number of a word in the commit cursor.
const MACHINE_RUN: usize = 5;

/// Opens the database without writing.
fn open_read_only(fs: &Arc<dyn Fs>) -> Result<Db> {
    let builder = Db::builder(DIR).fs(fs.clone()).options(options());
    builder.background(BackgroundMode::Stepped).read_only(true).open()
}

/// The names in the folder that begin with `prefix`, without files that were never finished.
fn names(fs: &Arc<dyn Fs>, prefix: &str) -> Vec<String> {
    let names = fs.list_names(DIR.as_ref(), prefix).unwrap().into_iter();
    names.filter(|name| !name.ends_with(".tmp")).collect()
}

/// A primary that was used, and its content.
fn used() -> (Stage, State) {
    let stage = Stage::new();
    let mut rng = Rng::from_env_or(6);
    for number in 0..DEEDS {
        random_write(&stage.old, &mut rng, number).unwrap();
    }
    let kept = state_of(&stage.old);
    (stage, kept)
}

/// A claimant that died between its claim and its fork used to keep every reader out. After a fork,
/// readers opened the generation of the manifest that the fork was read from, and that its state
/// replaces.
#[test]
fn what_a_dead_claimant_leaves_is_read_without_writing() {
    let mut without_fork = 0;
    let mut forks = 0;
    for after in 0.. {
        let (stage, kept) = used();
        let context = format!("operation {after} of the claimant");
        let died = Arc::new(Mutex::new(None));
        let slot = died.clone();
        let folder = stage.mem.clone();
        // The old primary is stopped before it writes a frame. After a fence it refuses the frame,
        // and no reader shows it.
        stage.before_op(0, move || {
            *slot.lock().unwrap() = Some(die_while_taking_over(&folder, after));
        });
        let late = stage.old.open_partition("a").unwrap().put("late", "1");
        stage.fault.clear_observer();
        let has_died = died.lock().unwrap().take().unwrap();
        let kept = if late.is_ok() { state_of(&stage.old) } else { kept };
        let Stage { old, plain, mem, .. } = stage;
        let while_it_lives = open_read_only(&plain);
        if names(&plain, "fork-").is_empty() {
            without_fork += names(&plain, "epoch-").len();
            let refused = while_it_lives.as_ref().err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Locked, "{context}");
        }
        drop(while_it_lives);
        drop(old);
        let before = mem.paths();
        let reader = open_read_only(&plain).unwrap();
        assert!(state_of(&reader) == kept, "{context}: {late:?}");
        let report = reader.verify(VerifyOptions::default()).unwrap();
        assert!(report.damage().is_empty(), "{context}: {:?}", report.damage());
        reader.close().unwrap();
        assert_eq!(mem.paths(), before, "{context}: a reader makes nothing");
        // The fork holds the state, as long as the next epoch has no manifest of its own.
        let manifests = names(&plain, "").into_iter().filter(|name| name.ends_with(".manifest"));
        let manifests: Vec<_> = manifests.collect();
        let is_begun = manifests.iter().any(|name| name.contains("-00000002."));
        if !is_begun && !names(&plain, "fork-").is_empty() {
            forks += 1;
            for name in manifests {
                plain.delete(&Path::new(DIR).join(name)).unwrap();
            }
            let reader = open_read_only(&plain).unwrap();
            assert!(state_of(&reader) == kept, "{context}: the fork is enough");
        }
        if !has_died {
            assert!(
                after > 20 && without_fork > 3 && forks > 3,
                "{after}, {without_fork}, {forks}"
            );
            return;
        }
        assert!(state_of(&open(&plain).unwrap()) == kept, "{context}: the next writer");
    }
}

/// Makes later opens see the cursor as that of another machine, and then again as that of this
/// machine.
fn move_cursor_elsewhere(fs: &Arc<dyn Fs>) {
    let path = Path::new(DIR).join("cursor-00000001");
    let cursor = fs.map_words(&path, MapMode::Write).unwrap().unwrap();
    cursor.words()[MACHINE_RUN].fetch_xor(1, Ordering::AcqRel);
}

/// A secondary on another machine does not see a fence. While there is a claim, it keeps its whole
/// state.
#[test]
fn a_secondary_on_another_machine_keeps_its_state_during_a_claim() {
    for died_at in 0.. {
        let (stage, _) = used();
        let a = stage.old.open_partition("a").unwrap();
        let b = stage.old.open_partition("b").unwrap();
        stage.old.batch().put(&a, "k", "1").put(&b, "k", "1").commit(Durability::Sync).unwrap();
        stage.old.wait_durable(stage.old.visible_seq()).unwrap();
        stage.old.wait_idle().unwrap();
        move_cursor_elsewhere(&stage.plain);
        let [idle, busy] = [0; 2].map(|_| secondary(&stage.plain));
        busy.sync(Target::Latest).unwrap();
        let kept = state_of(&stage.old);
        move_cursor_elsewhere(&stage.plain);
        let has_died = die_while_taking_over(&stage.mem, died_at);
        let mut batch = stage.old.batch();
        batch.add_put(&a, b"k", b"2");
        batch.add_put(&b, b"k", b"2");
        drop(batch.commit(Durability::Sync));
        drop(a.flush());
        let is_pending = !names(&stage.plain, "epoch-").is_empty();
        let is_pending =
            is_pending && !names(&stage.plain, "").iter().any(|name| is_of_epoch_2(name));
        if is_pending {
            move_cursor_elsewhere(&stage.plain);
            for follower in [&idle, &busy] {
                follower.sync(Target::Latest).unwrap();
                let cut = follower.cut();
                let seen = PARTITIONS.map(|name| {
                    let partition = follower.partition(name).unwrap();
                    let refused = partition.at(Level::Strong).err().unwrap();
                    assert_eq!(refused.kind(), ErrorKind::Unsupported, "operation {died_at}");
                    content(&cut.partition(&partition).unwrap())
                });
                assert!(seen == kept, "operation {died_at}");
            }
        }
        if !has_died {
            return;
        }
    }
}

fn is_of_epoch_2(name: &str) -> bool {
    name.ends_with("-00000002.manifest")
}

/// A look at the claim costs a listing. The manifest used to be read hundreds of times during the
/// wait.
#[test]
fn who_waits_for_a_promotion_does_not_read_the_manifest_again() {
    for after in 0.. {
        let (stage, _) = used();
        assert!(die_while_taking_over(&stage.mem, after), "no claimant left a claim alone");
        let is_refused = stage.old.open_partition("a").unwrap().put("late", "1").is_err();
        if names(&stage.plain, "fork-").is_empty() && is_refused {
            move_cursor_elsewhere(&stage.plain);
            let watched = FaultFs::over_mem(stage.mem.clone());
            watched.start_log();
            let fs: Arc<dyn Fs> = Arc::new(watched.clone());
            let refused = Secondary::builder(DIR).fs(fs).open().err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::NeedsManifest);
            let read = watched.take_log().into_iter().filter(|op| {
                op.kind == OpKind::OpenRead && op.path.to_string_lossy().ends_with(".manifest")
            });
            assert!(read.count() < 10);
            return;
        }
    }
}

#[test]
fn a_look_without_a_cursor_lists_the_folder_once() {
    let mem = MemFs::new();
    let plain: Arc<dyn Fs> = Arc::new(mem.clone());
    let db = primary(&plain);
    db.partition("p").unwrap().put("k", "1").unwrap();
    delete_cursor(&plain);
    let watched = FaultFs::over_mem(mem);
    let follower = secondary(&(Arc::new(watched.clone()) as Arc<dyn Fs>));
    follower.sync(Target::Latest).unwrap();
    watched.start_log();
    follower.sync(Target::Latest).unwrap();
    let lists = watched.take_log().into_iter().filter(|op| op.kind == OpKind::List);
    assert_eq!(lists.count(), 1);
}

/// A follower that has the cursor of an epoch mapped, at each operation of the open that ends the epoch.
#[test]
fn a_cursor_that_is_superseded_under_a_follower_is_believed_no_more() {
    for is_promotion in [false, true] {
        let mem = MemFs::new();
        let plain: Arc<dyn Fs> = Arc::new(mem.clone());
        let old = primary(&plain);
        old.partition("p").unwrap().put("k", "1").unwrap();
        let follower = secondary(&plain);
        let followed = follower.partition("p").unwrap();
        followed.at(Level::Strong).unwrap();
        assert!(follower.has_live_primary());
        let old = is_promotion.then_some(old);
        let next = FaultFs::over_mem(mem);
        let looks = Arc::new(Mutex::new(0));
        let counts = looks.clone();
        let looking = followed.clone();
        next.set_observer(Arc::new(move |_| {
            *counts.lock().unwrap() += 1;
            let options = ReadOptions::new(Level::Strong).wait(std::time::Duration::ZERO);
            // Nothing is acknowledged in the meantime, so the state of the old primary is the
            // current one.
            let reading = looking.read(&options).unwrap();
            assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(looking.get("k").unwrap().as_deref(), Some(&b"1"[..]));
        }));
        let fs: Arc<dyn Fs> = Arc::new(next.clone());
        let db = if is_promotion { take_over(&fs).unwrap() } else { open(&fs).unwrap() };
        next.clear_observer();
        let count = *looks.lock().unwrap();
        assert!(count > 20, "{count} looks");
        db.partition("p").unwrap().put("k", "2").unwrap();
        let reading = followed.at(Level::Strong).unwrap();
        assert_eq!(reading.get("k").unwrap().as_deref(), Some(&b"2"[..]));
        assert!(follower.has_live_primary());
        drop(old);
    }
}

/// A reader that has looked for claims and found none may get the lock that the old primary
/// releases.
#[test]
fn a_read_only_open_during_a_promotion_does_not_get_an_old_lock() {
    check_open_during_a_promotion(1, open_read_only);
}

/// Sets a bit of the features that newer code must know to write, in every generation.
fn need_newer_code(stage: &Stage) {
    for name in names(&stage.plain, "").into_iter().filter(|name| name.ends_with(".manifest")) {
        let path = Path::new(DIR).join(name);
        let mut bytes = stage.mem.read_raw(&path).unwrap();
        bytes[24] |= 1;
        let sum = checksum64(&bytes[..72]);
        bytes[72..80].copy_from_slice(&sum.to_le_bytes());
        stage.mem.write_raw(&path, &bytes).unwrap();
    }
}

#[test]
fn a_database_that_newer_code_alone_may_write_is_not_taken_over() {
    let (stage, kept) = used();
    need_newer_code(&stage);
    assert_eq!(take_over(&stage.plain).err().unwrap().kind(), ErrorKind::Unsupported);
    assert_eq!(names(&stage.plain, "epoch-"), [""; 0], "nothing is claimed");
    stage.old.open_partition("a").unwrap().put("k", "it goes on").unwrap();
    drop(stage);
    for after in 0.. {
        let (stage, _) = used();
        assert!(die_while_taking_over(&stage.mem, after), "no claimant left a claim alone");
        let is_claimed = !names(&stage.plain, "epoch-").is_empty();
        if is_claimed && names(&stage.plain, "fork-").is_empty() {
            need_newer_code(&stage);
            assert_eq!(take_over(&stage.plain).err().unwrap().kind(), ErrorKind::Unsupported);
            assert_eq!(names(&stage.plain, "fork-"), [""; 0], "nothing is settled");
            assert!(state_of(&stage.old) == kept);
            return;
        }
    }
}
