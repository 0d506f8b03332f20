//! The steps of a script: each uses one feature, or does the work of a store.

use std::ops::Range;

use siltstone::{Durability, ErrorKind};
use testkit::Rng;
use testkit::model::{Op, Step};

use super::parts::{EXPIRING, FIFO, ORDINARY, PartSettings, expiring_value};
use super::table::Feature;
use super::world::{HeldSnapshot, Outcome, World, check, check_state};

/// The deed of a step: it uses a feature, or it does the work of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    Use(Feature),
    Flush,
    Work,
    Settle,
    Compact,
    Reopen,
}

impl Deed {
    /// The deed of a step.
    pub fn draw(rng: &mut Rng) -> Deed {
        let features: Vec<_> = Feature::of_steps().collect();
        match rng.below(features.len() as u64 + 10) {
            0 | 1 => Deed::Flush,
            2..=4 => Deed::Work,
            5 => Deed::Settle,
            6 => Deed::Compact,
            7 => Deed::Reopen,
            8 | 9 => Deed::Use(Feature::Batches),
            n => Deed::Use(features[n as usize - 10]),
        }
    }
}

fn key(rng: &mut Rng) -> Vec<u8> {
    if rng.chance(1, 24) {
        return Vec::new();
    }
    let letter = *rng.pick(b"abcd");
    format!("{}{:02}", letter as char, rng.below(8)).into_bytes()
}

/// Two keys in order.
fn keys(rng: &mut Rng) -> Range<Vec<u8>> {
    let ends = [key(rng), key(rng)];
    let [first, last] = ends;
    if first < last { first..last } else { last..[&first[..], b"~"].concat() }
}

impl World {
    /// Does one thing, whose numbers come from `rng` alone.
    pub fn act(&mut self, deed: Deed, rng: &mut Rng) -> Outcome {
        self.let_neighbour_act();
        match deed {
            Deed::Use(feature) => self.use_feature(feature, rng)?,
            Deed::Flush => {
                self.db().flush()?;
                self.record().all_durable();
            }
            Deed::Work => (0..rng.range(1..5)).try_for_each(|_| self.db().step().map(|_| ()))?,
            Deed::Settle => self.db().wait_idle()?,
            Deed::Compact => self.db().open_partition(&self.ordinary(rng))?.compact(..)?,
            Deed::Reopen => {
                self.close()?;
                self.open()?;
            }
        }
        self.note_durable();
        Ok(())
    }

    fn use_feature(&mut self, feature: Feature, rng: &mut Rng) -> Outcome {
        self.record().used.add(feature);
        match feature {
            Feature::Batches => self.write(rng),
            Feature::Transactions | Feature::Savepoints | Feature::Locks => {
                self.transact(feature, rng)
            }
            Feature::RangeDeletes => self.erase(rng, Some(keys(&mut rng.clone()))),
            Feature::Clear => self.erase(rng, None),
            Feature::Merges => self.merge(rng),
            Feature::Expiry => self.expire(rng),
            Feature::BulkLoad => self.bulk_load(rng),
            Feature::Ingest => self.ingest(rng),
            Feature::LargeValues => self.large_values(rng),
            Feature::MetaHive | Feature::Hooks | Feature::Prefixes => self.configure(feature, rng),
            Feature::Partitions => self.create_or_drop(rng),
            Feature::Checkpoints => self.checkpoint(),
            Feature::Backups => self.back_up(rng),
            Feature::Secondaries => self.read_on_a_secondary(rng),
            Feature::Promotion => self.promote(rng),
            Feature::Changes => self.follow(),
            Feature::Fifo => self.fill_fifo(rng),
            Feature::Snapshots => self.hold(rng),
            Feature::Remote | Feature::Resources | Feature::Encryption => Ok(()),
        }
    }

    /// A partition with operands and large values.
    pub fn ordinary(&self, rng: &mut Rng) -> String {
        let names = self.names();
        let names: Vec<_> = names.iter().filter(|it| ORDINARY.contains(&&***it)).collect();
        (*rng.pick(&names)).clone()
    }

