//! What large values hold at once, and what several threads ask of them at once.

use lsm_core::fs::{FaultFs, FsOp, OpKind};

use super::*;

#[test]
fn values_that_go_while_a_checkpoint_links_tables_are_in_it() {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let clock = ManualClock::default();
    let db = open_with(Arc::new(fs.clone()), "/db", &clock).unwrap();
    let p = db.partition_with("p", options()).unwrap();
    for n in 0..20_u8 {
        p.put([n], vec![n; 1000]).unwrap();
    }
    let expected = content(&p);
    let compacting: Arc<Mutex<Option<Partition>>> = Arc::new(Mutex::new(Some(p.clone())));
    let taken = compacting.clone();
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let is_link = op.kind == OpKind::Link && op.path.starts_with("/copy");
        let partition = if is_link { taken.lock().unwrap().take() } else { None };
        if let Some(partition) = partition {
            for n in 0..20_u8 {
                partition.delete([n]).unwrap();
            }
            partition.compact(..).unwrap();
            assert_eq!(partition.iter().count(), 0);
        }
    }));
    db.checkpoint("/copy").unwrap();
    fs.clear_observer();
    assert!(compacting.lock().unwrap().is_none(), "it went on while tables were linked");
    let copy = open_with(Arc::new(mem.clone()), "/copy", &ManualClock::default()).unwrap();
    assert!(content(&copy.partition("p").unwrap()) == expected);
    assert!(copy.verify(Default::default()).unwrap().is_sound());
    rest(&db, &clock);
    assert_eq!(chunk_bytes(&mem, "/db"), 0, "and the copy keeps nothing here");
}
