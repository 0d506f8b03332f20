//! [`Exposition`]: figures in the text format of Prometheus, version 0.0.4. [`Histogram`]: latencies.
//!
//! Invariant: a label holds any text, and stays one label.

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of the buckets of latencies, in microseconds.
const BUCKETS: [u64; 10] =
    [16, 64, 256, 1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 4_000_000];

/// Adds one to a counter. Counts are read by people, so no order is needed.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Adds to a counter. Counts are read by people, so no order is needed.
pub(crate) fn count_more(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// The value of a counter. Counts are read by people, so no order is needed.
pub(crate) fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// The names and values of labels.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A text that grows.
pub(crate) struct Exposition {
    out: String,
    /// The begin of all names.
    prefix: &'static str,
}

impl Exposition {
    pub(crate) fn new(prefix: &'static str) -> Exposition {
        Exposition { out: String::new(), prefix }
    }

    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(self.out, "# HELP {prefix}{name} {help}\n# TYPE {prefix}{name} {kind}");
    }

    pub(crate) fn line(&mut self, name: &str, labels: Labels<'_>, value: impl Display) {
        self.out.push_str(self.prefix);
        self.out.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            self.out.push(if at == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.out, "{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.out, "{end} {value}");
    }

    /// A metric with one sample.
    pub(crate) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }

    /// The samples of a histogram.
    pub(crate) fn histogram(&mut self, name: &str, labels: Labels<'_>, histogram: &Histogram) {
        let mut sum = 0;
        for (at, bucket) in histogram.buckets.iter().enumerate() {
            sum += value(bucket);
            let end =
                BUCKETS.get(at).map_or("+Inf".to_owned(), |end| (*end as f64 / 1e6).to_string());
            let labels = [labels, &[("le", &end)]].concat();
            self.line(&format!("{name}_bucket"), &labels, sum);
        }
        let seconds = value(&histogram.micros) as f64 / 1e6;
        self.line(&format!("{name}_sum"), labels, seconds);
        self.line(&format!("{name}_count"), labels, sum);
    }

    /// Appends lines that are complete.
    pub(crate) fn append(&mut self, lines: &str) {
        self.out.push_str(lines);
    }

    pub(crate) fn into_text(self) -> String {
        self.out
    }
}

/// Latencies, from the start on.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    micros: AtomicU64,
    /// By bucket; the last one has no upper end.
    buckets: [AtomicU64; BUCKETS.len() + 1],
}

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        self.add_all(1, took);
    }

    /// Adds `number` equal parts of a time; the number is not 0.
    pub(crate) fn add_all(&self, number: u64, took: Duration) {
        let micros = took.as_micros() as u64;
        let each = micros / number;
        let bucket = BUCKETS.iter().position(|end| each <= *end).unwrap_or(BUCKETS.len());
        count_more(&self.buckets[bucket], number);
        count_more(&self.micros, micros);
    }

    pub(crate) fn mean_micros(&self) -> f64 {
        value(&self.micros) as f64 / self.count().max(1) as f64
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(value).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_holds_any_text() {
        let mut out = Exposition::new("x_");
        out.line("y", &[("a", "\"} 7\nx_y 9\\"), ("b", "")], 1);
        assert_eq!(out.into_text(), "x_y{a=\"\\\"} 7\\nx_y 9\\\\\",b=\"\"} 1\n");
    }

    #[test]
    fn a_latency_is_in_its_bucket_and_all_above() {
        let histogram = Histogram::default();
        for micros in [16, 17, 5_000_000] {
            histogram.add(Duration::from_micros(micros));
        }
        let mut out = Exposition::new("x_");
        out.histogram("y", &[("a", "b")], &histogram);
        let text = out.into_text();
        for line in [
            "x_y_bucket{a=\"b\",le=\"0.000016\"} 1",
            "x_y_bucket{a=\"b\",le=\"0.000064\"} 2",
            "x_y_bucket{a=\"b\",le=\"4\"} 2",
            "x_y_bucket{a=\"b\",le=\"+Inf\"} 3",
            "x_y_sum{a=\"b\"} 5.000033",
            "x_y_count{a=\"b\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
