//! Random histories of a table whose indexes come and go, compared with a model, and cut by power failures.
//!
//! Images of what a cut could leave are taken before operations on the storage. Each must open, hold the rows after a
//! prefix of the commits with all that was durable, and have indexes that agree with its rows.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lsm_core::fs::{FaultFs, FsOp};
use siltstone::fs::{CrashOutcome, MemFs};
use siltstone::{Db, Durability};
use testkit::Rng;
use testkit::model::{Contents, Model, Op, State};

use super::{BY_CITY, BY_EMAIL, USERS, User, open, user};
use crate::codec::{Codec, Postcard};
use crate::key::encode;
use crate::{TableDefinition, TypedError, TypedTable};

const STEPS: usize = 60;
const CITIES: [&str; 4] = ["", "a", "a\0", "b"];

struct Image {
    mem: MemFs,
    what: String,
    /// Steps of the model that were durable.
    durable: usize,
}

/// A table, its model, and the indexes that it has now.
struct History {
    db: Db,
    table: TypedTable<u32, User>,
    has_city: bool,
    has_email: bool,
    rows: BTreeMap<u32, User>,
    model: Model,
    durable: Arc<AtomicUsize>,
}

fn definition(has_city: bool, has_email: bool) -> TableDefinition<u32, User> {
    let definition = if has_city { USERS.index(BY_CITY) } else { USERS };
    if has_email { definition.index(BY_EMAIL) } else { definition }
}

fn op(key: u32, value: Option<&User>) -> Op {
    let key = encode::<u32>(key);
    match value {
        Some(value) => Op::put("users", &key, &Postcard::encode(value).unwrap()),
        None => Op::delete("users", &key),
    }
}

impl History {
    fn new(db: Db, durable: Arc<AtomicUsize>) -> History {
        let table = USERS.open(&db).unwrap();
        let mut model = Model::new();
        model.create("users");
        durable.store(1, Ordering::SeqCst);
        History {
            db,
            table,
            has_city: false,
            has_email: false,
            rows: BTreeMap::new(),
            model,
            durable,
        }
    }

    fn is_taken(&self, key: u32, value: &User) -> bool {
        let mut others = self.rows.iter().filter(|(other, _)| **other != key);
        value.email.is_some() && others.any(|(_, other)| other.email == value.email)
    }

    fn apply(&mut self, key: u32, value: Option<User>) {
        match value {
            Some(value) => _ = self.rows.insert(key, value),
            None => _ = self.rows.remove(&key),
        }
    }

    /// One commit of some writes, by the calls for one row or by a transaction. Stops at the first that a unique index
    /// refuses.
    fn write(&mut self, rng: &mut Rng) {
        let before = self.rows.clone();
        let count = if rng.chance(1, 2) { 1 } else { rng.range(2..5) };
        let mut writes = Vec::new();
        let mut is_taken = false;
        for _ in 0..count {
            let key = rng.below(12) as u32;
            let email = rng.chance(1, 2).then(|| rng.below(20) as u8);
            let value = rng.chance(3, 4).then(|| user(CITIES[rng.index(4)], email));
            if value.as_ref().is_some_and(|value| self.is_taken(key, value)) {
                // Without the index the table would take it, and the index could not be built later.
                if !self.has_email {
                    continue;
                }
                is_taken = true;
            }
            writes.push((key, value.clone()));
            if is_taken {
                break;
            }
            self.apply(key, value);
        }
        let written = match &writes[..] {
            [(key, Some(value))] => self.table.put(*key, value).map(drop),
            [(key, None)] => self.table.delete(*key).map(drop),
            _ => self.db.transact(|transaction| {
                writes.iter().try_for_each(|(key, value)| match value {
                    Some(value) => self.table.put_in(transaction, *key, value),
                    None => self.table.delete_in(transaction, *key),
                })
            }),
        };
        if is_taken {
            assert!(matches!(written, Err(TypedError::Taken { .. })), "{writes:?}: {written:?}");
            self.rows = before;
            return;
        }
        written.unwrap();
        self.model.commit(writes.iter().map(|(key, value)| op(*key, value.as_ref())).collect());
    }

    fn step(&mut self, rng: &mut Rng) {
        match rng.below(40) {
            0..=27 => self.write(rng),
            28 => {
                self.table.clear().unwrap();
                self.model.commit(self.rows.keys().map(|key| op(*key, None)).collect());
                self.rows.clear();
            }
            29..=31 => self.db.flush().unwrap(),
            32..=34 => self.make_durable(),
            35 if self.has_city => self.reopen(false, self.has_email),
            36 if self.has_email => self.reopen(self.has_city, false),
            35 | 37 => self.reopen(true, self.has_email),
            36 | 38 => self.reopen(self.has_city, true),
            _ => self.reopen(self.has_city, self.has_email),
        }
        self.compare(rng);
    }

    fn make_durable(&mut self) {
        self.db.wait_durable(self.db.visible_seq()).unwrap();
        self.durable.store(self.model.log().len(), Ordering::SeqCst);
    }

