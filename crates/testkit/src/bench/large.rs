//! The workload of large values: the sizes, operations and mixes of the paper.
//!
//! For each size a number of values is put, put durably, read back and deleted, and each call is
//! timed by itself. The slowest and the fastest are left out, and the mean of the rest is given as
//! bytes per millisecond, as in the paper (WR-Store++, 5.1). Deletes are timed together with the
//! calls that reclaim their space. A mix is timed as a whole, over values that were loaded before.
//!
//! The paper shows its sizes and mixes as pictures. The sizes here are spaced evenly on a
//! logarithmic scale between its ends, and the mixes are ours; [`DEFAULT_WORKLOAD`] has both.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::Ack;
use crate::Rng;

/// The workload that runs if no other is named.
pub const DEFAULT_WORKLOAD: &str = include_str!("large_values.json");

/// The calls that the workload makes on an engine.
pub trait LargeEngine {
    /// The error of a failed call.
    type Error;

    /// Sets a key to a value.
    fn put(&self, key: &[u8], value: &[u8], when: Ack) -> Result<(), Self::Error>;

    /// Reads the value of `key` into the front of `buf`, verified if the engine can; returns its
    /// length.
    fn get(&self, key: &[u8], buf: &mut [u8]) -> Result<Option<usize>, Self::Error>;

    /// As [`LargeEngine::get`], by so many threads, if the engine can do that.
    fn get_by(
        &self,
        key: &[u8],
        buf: &mut [u8],
        _threads: usize,
    ) -> Result<Option<usize>, Self::Error> {
        self.get(key, buf)
    }

    /// Passes the value of `key` to `visit` without a copy; returns whether it exists, or `None` if
    /// the engine lends no values.
    fn lend(
        &self,
        _key: &[u8],
        _visit: &mut dyn FnMut(&[u8]),
    ) -> Result<Option<bool>, Self::Error> {
        Ok(None)
    }

    /// Deletes a key.
    fn delete(&self, key: &[u8]) -> Result<(), Self::Error>;

    /// Returns when the space of deleted values is free again.
    fn reclaim(&self) -> Result<(), Self::Error>;
}

/// The operations of a mix, in shares of their sum.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Its name.
    pub name: String,
    /// Reads.
    pub get: u64,
    /// Puts of a new key.
    pub put: u64,
    /// A delete of an existing key and a put of a new one.
    pub update: u64,
    /// Deletes.
    pub delete: u64,
}

/// The workload.
#[derive(Clone, Debug)]
pub struct LargePlan {
    /// Bytes of a value, size by size.
    pub sizes: Vec<u64>,
    /// Values of each size, fewer where [`LargePlan::bytes_per_size`] says so.
    pub repetitions: u64,
    /// The share of the measurements that is left out at either end, in percent.
    pub trim_percent: u64,
    /// So many bytes of values of a size at most, but three values at least.
    pub bytes_per_size: u64,
    /// Values are also read by each of these numbers of threads; a file may name none.
    pub threads: Vec<u64>,
    /// The mixes.
    pub mixes: Vec<Mix>,
    /// Operations of a mix, and values loaded before it.
    pub mix_operations: u64,
    /// The weight of each size in a mix, in shares of the sum; missing ones are 0.
    pub mix_weights: Vec<u64>,
}

impl LargePlan {
    /// Reads the plan from a file like [`DEFAULT_WORKLOAD`].
    ///
    /// # Errors
    /// The name of the field that is missing or no whole number.
    pub fn parse(text: &str) -> Result<LargePlan, String> {
        let file: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mixes = file["mixes"].as_array().ok_or("mixes: not a list")?;
        let plan = LargePlan {
            sizes: numbers(&file, "sizes")?,
            repetitions: number(&file, "repetitions")?,
            trim_percent: number(&file, "trim_percent")?,
            bytes_per_size: number(&file, "bytes_per_size")?,
            threads: match file.get("threads") {
                None => Vec::new(),
                Some(_) => numbers(&file, "threads")?,
            },
            mixes: mixes.iter().map(Mix::parse).collect::<Result<_, _>>()?,
            mix_operations: number(&file, "mix_operations")?,
            mix_weights: numbers(&file, "mix_weights")?,
        };
        if plan.trim_percent >= 50 {
            return Err("trim_percent: nothing is left".to_owned());
        }
        if plan.sizes.iter().any(|&size| size < MARK_BYTES as u64) {
            return Err(format!("sizes: at least {MARK_BYTES} bytes"));
        }
        if plan.mix_weights.iter().zip(&plan.sizes).all(|(&weight, _)| weight == 0) {
            return Err("mix_weights: no size has one".to_owned());
        }
        Ok(plan)
    }