    /// Creates a partition of the features that have their own one.
    fn ensure(&mut self, name: &'static str) -> Outcome {
        if self.names().iter().any(|it| it == name) {
            return Ok(());
        }
        let settings = PartSettings { metahive: name == FIFO, ..PartSettings::default() };
        self.create(name, settings)
    }

    fn create(&mut self, name: &'static str, mut settings: PartSettings) -> Outcome {
        settings.escapes_keys = settings.metahive;
        let options = self.part_options(name, settings);
        self.parts.insert(name, settings);
        self.change(Step::Create(name.to_owned()), |db| db.partition_with(name, options).map(drop))
    }

    /// Puts and deletes in several partitions.
    fn write(&mut self, rng: &mut Rng) -> Outcome {
        let mut batch = self.db().batch();
        let mut ops = Vec::new();
        for _ in 0..rng.range(1..6) {
            let name = self.ordinary(rng);
            let partition = self.db().open_partition(&name)?;
            let key = key(rng);
            if rng.chance(1, 5) {
                batch = batch.delete(&partition, &key);
                ops.push(Op::delete(&name, &key));
            } else {
                let len = *rng.pick(&[8, 40, 300, 900]);
                let value = self.value(len);
                batch = batch.put(&partition, &key, &value);
                ops.push(Op::put(&name, &key, &value));
            }
        }
        let durability = if rng.chance(1, 4) { Durability::Sync } else { Durability::Os };
        self.commit(ops, durability, |_| batch.commit(durability))
    }

    /// A transaction that reads and writes, and one in four times another write to what it has read. It locks what it
    /// reads, or takes back what it wrote after a savepoint.
    fn transact(&mut self, feature: Feature, rng: &mut Rng) -> Outcome {
        let name = self.ordinary(rng);
        let partition = self.db().open_partition(&name)?;
        let read = key(rng);
        let mut transaction = self.db().transaction();
        let got = match feature {
            Feature::Locks => transaction.get_for_update(&partition, &read)?,
            _ => transaction.get(&partition, &read)?,
        };
        let written = self.written(&name);
        let expected = written.get(&read).map(|value| &value[..]);
        check(got.as_deref() == expected, || "a transaction reads something else".to_owned())?;
        let is_late = rng.chance(1, 4);
        if is_late {
            let value = self.value(20);
            let ops = vec![Op::put(&name, &read, &value)];
            self.commit(ops, Durability::Os, |_| partition.put(&read, &value))?;
        }
        let mut ops = Vec::new();
        for _ in 0..rng.range(1..4) {
            let key = key(rng);
            let len = *rng.pick(&[8, 300]);
            let value = self.value(len);
            transaction.put(&partition, &key, &value);
            ops.push(Op::put(&name, &key, &value));
        }
        if feature == Feature::Savepoints {
            transaction.set_savepoint();
            transaction.delete_range(&partition, keys(rng));
            for _ in 0..rng.range(1..4) {
                transaction.put(&partition, key(rng), "taken back");
            }
            transaction.rollback_to_savepoint()?;
        }
        if !is_late {
            return self.commit(ops, Durability::Sync, |_| transaction.commit(Durability::Sync));
        }
        match transaction.commit(Durability::Os) {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => check(false, || "a commit whose reads have changed".to_owned()),
        }
    }

    /// Deletes a range, or everything, of a partition, with puts around it in the same batch.
    fn erase(&mut self, rng: &mut Rng, range: Option<Range<Vec<u8>>>) -> Outcome {
        let name = self.ordinary(rng);
        let partition = self.db().open_partition(&name)?;
        let mut batch = self.db().batch();
        let mut ops = Vec::new();
        let before = key(rng);
        let value = self.value(20);
        batch = batch.put(&partition, &before, &value);
        ops.push(Op::put(&name, &before, &value));
        let keys = self.written(&name).into_keys().chain([before]);
        let erased: Vec<_> =
            keys.filter(|key| range.as_ref().is_none_or(|it| it.contains(key))).collect();
        ops.extend(erased.iter().map(|key| Op::delete(&name, key)));
        batch = match range {
            Some(range) => batch.delete_range(&partition, range),
            None => batch.clear(&partition),
        };
        let after = key(rng);
        let value = self.value(300);
        batch = batch.put(&partition, &after, &value);
        ops.push(Op::put(&name, &after, &value));
        self.commit(ops, Durability::Os, |_| batch.commit(Durability::Os))
    }