    /// Drops indexes, adds others, and opens the table again.
    fn reopen(&mut self, has_city: bool, has_email: bool) {
        for (name, was, is) in
            [("by_city", self.has_city, has_city), ("by_email", self.has_email, has_email)]
        {
            if was && !is {
                USERS.drop_index(&self.db, name).unwrap();
            }
        }
        let old = self.table.clone();
        self.table = definition(has_city, has_email).open(&self.db).unwrap();
        if (has_city, has_email) != (self.has_city, self.has_email) {
            assert!(matches!(old.put(1, &user("", None)).unwrap_err(), TypedError::Stale { .. }));
        }
        self.has_city = has_city;
        self.has_email = has_email;
    }

    fn compare(&self, rng: &mut Rng) {
        let all: Vec<(u32, User)> = self.table.iter().map(Result::unwrap).collect();
        assert!(
            all.iter().map(|(key, value)| (key, value)).eq(self.rows.iter()),
            "{all:?} {:?}",
            self.rows
        );
        if self.has_city {
            let city = CITIES[rng.index(4)];
            let by_city = self.table.by(&BY_CITY).unwrap().now().unwrap();
            let found: Vec<u32> = by_city.get(city).map(|row| row.unwrap().0).collect();
            let wanted =
                self.rows.iter().filter(|(_, user)| user.city == city).map(|(key, _)| *key);
            assert!(wanted.eq(found.iter().copied()), "{city:?}: {found:?}");
            use std::ops::Bound::{Excluded, Included};
            for range in [(Excluded(city), Included("a\0")), (Included("a"), Excluded(city))] {
                let found: Vec<(String, u32)> = by_city.range(range).map(Result::unwrap).collect();
                let mut wanted: Vec<(String, u32)> =
                    self.rows.iter().map(|(key, user)| (user.city.clone(), *key)).collect();
                wanted.retain(|(name, _)| RangeBounds::<&str>::contains(&range, &name.as_str()));
                wanted.sort();
                assert_eq!(found, wanted, "{range:?}");
            }
        }
        if self.has_email {
            let email = rng.below(20) as u8;
            let transaction = self.db.transaction();
            let by_email = self.table.by(&BY_EMAIL).unwrap();
            let found = by_email.at(&transaction).unwrap().get(email).next().map(Result::unwrap);
            let wanted = self.rows.iter().find(|(_, user)| user.email == Some(email));
            assert_eq!(found, wanted.map(|(key, user)| (*key, user.clone())));
        }
        assert!(self.table.verify().unwrap().iter().all(crate::IndexReport::is_consistent));
    }
}

/// Opens an image with the indexes that it has, then with all, and compares it.
fn check_image(image: &Image, model: &Model) {
    let db = open(image.mem.clone());
    let mut contents = Contents::new();
    if db.has_partition("users") {
        let entries = db.open_partition("users").unwrap().iter();
        contents.extend(
            entries
                .map(|entry| entry.unwrap())
                .map(|(key, value)| (key.to_vec(), value[..].into())),
        );
    }
    let found =
        model.prefix_equal_to(&State::from([("users".to_owned(), contents)]), image.durable);
    assert!(found.is_some(), "{}: no prefix with {} steps", image.what, image.durable);
    let as_it_was = [(false, false), (true, false), (false, true), (true, true)];
    let opened =
        as_it_was.map(|(city, email)| definition(city, email).open(&db)).into_iter().flatten();
    let mut count = 0;
    for table in opened {
        let reports = table.verify().unwrap();
        assert!(
            reports.iter().all(crate::IndexReport::is_consistent),
            "{}: {reports:?}",
            image.what
        );
        count += 1;
    }
    assert!(count > 0, "{}: the table does not open", image.what);
    // The last of the opens. No index that was dropped or not built to its end is in its way.
    definition(true, true).open(&db).unwrap_or_else(|error| panic!("{}: {error}", image.what));
    db.close().unwrap();
}

fn run(rng: &mut Rng) {
    let mem = MemFs::new();
    let fs = FaultFs::over_mem(mem.clone());
    let durable = Arc::new(AtomicUsize::new(0));
    let mut history = History::new(open(fs.clone()), durable.clone());
    let images = Arc::new(Mutex::new(Vec::new()));
    let taken = images.clone();
    let random = Mutex::new(rng.fork());
    fs.set_observer(Arc::new(move |op: &FsOp| {
        let mut rng = random.lock().unwrap();
        if op.mutates() && rng.chance(1, 8) {
            let outcome = *rng.pick(&CrashOutcome::ALL);
            // Before the image: what becomes durable meanwhile may be in it.
            let durable = durable.load(Ordering::SeqCst);
            let mem = mem.crash_clone(outcome, &mut || rng.next_u64());
            let what = format!("op {} ({:?}), {outcome:?}", op.index, op.kind);
            taken.lock().unwrap().push(Image { mem, what, durable });
        }
    }));
    for _ in 0..STEPS {
        history.step(rng);
    }
    fs.clear_observer();
    history.db.batch().commit(Durability::Sync).unwrap();
    let images = std::mem::take(&mut *images.lock().unwrap());
    assert!(images.len() > 5, "{} images", images.len());
    images.iter().for_each(|image| check_image(image, &history.model));
}

#[test]
fn tables_and_indexes_agree_after_every_step_and_after_power_cuts() {
    let mut rng = Rng::from_env_or(20_261_128);
    for _ in 0..5 {
        run(&mut rng);
    }
}
