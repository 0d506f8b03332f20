//! One damaged table: reads of other keys are correct, and compactions continue without it.

use super::*;

/// The user keys that a table may hold, and the name of its partition.
struct Extent {
    partition: String,
    path: PathBuf,
    keys: std::ops::RangeInclusive<Vec<u8>>,
}

fn tables(fs: &MemFs) -> Vec<Extent> {
    let names = fs.list(Path::new(DIR), "").unwrap();
    let names: Vec<_> = names.iter().filter_map(|entry| FileName::parse(&entry.name)).collect();
    let version = recover(fs, Path::new(DIR), &names).unwrap().unwrap().version;
    let mut tables = Vec::new();
    for partition in version.partitions.values() {
        tables.extend(partition.tables().map(|(_, table)| {
            let meta = &table.meta;
            let name = FileName::new(FileKind::Sst, meta.file, meta.epoch);
            Extent {
                partition: partition.name.to_string(),
                path: name.path(Path::new(DIR)),
                keys: meta.smallest.user.to_vec()..=meta.largest.user.to_vec(),
            }
        }));
    }
    tables
}

#[test]
fn a_damaged_table_hides_no_key_outside_it() {
    let store = build("closed", 7, true);
    let content = &store.history[store.last()];
    let tables = tables(&store.fs);
    assert!(tables.len() >= 8, "{} tables", tables.len());
    for table in &tables {
        let fs = copy_of(&store.fs);
        fs.remove_raw(&table.path).unwrap();
        let db = open(&fs, 1).unwrap();
        for name in PARTITIONS {
            let partition = db.partition(name).unwrap();
            for (key, value) in &content[name] {
                match partition.get(key) {
                    Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                    Err(error) => {
                        assert_eq!(name, table.partition, "{error}");
                        assert!(table.keys.contains(key), "{error}");
                        assert_eq!(error.damage().unwrap().file, table.path);
                    }
                }
            }
            let is_other = name != table.partition;
            let pairs = partition.iter().flatten().count();
            assert!(!is_other || pairs == content[name].len());
        }
        // A new value for a key of the lost table can be written and read.
        let partition = db.partition(&table.partition).unwrap();
        partition.put(table.keys.start(), "new").unwrap();
        assert_eq!(partition.get(table.keys.start()).unwrap().as_deref(), Some(&b"new"[..]));
    }
}

/// Every key reads correctly, or its error names the damaged table.
fn check_readable(db: &Db, content: &Content, damaged: &Path) {
    for name in PARTITIONS {
        let partition = db.partition(name).unwrap();
        for (key, value) in &content[name] {
            match partition.get(key) {
                Ok(found) => assert_eq!(found.as_deref(), Some(&value[..])),
                Err(error) => assert_eq!(error.damage().unwrap().file, damaged, "{error}"),
            }
        }
    }
}

#[test]
fn compaction_keeps_intact_data_names_the_damaged_table_and_stops() {
    let store = build("closed", 8, true);
    let tables = tables(&store.fs);
    let mut named = 0;
    for table in tables.iter().filter(|table| table.partition != "default") {
        let fs = copy_of(&store.fs);
        // A data block: the table opens, and the merge fails in the middle.
        fs.corrupt(&table.path, 20, 0x10).unwrap();
        let db = open(&fs, 1).unwrap();
        let mut content = store.history[store.last()].clone();
        let partition = db.partition(&table.partition).unwrap();
        for number in 0..KEYS {
            let value = format!("new {number}");
            partition.put(key(number), &value).unwrap();
            let content = content.get_mut(partition.name()).unwrap();
            content.insert(key(number), value.into_bytes());
            if number % 11 == 0 {
                db.flush().unwrap();
            }
        }
        let mut steps = 0;
        while db.step().unwrap() {
            steps += 1;
            assert!(steps < 1000, "background work never ends");
        }
        let refused = partition.compact(..);
        let _ = db.wait_idle();
        let stats = db.stats();
        if let Err(error) = refused {
            assert_eq!(error.damage().unwrap().file, table.path, "{error}");
            assert_eq!(error.damage().unwrap().partition.as_ref(), Some(&table.partition));
            let said = stats.background_error.expect("the damage is reported");
            assert!(said.contains(table.path.to_str().unwrap()), "{said}");
            assert!(said.contains(&table.partition), "{said}");
            named += 1;
        }
        // Idle: further steps run no job, and nothing is written.
        let done = db.stats();
        for _ in 0..10 {
            db.step().unwrap();
        }
        let after = db.stats();
        assert_eq!(done.compaction_count, after.compaction_count);
        assert_eq!(done.compaction_read_bytes, after.compaction_read_bytes);
        check_readable(&db, &content, &table.path);
        db.close().unwrap();
        check_readable(&open(&fs, 2).unwrap(), &content, &table.path);
    }
    assert!(named > 0, "no compaction met the damage");
}
