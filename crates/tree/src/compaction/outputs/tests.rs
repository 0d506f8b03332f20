//! Syncs of the folder that fail while a compaction writes.

use super::*;
use crate::fs::{FaultAction, FaultAt, FaultFs, FaultRule, FolderFs, FsOp, MemFs, OpKind};
use crate::types::FileNo;

/// The merge asks for the sync of its names at the end, and the kernel reports success.
#[test]
fn tables_that_were_in_a_failed_sync_of_the_folder_are_not_finished() {
    for later in [None, Some(SyncLater::new(64))] {
        let faults = FaultFs::over_mem(MemFs::new());
        let fs = Arc::new(FolderFs::new(Arc::new(faults.clone())));
        let dir = PathBuf::from("/db");
        fs.create_dir(&dir).unwrap();
        let factory = TableFactory {
            fs: fs.clone(),
            files: None,
            dir: dir.clone(),
            db_id: DbId(7),
            epoch: Epoch(1),
            numbers: Arc::new(FileNumbers::new(FileNo(1))),
            later,
            cache: None,
            are_mapped: false,
            under_way: None,
        };
        faults.set_observer(Arc::new({
            let faults = faults.clone();
            move |op: &FsOp| {
                if op.kind == OpKind::Append {
                    faults.clear_observer();
                    let at = FaultAt::Op(faults.op_count());
                    faults.add_rule(FaultRule::once(at, FaultAction::SyncLost));
                    fs.sync_dir(&dir).unwrap_err();
                }
            }
        }));
        make_table(&factory).unwrap_err();
        make_table(&factory).unwrap();
    }
}

fn make_table(factory: &TableFactory) -> Result<()> {
    let options = PartitionOptions::default();
    let mut outputs = Outputs::new(factory, &options, Compression::None, SeqNo::ZERO, &[]);
    let trailer = Trailer::new(SeqNo::ZERO, EntryKind::Value);
    outputs.add(KeyRef::new(b"key", trailer), b"value")?;
    outputs.end_table(Properties::default())?;
    outputs.finish()?;
    factory.sync_rest()
}