    fn merge(&mut self, rng: &mut Rng) -> Outcome {
        let mut batch = self.db().batch();
        let mut ops: Vec<Op> = Vec::new();
        for _ in 0..rng.range(1..5) {
            let name = self.ordinary(rng);
            let partition = self.db().open_partition(&name)?;
            let key = key(rng);
            let len = *rng.pick(&[4, 60, 200]);
            let operand = self.value(len);
            batch = batch.merge(&partition, &key, &operand);
            let own = ops.iter().rev().find(|op| op.partition == name && op.key == key);
            let before = match own {
                Some(op) => op.value.clone(),
                None => self.written(&name).get(&key).cloned(),
            };
            let merged = [before.as_deref().unwrap_or_default(), &operand].concat();
            ops.push(Op::put(&name, &key, &merged));
        }
        self.commit(ops, Durability::Os, |_| batch.commit(Durability::Os))
    }

    /// Time passes, and values are written that live for half a minute.
    fn expire(&mut self, rng: &mut Rng) -> Outcome {
        self.ensure(EXPIRING)?;
        self.around.clock.pass(rng.below(12));
        let partition = self.db().open_partition(EXPIRING)?;
        let mut batch = self.db().batch();
        let mut ops = Vec::new();
        for _ in 0..rng.range(1..4) {
            let key = key(rng);
            let rest = self.value(30);
            let value = expiring_value(self.now(), &rest);
            batch = batch.put(&partition, &key, &value);
            ops.push(Op::put(EXPIRING, &key, &value));
        }
        self.commit(ops, Durability::Os, |_| batch.commit(Durability::Os))
    }

    fn bulk_load(&mut self, rng: &mut Rng) -> Outcome {
        let name = self.ordinary(rng);
        let partition = self.db().open_partition(&name)?;
        let mut keys: Vec<_> = (0..rng.range(1..12)).map(|_| key(rng)).collect();
        keys.sort_unstable();
        keys.dedup();
        let len = *rng.pick(&[10, 100, 400]);
        let entries: Vec<_> = keys.into_iter().map(|key| (key, self.value(len))).collect();
        let ops = entries.iter().map(|(key, value)| Op::put(&name, key, value)).collect();
        self.change(Step::Commit(ops), |_| partition.bulk_load(entries).map(drop))
    }

    /// Streams a value, reads it in parts, or has the space of dead ones freed.
    fn large_values(&mut self, rng: &mut Rng) -> Outcome {
        let name = self.ordinary(rng);
        if self.settings(&name).large != Some(true) || rng.chance(1, 8) {
            let is_on = self.settings(&name).large != Some(true);
            self.set(&name, |settings| settings.large = Some(is_on))?;
        }
        let partition = self.db().open_partition(&name)?;
        match rng.below(5) {
            0 => partition.reclaim()?,
            1 => partition.reallocate(keys(rng))?,
            2 => {
                for (key, value) in self.written(&name) {
                    let part = partition.get_range(&key, 3..400)?;
                    let expected = &value[3.min(value.len())..400.min(value.len())];
                    let is_same = part.as_deref() == Some(expected);
                    check(is_same, || format!("a part of {}", key.escape_ascii()))?;
                }
            }
            _ => {
                let key = key(rng);
                let len = rng.range(300..3000);
                let value = self.value(len);
                let known = rng.chance(1, 2).then_some(value.len() as u64);
                let mut stream = partition.put_stream(&key, known)?;
                for piece in value.chunks(500) {
                    let written = std::io::Write::write_all(&mut stream, piece);
                    written.map_err(siltstone::Error::from)?;
                }
                let ops = vec![Op::put(&name, &key, &value)];
                self.commit(ops, Durability::Os, |_| stream.commit(Durability::Os))?;
            }
        }
        Ok(())
    }