    /// Leaves out the values above `max` bytes, and their weights.
    pub fn leave_out_above(&mut self, max: u64) {
        let mut weights = self.mix_weights.iter().copied().chain(std::iter::repeat(0));
        let sizes = std::mem::take(&mut self.sizes).into_iter();
        let kept: Vec<_> = sizes.zip(&mut weights).filter(|(size, _)| *size <= max).collect();
        (self.sizes, self.mix_weights) = kept.into_iter().unzip();
    }

    fn repetitions_of(&self, size: u64) -> u64 {
        self.repetitions.min((self.bytes_per_size / size).max(3))
    }
}

impl Mix {
    fn parse(mix: &Value) -> Result<Mix, String> {
        let name = mix["name"].as_str().ok_or("mixes: one has no name")?.to_owned();
        let mix = Mix {
            name,
            get: number(mix, "get")?,
            put: number(mix, "put")?,
            update: number(mix, "update")?,
            delete: number(mix, "delete")?,
        };
        if mix.get + mix.put + mix.update + mix.delete == 0 {
            return Err(format!("mix {:?} does nothing", mix.name));
        }
        Ok(mix)
    }
}

fn number(object: &Value, field: &str) -> Result<u64, String> {
    object[field].as_u64().ok_or_else(|| format!("{field}: no whole number"))
}

fn numbers(object: &Value, field: &str) -> Result<Vec<u64>, String> {
    let list = object[field].as_array().ok_or_else(|| format!("{field}: not a list"))?;
    list.iter().map(|n| n.as_u64().ok_or_else(|| format!("{field}: {n}"))).collect()
}

/// The rates of one size, in bytes per millisecond.
#[derive(Clone, Debug)]
pub struct SizeRates {
    /// Bytes of a value.
    pub size: u64,
    /// Values that were measured.
    pub repetitions: u64,
    /// Copies from one buffer into another: nothing reads faster.
    pub memcpy: f64,
    /// Puts that return when a killed process loses nothing.
    pub put: f64,
    /// Puts that return when a power cut loses nothing.
    pub put_synced: f64,
    /// Reads into a buffer that was used before.
    pub get: f64,
    /// The same by a number of threads, for each of [`LargePlan::threads`].
    pub get_by: Vec<(u64, f64)>,
    /// First reads of each byte of a value where the engine has it, if the engine lends values.
    pub lent_first: Option<f64>,
    /// The same of values that were read in this way before.
    pub lent: Option<f64>,
    /// Deletes until the space is back.
    pub delete: f64,
}

/// The time of a mix.
#[derive(Clone, Debug)]
pub struct MixTime {
    /// Its name.
    pub name: String,
    /// Operations.
    pub operations: u64,
    /// Bytes of values that were read and written.
    pub bytes: u64,
    /// Its duration.
    pub took: Duration,
}

/// The outcome of the whole workload.
#[derive(Clone, Debug)]
pub struct LargeOutcome {
    /// Size by size.
    pub sizes: Vec<SizeRates>,
    /// Mix by mix.
    pub mixes: Vec<MixTime>,
}

/// A failure of the engine, or a read that returned another value than was written.
#[derive(Debug)]
pub enum LargeFailure<E> {
    /// An error of the engine.
    Engine(E),
    /// The value of this key is missing or different.
    Wrong(String),
}

impl<E> From<E> for LargeFailure<E> {
    fn from(error: E) -> LargeFailure<E> {
        LargeFailure::Engine(error)
    }
}

/// The first bytes of each value, which are unique.
const MARK_BYTES: usize = 16;

/// Runs the workload.
pub struct LargeBench<'a, E> {
    engine: &'a E,
    plan: &'a LargePlan,
    /// As many bytes as the largest value has. They are random, like compressed media.
    value: Vec<u8>,
    /// The buffer of reads. All of it is touched before anything is timed.
    buf: Vec<u8>,
    rng: Rng,
}