    pub fn settings(&self, name: &str) -> PartSettings {
        self.parts.get(name).copied().unwrap_or_default()
    }

    /// Changes options of a partition while its memtables wait for a flush.
    fn set(&mut self, name: &str, change: impl FnOnce(&mut PartSettings)) -> Outcome {
        let mut settings = self.settings(name);
        change(&mut settings);
        self.db().partition_with(name, self.part_options(name, settings))?;
        let name = ORDINARY.into_iter().find(|it| *it == name).expect("it is an ordinary one");
        self.parts.insert(name, settings);
        Ok(())
    }

    fn configure(&mut self, feature: Feature, rng: &mut Rng) -> Outcome {
        let name = self.ordinary(rng);
        let prefix = *rng.pick(&[None, Some(1), Some(2), Some(4)]);
        self.set(&name, |settings| match feature {
            Feature::MetaHive => settings.metahive = !settings.metahive,
            Feature::Hooks => settings.watched = !settings.watched,
            _ => settings.prefix = prefix,
        })?;
        let partition = self.db().open_partition(&name)?;
        let written = self.written(&name);
        for prefix in ["a", "b0", "c03", "x"] {
            let mut found = Vec::new();
            for entry in partition.prefix(prefix) {
                found.push(entry?.0.to_vec());
            }
            let expected = written.keys().filter(|key| key.starts_with(prefix.as_bytes()));
            check(expected.eq(&found), || format!("the keys with the prefix {prefix} of {name}"))?;
        }
        Ok(())
    }

    fn create_or_drop(&mut self, rng: &mut Rng) -> Outcome {
        let name = *rng.pick(&ORDINARY[1..]);
        if self.names().iter().any(|it| it == name) {
            self.parts.remove(name);
            self.change(Step::Drop(name.to_owned()), |db| db.drop_partition(name))
        } else {
            let settings = PartSettings {
                large: rng.chance(1, 2).then_some(true),
                metahive: rng.chance(1, 2),
                watched: rng.chance(1, 4),
                prefix: *rng.pick(&[None, Some(1), Some(3)]),
                ..PartSettings::default()
            };
            self.create(name, settings)
        }
    }

    /// Puts new keys, and makes tables of them. The oldest tables go.
    fn fill_fifo(&mut self, rng: &mut Rng) -> Outcome {
        self.ensure(FIFO)?;
        let partition = self.db().open_partition(FIFO)?;
        for _ in 0..2 {
            let mut batch = self.db().batch();
            let mut ops = Vec::new();
            for _ in 0..4 {
                let value = self.value(301);
                let key = format!("{:06}", self.values).into_bytes();
                batch = batch.put(&partition, &key, &value);
                ops.push(Op::put(FIFO, &key, &value));
            }
            self.commit(ops, Durability::Os, |_| batch.commit(Durability::Os))?;
            if rng.chance(3, 4) {
                partition.flush()?;
            }
        }
        Ok(())
    }

    /// Takes a snapshot, or compares and drops the oldest one.
    fn hold(&mut self, rng: &mut Rng) -> Outcome {
        if self.held.len() < 2 && rng.chance(2, 3) {
            let snapshot = self.db().snapshot();
            let state = self.written_state();
            let handles = state.keys().map(|name| self.db().open_partition(name));
            let handles = handles.collect::<Result<_, _>>()?;
            let time = self.now();
            self.held.push(HeldSnapshot { snapshot, state, handles, time });
            return Ok(());
        }
        self.check_held()?;
        if !self.held.is_empty() {
            self.held.remove(0);
        }
        Ok(())
    }

    /// Compares the snapshots that are held.
    pub fn check_held(&self) -> Outcome {
        for held in &self.held {
            let mut observed = testkit::model::State::new();
            for handle in &held.handles {
                let mut contents = testkit::model::Contents::new();
                for entry in held.snapshot.iter(handle) {
                    let (key, value) = entry?;
                    contents.insert(key.to_vec(), (*value).into());
                }
                observed.insert(handle.name().to_owned(), contents);
            }
            check_state("a snapshot", &observed, &held.state, held.time)?;
        }
        Ok(())
    }
}