impl<'a, E: LargeEngine> LargeBench<'a, E> {
    /// Over an empty engine.
    pub fn new(engine: &'a E, plan: &'a LargePlan, seed: u64) -> LargeBench<'a, E> {
        let longest = plan.sizes.iter().copied().max().unwrap_or(0) as usize;
        let mut rng = Rng::new(seed);
        let mut value = vec![0; longest];
        rng.fill(&mut value);
        LargeBench { engine, plan, value, buf: vec![1; longest], rng }
    }

    /// Makes so many of each 64 bytes random, and the rest zeros: values that compress.
    #[must_use]
    pub fn random_of_64(mut self, random: usize) -> LargeBench<'a, E> {
        for piece in self.value.chunks_mut(64).filter(|piece| piece.len() > random) {
            piece[random..].fill(0);
        }
        self
    }

    /// Runs the sizes, then the mixes. `notice` gets the name of the next step.
    ///
    /// # Errors
    /// The first failure.
    pub fn run(
        &mut self,
        notice: &mut dyn FnMut(&str),
    ) -> Result<LargeOutcome, LargeFailure<E::Error>> {
        let mut rates = Vec::new();
        for (id, &size) in self.plan.sizes.iter().enumerate() {
            notice(&format!("values of {size} bytes"));
            rates.push(self.size(id as u64, size)?);
        }
        let mut times = Vec::new();
        for mix in &self.plan.mixes {
            notice(&mix.name);
            times.push(self.mix(mix)?);
        }
        Ok(LargeOutcome { sizes: rates, mixes: times })
    }

    fn put(&mut self, key: &str, mark: u64, size: u64, when: Ack) -> Result<Duration, E::Error> {
        let value = &mut self.value[..size as usize];
        value[..8].copy_from_slice(&mark.to_le_bytes());
        value[8..MARK_BYTES].copy_from_slice(&size.to_le_bytes());
        let begin = now();
        self.engine.put(key.as_bytes(), value, when)?;
        Ok(begin.elapsed())
    }

    /// Reads a value, by a number of threads or as the engine chooses.
    fn get(
        &mut self,
        key: &str,
        mark: u64,
        size: u64,
        threads: Option<u64>,
    ) -> Result<Duration, LargeFailure<E::Error>> {
        let buf = &mut self.buf[..size as usize];
        let begin = now();
        let len = match threads {
            None => self.engine.get(key.as_bytes(), buf)?,
            Some(threads) => self.engine.get_by(key.as_bytes(), buf, threads as usize)?,
        };
        let took = begin.elapsed();
        let is_right = len == Some(buf.len())
            && buf[..8] == mark.to_le_bytes()
            && buf[8..MARK_BYTES] == size.to_le_bytes()
            && buf[MARK_BYTES..] == self.value[MARK_BYTES..size as usize];
        if is_right { Ok(took) } else { Err(LargeFailure::Wrong(key.to_owned())) }
    }

    /// Reads each byte of a value that is lent; `None` if the engine lends none.
    fn lent(
        &mut self,
        key: &str,
        mark: u64,
        size: u64,
    ) -> Result<Option<Duration>, LargeFailure<E::Error>> {
        let mut found = 0;
        let begin = now();
        let is_there = self.engine.lend(key.as_bytes(), &mut |value| found = folded(value))?;
        let took = begin.elapsed();
        let value = &mut self.value[..size as usize];
        value[..8].copy_from_slice(&mark.to_le_bytes());
        value[8..MARK_BYTES].copy_from_slice(&size.to_le_bytes());
        match is_there {
            None => Ok(None),
            Some(true) if found == folded(value) => Ok(Some(took)),
            Some(_) => Err(LargeFailure::Wrong(key.to_owned())),
        }
    }

    fn size(&mut self, id: u64, size: u64) -> Result<SizeRates, LargeFailure<E::Error>> {
        let repetitions = self.plan.repetitions_of(size);
        let mut puts = Vec::new();
        for n in 0..repetitions {
            puts.push(self.put(&key_of("put", id, n), n, size, Ack::Os)?);
        }
        let mut copies = Vec::new();
        let mut gets = Vec::new();
        for _ in 0..repetitions {
            let begin = now();
            self.buf[..size as usize].copy_from_slice(&self.value[..size as usize]);
            copies.push(begin.elapsed());
            let n = self.rng.below(repetitions);
            gets.push(self.get(&key_of("put", id, n), n, size, None)?);
        }
        let mut get_by = Vec::new();
        for threads in self.plan.threads.clone() {
            let mut gets = Vec::new();
            for _ in 0..repetitions {
                let n = self.rng.below(repetitions);
                gets.push(self.get(&key_of("put", id, n), n, size, Some(threads))?);
            }
            get_by.push((threads, trimmed_rate(gets, size, self.plan.trim_percent)));
        }
        let mut lent = [const { Vec::new() }; 2];
        for turn in 0..2 * repetitions {
            let is_first = turn < repetitions;
            let n = if is_first { turn } else { self.rng.below(repetitions) };
            lent[usize::from(!is_first)].extend(self.lent(&key_of("put", id, n), n, size)?);
        }
        // The space of the first half is free before the other is written: disks are small.
        let mut deleting = self.delete_all(repetitions, |n| key_of("put", id, n))?;
        let mut synced = Vec::new();
        for n in 0..repetitions {
            synced.push(self.put(&key_of("synced", id, n), n, size, Ack::Sync)?);
        }
        deleting += self.delete_all(repetitions, |n| key_of("synced", id, n))?;
        let trim = self.plan.trim_percent;
        let lent = lent.map(|times| (!times.is_empty()).then(|| trimmed_rate(times, size, trim)));
        let [lent_first, lent] = lent;
        Ok(SizeRates {
            size,
            repetitions,
            memcpy: trimmed_rate(copies, size, trim),
            put: trimmed_rate(puts, size, trim),
            put_synced: trimmed_rate(synced, size, trim),
            get: trimmed_rate(gets, size, trim),
            get_by,
            lent_first,
            lent,
            delete: (2 * repetitions * size) as f64 / milliseconds(deleting),
        })
    }

    fn delete_all(&self, count: u64, key: impl Fn(u64) -> String) -> Result<Duration, E::Error> {
        let begin = now();
        for n in 0..count {
            self.engine.delete(key(n).as_bytes())?;
        }
        self.engine.reclaim()?;
        Ok(begin.elapsed())
    }

    fn mix(&mut self, mix: &Mix) -> Result<MixTime, LargeFailure<E::Error>> {
        let mut held: Vec<(String, u64, u64)> = Vec::new();
        let mut next = 0;
        for _ in 0..self.plan.mix_operations {
            self.put_next(mix, &mut next, &mut held)?;
        }
        let mut bytes = 0;
        let sum = mix.get + mix.put + mix.update + mix.delete;
        let mut took = Duration::ZERO;
        for _ in 0..self.plan.mix_operations {
            let choice = self.rng.below(sum);
            if choice >= mix.put && held.is_empty() {
                continue;
            }
            let is_put = choice < mix.put;
            let is_get = !is_put && choice < mix.put + mix.get;
            let is_update = !is_put && !is_get && choice < mix.put + mix.get + mix.update;
            let at = self.rng.below(held.len().max(1) as u64) as usize;
            if is_get {
                let (key, mark, size) = held[at].clone();
                took += self.get(&key, mark, size, None)?;
                bytes += size;
            } else if !is_put {
                let (key, ..) = held.swap_remove(at);
                let begin = now();
                self.engine.delete(key.as_bytes())?;
                took += begin.elapsed();
            }
            if is_put || is_update {
                took += self.put_next(mix, &mut next, &mut held)?;
                bytes += held.last().map_or(0, |(.., size)| *size);
            }
        }
        let begin = now();
        self.engine.reclaim()?;
        took += begin.elapsed();
        for (key, ..) in held {
            self.engine.delete(key.as_bytes())?;
        }
        self.engine.reclaim()?;
        Ok(MixTime { name: mix.name.clone(), operations: self.plan.mix_operations, bytes, took })
    }

    fn put_next(
        &mut self,
        mix: &Mix,
        next: &mut u64,
        held: &mut Vec<(String, u64, u64)>,
    ) -> Result<Duration, E::Error> {
        let size = self.chosen_size();
        let key = format!("{}-{next:06}", mix.name);
        let took = self.put(&key, *next, size, Ack::Os)?;
        held.push((key, *next, size));
        *next += 1;
        Ok(took)
    }

    fn chosen_size(&mut self) -> u64 {
        let weights = &self.plan.mix_weights;
        let mut left = self.rng.below(weights.iter().take(self.plan.sizes.len()).sum());
        for (&size, &weight) in self.plan.sizes.iter().zip(weights) {
            if left < weight {
                return size;
            }
            left -= weight;
        }
        self.plan.sizes[0]
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// A fold over all bytes of a value: the least work of a reader of all of them.
fn folded(value: &[u8]) -> u64 {
    let (words, rest) = value.as_chunks::<8>();
    let words = words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word));
    rest.iter().fold(words, |sum, byte| sum.rotate_left(8) ^ u64::from(*byte))
}

fn key_of(what: &str, id: u64, n: u64) -> String {
    format!("{what}-{id}-{n:06}")
}

/// At least one tick of the clock, so that no rate is infinite.
fn milliseconds(took: Duration) -> f64 {
    took.max(Duration::from_nanos(1)).as_secs_f64() * 1000.0
}

/// Bytes per millisecond, from the mean of the times without the outliers.
fn trimmed_rate(mut times: Vec<Duration>, size: u64, trim_percent: u64) -> f64 {
    times.sort_unstable();
    let trim = times.len() * trim_percent as usize / 100;
    let kept = &times[trim..times.len() - trim];
    let mean = kept.iter().sum::<Duration>() / kept.len() as u32;
    size as f64 / milliseconds(mean)
}

#[cfg(test)]
mod tests;
